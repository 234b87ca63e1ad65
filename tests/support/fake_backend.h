// A device without arithmetic: for tests of what surrounds the map (admission, cancellation,
// guards, planes) that need to make it slow, broken or wrong at a chosen moment.
//
// It copies: element (layer, component, token, i) of the target is element i modulo the source row
// of source layer `layer` modulo the source layers, plus the token's position / 1024. A token's
// result depends on nothing else, as the Backend contract asks.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device/backend.h"
#include "core/model/model_spec.h"

namespace kvbridge::test {

// A model that passes model::FindDefect, without rotation.
model::ModelSpec FakeModel(const std::string& name, int32_t layers, int32_t kv_heads,
                           int32_t head_dim, tensor::DType dtype = tensor::DType::kF32);

// A mapper that only FakeBackend can run: it has no weights.
mapper::Mapper FakeMapper(model::ModelSpec source, model::ModelSpec target);

// Hooks are set before the backend is used; they run on worker threads.
class FakeBackend final : public device::Backend {
 public:
  using Cancelled = absl::FunctionRef<bool()>;

  std::function<absl::Status(const device::TileSource&)> on_prepare;
  // Before a part's group of layers is written: an error is the device's.
  std::function<absl::Status(kv::LayerRange, Cancelled)> on_map;
  std::function<void(size_t parts)> on_pass;  // before the parts
  uint64_t workspace_bytes_per_token = 100;   // of a tile; calls take nothing

  std::string name() const override { return "fake"; }
  absl::StatusOr<std::unique_ptr<device::ResidentMapper>> MakeResident(
      std::shared_ptr<const mapper::Mapper> mapper, device::Precision precision,
      const device::VerifyWeights& verify) override;
  uint64_t TileBytes(const device::ResidentMapper& mapper, int64_t tokens,
                     device::SourceUse use) const override;
  uint64_t CallBytes(const device::ResidentMapper& mapper, int64_t tokens) const override;
  absl::StatusOr<std::unique_ptr<device::PreparedTile>> Prepare(
      const device::ResidentMapper& mapper, const device::TileSource& source) override;
  std::vector<absl::StatusOr<device::TileChecks>> MapTogether(
      const device::ResidentMapper& mapper, kv::LayerRange layers,
      std::span<const device::TilePart> parts) override;

  // Both go back to what they were when nothing of a test is left.
  int live_tiles() const { return *live_tiles_; }
  int live_mappers() const { return *live_mappers_; }

 private:
  using Counter = std::shared_ptr<std::atomic<int>>;
  Counter live_tiles_ = std::make_shared<std::atomic<int>>(0);
  Counter live_mappers_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace kvbridge::test
