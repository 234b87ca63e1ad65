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
  explicit FakeTile(std::shared_ptr<std::atomic<int>> counter) : alive_(std::move(counter)) {}
  uint64_t bytes() const override { return rows.size() * sizeof(float); }

  std::vector<float> rows;  // [layers][2][tokens][row]
  std::vector<int64_t> positions;
  int32_t layers = 0;
  int64_t row = 0;

  const float* Row(int32_t layer, kv::Component c, int64_t token) const {
    const int64_t plane = 2 * (layer % layers) + static_cast<int64_t>(c);
    return rows.data() + (plane * static_cast<int64_t>(positions.size()) + token) * row;
  }

 private:
  const Alive alive_;
};

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

uint64_t FakeBackend::WorkspaceBytes(const device::ResidentMapper&, int64_t tokens) const {
  return workspace_bytes_per_token * static_cast<uint64_t>(tokens);
}

absl::StatusOr<std::unique_ptr<device::PreparedTile>> FakeBackend::Prepare(
    const device::ResidentMapper&, const device::TileSource& source) {
  if (on_prepare) {
    if (absl::Status status = on_prepare(source); !status.ok()) return status;
  }
  auto tile = std::make_unique<FakeTile>(live_tiles_);
  tile->positions.assign(source.positions.begin(), source.positions.end());
  tile->layers = source.view->layers;
  tile->row = source.view->row();
  tile->rows.resize(2 * tile->layers * source.tokens.size() * tile->row);
  float* out = tile->rows.data();
  for (int32_t layer = 0; layer < tile->layers; ++layer) {
    for (const kv::Component c : kv::kComponents) {
      kv::ReadRows(*source.view, layer, c, source.tokens, out);
      out += source.tokens.size() * tile->row;
    }
  }
  return tile;
}

absl::StatusOr<device::TileChecks> FakeBackend::MapLayers(
    const device::ResidentMapper&, const device::PreparedTile& prepared, kv::LayerRange layers,
    const kv::KvView& target, int64_t target_begin, Cancelled cancelled) {
  if (on_map) {
    if (absl::Status status = on_map(layers, cancelled); !status.ok()) return status;
  }
  const auto& tile = static_cast<const FakeTile&>(prepared);
  device::TileChecks checks;
  std::vector<float> head(target.head_dim);
  for (int32_t layer = layers.begin; layer < layers.end; ++layer) {
    for (size_t t = 0; t < tile.positions.size(); ++t) {
      if (cancelled()) return absl::CancelledError("fake: cancelled");
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
          checks.saturated += kv::WriteHead(target, layer, c, target_begin + t, h, head.data());
        }
      }
    }
  }
  return checks;
}

}  // namespace kvbridge::test
