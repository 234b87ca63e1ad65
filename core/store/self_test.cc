#include "core/store/self_test.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/kv/kv_view.h"
#include "core/store/reference_map.h"

namespace kvbridge::store {
namespace {

constexpr int64_t kMaxTokens = 4;
constexpr int64_t kMaxStep = 37;  // between positions, so that angles are not all small

struct Probe {
  std::vector<float> values;  // backs `view`
  kv::KvView view;
  std::vector<int64_t> positions;
};

kv::KvView DenseF32(const model::KvGeometry& geometry, int64_t tokens, std::vector<float>* values) {
  values->resize(static_cast<size_t>(2 * geometry.layers * tokens * geometry.row()));
  return kv::DenseTileView(reinterpret_cast<std::byte*>(values->data()), tensor::DType::kF32,
                           geometry.layers, tokens, geometry.kv_heads, geometry.head_dim);
}

// Seeded values in [-1, 1), the same on every machine.
Probe MakeProbe(const model::ModelSpec& source, int64_t max_position) {
  Probe probe;
  const int64_t tokens = max_position > 0 ? std::min(kMaxTokens, max_position) : kMaxTokens;
  const int64_t step =
      max_position > 0 ? std::clamp((max_position - 1) / tokens, int64_t{1}, kMaxStep) : kMaxStep;
  for (int64_t t = 0; t < tokens; ++t) probe.positions.push_back(t * step);
  probe.view = DenseF32(source.geometry, tokens, &probe.values);
  std::minstd_rand random(1);
  for (float& value : probe.values) {
    value = static_cast<float>(random() % 65536) / 32768.0f - 1.0f;
  }
  return probe;
}

int64_t MaxPosition(const mapper::Mapper& mapper) {
  const int64_t source = mapper.source.rope.max_position;
  const int64_t target = mapper.target.rope.max_position;
  if (source == 0 || target == 0) return std::max(source, target);
  return std::min(source, target);
}

absl::StatusOr<device::TileChecks> MapOnce(device::Backend* backend,
                                           const device::ResidentMapper& resident,
                                           const Probe& probe, const kv::KvView& target) {
  const device::TileSource tile_source{
      .view = &probe.view, .tokens = {0, probe.view.tokens}, .positions = probe.positions};
  KVB_ASSIGN_OR_RETURN(const std::unique_ptr<device::PreparedTile> tile,
                       backend->Prepare(resident, tile_source));
  return backend->MapLayers(resident, *tile, {0, target.layers}, target, 0, [] { return false; });
}

absl::Status Failed(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("self-test: ", what));
}

absl::Status CompareHead(const mapper::Mapper& mapper, const Probe& probe, const kv::KvView& target,
                         int64_t token, int32_t layer, kv::Component component, int32_t head,
                         double tolerance) {
  const ReferenceHead expected =
      MapHead(mapper, probe.view, token, probe.positions[token], layer, component, head);
  std::vector<float> row(static_cast<size_t>(target.row()));
  kv::ReadRows(target, layer, component, {token, token + 1}, row.data());
  double difference = 0;
  for (int32_t d = 0; d < target.head_dim; ++d) {
    const double delta = row[static_cast<size_t>(head) * target.head_dim + d] - expected.values[d];
    difference += delta * delta;
  }
  // Written so that a NaN in the reference fails, too.
  if (std::sqrt(difference) <= tolerance * expected.magnitude) return absl::OkStatus();
  return Failed(absl::StrCat(component == kv::Component::kKey ? "key" : "value", " head ", head,
                             " of layer ", layer, ": expected at most ",
                             tolerance * expected.magnitude, " from the plain calculation, got ",
                             std::sqrt(difference)));
}

absl::Status CompareRows(const mapper::Mapper& mapper, const Probe& probe, const kv::KvView& target,
                         double tolerance) {
  const int64_t token = target.tokens - 1;
  for (const int32_t layer : std::set<int32_t>{0, target.layers / 2, target.layers - 1}) {
    for (const int32_t head : std::set<int32_t>{0, target.kv_heads - 1}) {
      for (const kv::Component component : kv::kComponents) {
        KVB_RETURN_IF_ERROR(
            CompareHead(mapper, probe, target, token, layer, component, head, tolerance));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SelfTest(device::Backend* backend, const device::ResidentMapper& resident) {
  const mapper::Mapper& mapper = resident.mapper();
  const Probe probe = MakeProbe(mapper.source, MaxPosition(mapper));
  std::vector<float> first;
  std::vector<float> second;
  for (std::vector<float>* values : {&first, &second}) {
    const kv::KvView target = DenseF32(mapper.target.geometry, probe.view.tokens, values);
    KVB_ASSIGN_OR_RETURN(const device::TileChecks checks,
                         MapOnce(backend, resident, probe, target));
    if (checks.non_finite != 0) {
      return Failed(
          absl::StrCat("expected finite elements, got ", checks.non_finite, " that are not"));
    }
  }
  if (std::memcmp(first.data(), second.data(), first.size() * sizeof(float)) != 0) {
    return Failed("two runs of one cache gave different bytes");
  }
  const double tolerance = resident.precision() == device::Precision::kF32 ? 1e-4 : 0x1p-6;
  return CompareRows(mapper, probe, DenseF32(mapper.target.geometry, probe.view.tokens, &first),
                     tolerance);
}

}  // namespace kvbridge::store
