// The device of caches that were mapped elsewhere: it moves them, element by element as they are,
// from where they came in to where they are wanted. Everything around the map (admission, pages,
// cancellation, order of layers, the one decision) is then the same for them.
//
// Both views have the target's geometry, element type and scales. Nothing is checked but that: who
// mapped has looked at every element, and who received at every checksum.
//
// Thread contract: as device::Backend's.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device/backend.h"

namespace kvbridge::device {

// What stands for the artifact that mapped: its digest, and a source that is the target already.
class CopyMapper final : public ResidentMapper {
 public:
  CopyMapper(std::string digest, const model::ModelSpec& target);

  const mapper::Mapper& mapper() const override { return mapper_; }
  uint64_t resident_bytes() const override { return 0; }
  Precision precision() const override { return Precision::kBf16; }

 private:
  mapper::Mapper mapper_;
};

class CopyBackend final : public Backend {
 public:
  std::string name() const override { return "copy"; }
  // UNIMPLEMENTED: there is nothing to make.
  absl::StatusOr<std::unique_ptr<ResidentMapper>> MakeResident(
      std::shared_ptr<const mapper::Mapper> mapper, Precision precision,
      const VerifyWeights& verify) override;
  uint64_t TileBytes(const ResidentMapper&, int64_t, SourceUse) const override { return 0; }
  uint64_t CallBytes(const ResidentMapper&, int64_t) const override { return 0; }
  // Keeps the view's descriptors; its memory is read by MapTogether.
  absl::StatusOr<std::unique_ptr<PreparedTile>> Prepare(const ResidentMapper& mapper,
                                                        const TileSource& source) override;
  std::vector<absl::StatusOr<TileChecks>> MapTogether(const ResidentMapper& mapper,
                                                      kv::LayerRange layers,
                                                      std::span<const TilePart> parts) override;
};

}  // namespace kvbridge::device
