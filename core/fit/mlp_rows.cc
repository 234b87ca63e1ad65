#include "core/fit/mlp_rows.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/fit/parallel.h"
#include "core/tensor/convert.h"

namespace kvbridge::fit {
namespace {

struct Job {
  const Piece* piece;
  int64_t first_row;
};

std::vector<Job> JobsOf(const ShardFolder& folder) {
  std::vector<Job> jobs;
  int64_t row = 0;
  for (const Split split : kSplits) {
    for (const Sequence& sequence : folder.sequences) {
      if (sequence.split != split) continue;
      for (const Piece& piece : sequence.pieces) {
        jobs.push_back({&piece, row});
        row += piece.rows;
      }
    }
  }
  return jobs;
}

// One source plane or target layer of a piece: [rows, heads * head_dim] at `out`.
absl::Status ReadPlane(const Shard& shard, Role role, kv::Component component, int32_t layer,
                       bool strip, float* out, int64_t stride) {
  const model::KvGeometry& geometry = shard.content().specs.of(role).geometry;
  for (int32_t h = 0; h < geometry.kv_heads; ++h) {
    shard.ReadHead(role, component, layer, h, 0, shard.rows(), strip,
                   out + int64_t{h} * geometry.head_dim, stride);
  }
  for (int64_t r = 0; r < shard.rows(); ++r) {
    const float* row = out + r * stride;
    if (std::all_of(row, row + geometry.row(), [](float x) { return std::isfinite(x); })) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        shard.name(), ": ", Name(role), component == kv::Component::kKey ? ".keys" : ".values",
        ": expected finite numbers, got NaN or infinity in layer ", layer, ", row ", r));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MlpRows> ReadMlpRows(const ShardFolder& folder, int64_t token_stride,
                                    bool strip_rope, const mapper::LayerMap& map,
                                    int32_t target_layer, kv::Component component,
                                    base::WorkerPool* pool) {
  const int64_t inputs = map.inputs(folder.specs.source.geometry);
  const int64_t width = folder.specs.source.geometry.row();
  const int64_t outputs = folder.specs.target.geometry.row();
  const int64_t rows = folder.rows(Split::kFit) + folder.rows(Split::kHeldOut);
  MlpRows out{std::vector<uint16_t>(static_cast<size_t>(rows * inputs)),
              std::vector<float>(static_cast<size_t>(rows * outputs))};
  const std::vector<mapper::SourcePlane> planes = map.planes(component);
  const std::vector<Job> jobs = JobsOf(folder);
  const auto read = [&](int64_t i) -> absl::Status {
    const auto& [piece, first] = jobs[i];
    KVB_ASSIGN_OR_RETURN(const Shard shard, Shard::Open(piece->path, {folder.specs, token_stride}));
    if (crypto::ToHex(shard.content().digest) != piece->digest || shard.rows() != piece->rows) {
      return absl::DataLossError(
          absl::StrCat(shard.name(), ": someone replaced it since the folder was opened"));
    }
    std::vector<float> features(static_cast<size_t>(piece->rows * inputs));
    for (size_t p = 0; p < planes.size(); ++p) {
      KVB_RETURN_IF_ERROR(ReadPlane(shard, Role::kSource, planes[p].component, planes[p].layer,
                                    strip_rope, features.data() + p * width, inputs));
    }
    tensor::EncodeRow(tensor::DType::kBf16, features.data(), 1,
                      reinterpret_cast<std::byte*>(out.features.data() + first * inputs),
                      features.size());
    KVB_RETURN_IF_ERROR(ReadPlane(shard, Role::kTarget, component, target_layer, strip_rope,
                                  out.targets.data() + first * outputs, outputs));
    return shard.CheckUnchanged();
  };
  KVB_RETURN_IF_ERROR(ForEach({.pool = pool, .stop = {}, .progress = {}}, "rows",
                              static_cast<int64_t>(jobs.size()), read));
  return out;
}

uint64_t MlpRowBytes(const ShardFolder& folder, const mapper::LayerMap& map) {
  const int64_t rows = folder.rows(Split::kFit) + folder.rows(Split::kHeldOut);
  return static_cast<uint64_t>(rows) *
         (static_cast<uint64_t>(map.inputs(folder.specs.source.geometry)) * sizeof(uint16_t) +
          static_cast<uint64_t>(folder.specs.target.geometry.row()) * sizeof(float));
}

}  // namespace kvbridge::fit
