#include "tests/support/fake_backend.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace kvbridge::test {
namespace {

// Counts its owner for as long as it lives.
class Alive {
 public:
  explicit Alive(std::shared_ptr<std::atomic<int>> counter) : counter_(std::move(counter)) {
    ++*counter_;
  }
  ~Alive() { --*counter_; }
  Alive(const Alive&) = delete;
  Alive& operator=(const Alive&) = delete;

 private:
  const std::shared_ptr<std::atomic<int>> counter_;
};

class FakeResident final : public device::ResidentMapper {
 public:
  FakeResident(std::shared_ptr<const mapper::Mapper> mapper, device::Precision precision,
               std::shared_ptr<std::atomic<int>> counter)
      : mapper_(std::move(mapper)), precision_(precision), alive_(std::move(counter)) {}
  const mapper::Mapper& mapper() const override { return *mapper_; }
  uint64_t resident_bytes() const override { return 1; }
  device::Precision precision() const override { return precision_; }

 private:
  const std::shared_ptr<const mapper::Mapper> mapper_;
  const device::Precision precision_;
  const Alive alive_;
};

class FakeTile final : public device::PreparedTile {
 public:
  FakeTile(const device::TileSource& source, int32_t target_layers,
           std::shared_ptr<std::atomic<int>> counter)
      : positions(source.positions.begin(), source.positions.end()),
        row(source.view->row()),
        source_(source),
        layers_(source.view->layers),
        source_layers_(source.use == device::SourceUse::kAtOnce ? 0
                                                                : std::min(layers_, target_layers)),
        rows_(2 * layers_ * positions.size() * row),
        alive_(std::move(counter)) {
    if (source.use == device::SourceUse::kAtOnce) Read({0, layers_});
  }
  uint64_t bytes() const override { return rows_.size() * sizeof(float); }
  int32_t source_layers() const override { return source_layers_; }

  // By layer: what target layers [layers) need for the first time.
  void TakeSource(kv::LayerRange layers) {
    Read({std::min(layers.begin, source_layers_), std::min(layers.end, source_layers_)});
  }
  const float* Row(int32_t layer, kv::Component c, int64_t token) const {
    return rows_.data() + Offset(layer % layers_, c) + token * row;
  }

  const std::vector<int64_t> positions;
  const int64_t row;

 private:
  int64_t Offset(int32_t layer, kv::Component c) const {
    return (2 * layer + static_cast<int64_t>(c)) * static_cast<int64_t>(positions.size()) * row;
  }
  void Read(kv::LayerRange layers) {
    for (int32_t layer = layers.begin; layer < layers.end; ++layer) {
      for (const kv::Component c : kv::kComponents) {
        kv::ReadRows(*source_.view, layer, c, source_.tokens, rows_.data() + Offset(layer, c));
      }
    }
  }

  const device::TileSource source_;
  const int32_t layers_;
  const int32_t source_layers_;
  std::vector<float> rows_;  // [layers][2][tokens][row]
  const Alive alive_;
};

absl::StatusOr<device::TileChecks> MapPart(const FakeTile& tile, kv::LayerRange layers,
                                           const device::TilePart& part) {
  const kv::KvView& target = *part.target;
  device::TileChecks checks;
  std::vector<float> head(target.head_dim);
  for (int32_t layer = layers.begin; layer < layers.end; ++layer) {
    for (size_t t = 0; t < tile.positions.size(); ++t) {
      if (part.cancelled()) return absl::CancelledError("fake: cancelled");
      for (const kv::Component c : kv::kComponents) {
        const float* source = tile.Row(layer, c, t);
        for (int32_t h = 0; h < target.kv_heads; ++h) {
          for (int32_t d = 0; d < target.head_dim; ++d) {
            head[d] = source[(h * target.head_dim + d) % tile.row] +
                      static_cast<float>(tile.positions[t]) / 1024;
            if (!std::isfinite(head[d])) {
              ++checks.non_finite;
            } else {
              checks.max_abs = std::max(checks.max_abs, std::abs(head[d]));
            }
          }
          checks.saturated +=
              kv::WriteHead(target, layer, c, part.target_begin + t, h, head.data());
        }
      }
    }
  }
  return checks;
}

}  // namespace

model::ModelSpec FakeModel(const std::string& name, int32_t layers, int32_t kv_heads,
                           int32_t head_dim, tensor::DType dtype) {
  model::ModelSpec spec;
  spec.identity.family = "fake";
  spec.identity.model_id = "fake/" + name;
  spec.identity.revision = "r1";
  spec.identity.tokenizer_sha256 = std::string(64, 'a');
  spec.geometry.layers = layers;
  spec.geometry.kv_heads = kv_heads;
  spec.geometry.head_dim = head_dim;
  spec.geometry.dtype = dtype;
  return spec;
}

mapper::Mapper FakeMapper(model::ModelSpec source, model::ModelSpec target) {
  mapper::Mapper mapper;
  mapper.digest = std::string(64, 'd');
  mapper.source = std::move(source);
  mapper.target = std::move(target);
  return mapper;
}

absl::StatusOr<std::unique_ptr<device::ResidentMapper>> FakeBackend::MakeResident(
    std::shared_ptr<const mapper::Mapper> mapper, device::Precision precision,
    const device::VerifyWeights& verify) {
  if (verify) {
    if (absl::Status status = verify([](std::span<const std::byte>) {}); !status.ok())
      return status;
  }
  return std::make_unique<FakeResident>(std::move(mapper), precision, live_mappers_);
}

uint64_t FakeBackend::TileBytes(const device::ResidentMapper&, int64_t tokens,
                                device::SourceUse) const {
  return workspace_bytes_per_token * static_cast<uint64_t>(tokens);
}

uint64_t FakeBackend::CallBytes(const device::ResidentMapper&, int64_t) const { return 0; }

absl::StatusOr<std::unique_ptr<device::PreparedTile>> FakeBackend::Prepare(
    const device::ResidentMapper& mapper, const device::TileSource& source) {
  if (on_prepare) {
    if (absl::Status status = on_prepare(source); !status.ok()) return status;
  }
  return std::make_unique<FakeTile>(source, mapper.mapper().target.geometry.layers, live_tiles_);
}

std::vector<absl::StatusOr<device::TileChecks>> FakeBackend::MapTogether(
    const device::ResidentMapper&, kv::LayerRange layers, std::span<const device::TilePart> parts) {
  if (on_pass) on_pass(parts.size());
  std::vector<absl::StatusOr<device::TileChecks>> answers;
  for (const device::TilePart& part : parts) {
    if (on_map) {
      if (absl::Status status = on_map(layers, part.cancelled); !status.ok()) {
        answers.emplace_back(status);
        continue;
      }
    }
    auto& tile = static_cast<FakeTile&>(*part.tile);
    tile.TakeSource(layers);
    answers.push_back(MapPart(tile, layers, part));
  }
  return answers;
}

}  // namespace kvbridge::test
