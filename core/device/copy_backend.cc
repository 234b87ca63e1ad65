#include "core/device/copy_backend.h"

#include <utility>

#include "core/kv/copy_rows.h"

namespace kvbridge::device {
namespace {

class CopyTile final : public PreparedTile {
 public:
  CopyTile(const kv::KvView& view, kv::TokenRange tokens) : view_(view), tokens_(tokens) {}

  uint64_t bytes() const override { return 0; }
  int32_t source_layers() const override { return view_.layers; }

  absl::StatusOr<TileChecks> Copy(kv::LayerRange layers, const TilePart& part) const {
    for (int32_t layer = layers.begin; layer < layers.end; ++layer) {
      for (const kv::Component c : kv::kComponents) {
        if (part.cancelled()) return absl::CancelledError("copy: cancelled");
        kv::CopyRows(view_, layer, c, tokens_, *part.target, part.target_begin);
      }
    }
    return TileChecks();
  }

 private:
  const kv::KvView view_;
  const kv::TokenRange tokens_;
};

}  // namespace

CopyMapper::CopyMapper(std::string digest, const model::ModelSpec& target) {
  mapper_.digest = std::move(digest);
  mapper_.source = target;
  mapper_.target = target;
}

absl::StatusOr<std::unique_ptr<ResidentMapper>> CopyBackend::MakeResident(
    std::shared_ptr<const mapper::Mapper>, Precision, const VerifyWeights&) {
  return absl::UnimplementedError("copy: it has no weights");
}

absl::StatusOr<std::unique_ptr<PreparedTile>> CopyBackend::Prepare(const ResidentMapper&,
                                                                   const TileSource& source) {
  return std::make_unique<CopyTile>(*source.view, source.tokens);
}

std::vector<absl::StatusOr<TileChecks>> CopyBackend::MapTogether(const ResidentMapper&,
                                                                 kv::LayerRange layers,
                                                                 std::span<const TilePart> parts) {
  std::vector<absl::StatusOr<TileChecks>> answers;
  for (const TilePart& part : parts) {
    answers.push_back(static_cast<const CopyTile&>(*part.tile).Copy(layers, part));
  }
  return answers;
}

}  // namespace kvbridge::device
