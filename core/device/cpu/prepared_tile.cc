#include "core/device/cpu/prepared_tile.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include <emmintrin.h>

#include "core/base/status_macros.h"

namespace kvbridge::device::cpu {
namespace {

using kv::Component;
using tensor::DType;

int64_t FeaturesBytes(const ResidentWeights& resident, int64_t tokens, SourceUse use) {
  const Blocking& blocking = resident.blocking();
  const int64_t planes = use == SourceUse::kByLayer
                             ? resident.slots()
                             : static_cast<int64_t>(resident.planes().size());
  return planes * blocking.source_heads * CeilDiv(tokens, kBlock) * blocking.segment_bytes();
}

int64_t TableBytes(const ResidentWeights& resident, int64_t tokens) {
  int64_t pairs = 0;
  for (const auto& params : resident.rotations()) pairs += params.rotary_dim / 2;
  return 3 * pairs * tokens * static_cast<int64_t>(sizeof(float));
}

absl::Status CheckField(absl::string_view field, int64_t expected, int64_t got) {
  if (expected == got) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("source.", field, ": expected ", expected, ", got ", got));
}

absl::Status CheckSource(const mapper::Mapper& mapper, const TileSource& source) {
  const model::KvGeometry& geometry = mapper.source.geometry;
  KVB_RETURN_IF_ERROR(CheckField("layers", geometry.layers, source.view->layers));
  KVB_RETURN_IF_ERROR(CheckField("kv_heads", geometry.kv_heads, source.view->kv_heads));
  KVB_RETURN_IF_ERROR(CheckField("head_dim", geometry.head_dim, source.view->head_dim));
  const kv::TokenRange& tokens = source.tokens;
  if (tokens.begin < 0 || tokens.end <= tokens.begin || tokens.end > source.view->tokens) {
    return absl::InvalidArgumentError(absl::StrCat("source.tokens: expected a range within [0, ",
                                                   source.view->tokens, "), got [", tokens.begin,
                                                   ", ", tokens.end, ")"));
  }
  KVB_RETURN_IF_ERROR(
      CheckField("positions", tokens.size(), static_cast<int64_t>(source.positions.size())));
  if (!mapper.strip_rope && !source.keys_are_roped && mapper.source.rope.params.rotary_dim > 0) {
    return absl::InvalidArgumentError(
        "source.keys_are_roped: expected true for a mapper fitted on rotated keys, got false");
  }
  return absl::OkStatus();
}

bool HalvesAreWhole(const rope::RopeRow& row) {
  return row.pairing == rope::Pairing::kHalf && row.half % kBlock == 0;
}

void PackF32(const PackArgs& p) {
  for (int32_t head = 0; head < p.heads; ++head) {
    for (int32_t d = 0; d < p.head_dim; d += kBlock) {
      const int32_t n = std::min(kBlock, p.head_dim - d);
      auto* row = reinterpret_cast<float*>(p.dst + head * p.head_stride) + d * kBlock;
      std::copy_n(p.src + int64_t{head} * p.head_dim + d, n, row);
      std::fill(row + n, row + kBlock, 0.0f);
    }
  }
}

}  // namespace

CpuTile::CpuTile(const ResidentWeights& resident, const TileSource& source)
    : resident_(resident),
      source_(source),
      tokens_(source.tokens.size()),
      blocks_(CeilDiv(tokens_, kBlock)),
      chunks_(CeilDiv(tokens_, kChunk)),
      source_heads_(resident.blocking().source_heads),
      segment_bytes_(resident.blocking().segment_bytes()),
      tables_(resident.rotations().size() * chunks_) {}

uint64_t CpuTile::Bytes(const ResidentWeights& resident, int64_t tokens, SourceUse use) {
  return FeaturesBytes(resident, tokens, use) + TableBytes(resident, tokens);
}

uint64_t CpuTile::bytes() const { return Bytes(resident_, tokens_, source_.use); }

int32_t CpuTile::source_layers() const {
  return by_layer() ? resident_.planes().back().first_use + 1 : 0;
}

absl::StatusOr<std::unique_ptr<CpuTile>> CpuTile::Create(const ResidentWeights& resident,
                                                         const TileSource& source,
                                                         const KernelSet& kernels,
                                                         kv::BufferPool& pool,
                                                         base::WorkerPool& workers) {
  KVB_RETURN_IF_ERROR(CheckSource(resident.mapper(), source));
  std::unique_ptr<CpuTile> tile(new CpuTile(resident, source));
  KVB_ASSIGN_OR_RETURN(tile->buffer_,
                       pool.Acquire(FeaturesBytes(resident, tile->tokens_, source.use)));
  tile->FillTables(source.positions, workers);
  if (!tile->by_layer()) {
    tile->FillPlanes(0, static_cast<int32_t>(resident.planes().size()), kernels, workers);
  }
  return tile;
}

absl::Status CpuTile::TakeSource(kv::LayerRange layers, const KernelSet& kernels,
                                 base::WorkerPool& workers) {
  if (!by_layer()) return absl::OkStatus();
  const int32_t group_end = (next_layer_ / kLayersPerGroup + 1) * kLayersPerGroup;
  if (layers.begin != next_layer_ || layers.end > group_end) {
    return absl::FailedPreconditionError(absl::StrCat("layers: expected to begin at ", next_layer_,
                                                      " and end by ", group_end, ", got [",
                                                      layers.begin, ", ", layers.end, ")"));
  }
  next_layer_ = layers.end;
  const std::vector<ResidentWeights::Plane>& planes = resident_.planes();
  const auto needed =
      std::find_if(planes.begin() + next_plane_, planes.end(),
                   [&](const auto& plane) { return plane.first_use >= layers.end; });
  const auto end = static_cast<int32_t>(needed - planes.begin());
  FillPlanes(next_plane_, end, kernels, workers);
  next_plane_ = end;
  return absl::OkStatus();
}

void CpuTile::FillTables(std::span<const int64_t> positions, base::WorkerPool& workers) {
  workers.ParallelFor(static_cast<int64_t>(tables_.size()), [&](int64_t i) {
    const int64_t begin = i % chunks_ * kChunk;
    const int64_t count = std::min(kChunk, tokens_ - begin);
    tables_[i].emplace(resident_.rotations()[i / chunks_],
                       absl::MakeConstSpan(positions.data() + begin, count));
  });
}

void CpuTile::FillPlanes(int32_t begin, int32_t end, const KernelSet& kernels,
                         base::WorkerPool& workers) {
  const int64_t planes = end - begin;
  workers.ParallelFor(planes * chunks_, [&](int64_t i) {
    FillChunk(kernels, begin + static_cast<int32_t>(i % planes), i / planes);
  });
}

void CpuTile::FillChunk(const KernelSet& kernels, int32_t index, int64_t chunk) {
  const ResidentWeights::Plane& plane = resident_.planes()[index];
  const Blocking& blocking = resident_.blocking();
  const kv::KvView& view = *source_.view;
  const int32_t rotation = plane.component == Component::kKey && source_.keys_are_roped
                               ? resident_.source_rotation(plane.layer)
                               : -1;
  const bool lay = view.dtype == DType::kBf16 && blocking.element_bytes == 2 &&
                   view.head_dim % kBlock == 0 &&
                   (rotation < 0 || HalvesAreWhole(Rotation(rotation, chunk * kChunk)));
  const int64_t head_bytes = blocks_ * segment_bytes_;
  const int64_t row_bytes = kBlock * blocking.element_bytes;
  const auto pack = blocking.element_bytes == 2 ? kernels.pack_bf16 : PackF32;
  std::vector<float> row(view.row());
  const int64_t end = std::min((chunk + 1) * kChunk, int64_t{blocks_} * kBlock);
  for (int64_t t = chunk * kChunk; t < end; ++t) {
    std::byte* dst = buffer_->data() + PlaneOffset(index, 0) + t / kBlock * segment_bytes_ +
                     t % kBlock * row_bytes;
    const int64_t token = source_.tokens.begin + t;
    if (t < tokens_ && lay) {
      rope::RopeRow rope;
      if (rotation >= 0) rope = Rotation(rotation, t);
      const std::byte* src = view.Row(plane.layer, plane.component, token);
      kernels.lay_bf16({.src = reinterpret_cast<const char*>(src),
                        .src_stride = view.plane(plane.layer, plane.component).head_stride,
                        .rope = rotation >= 0 ? &rope : nullptr,
                        .dst = reinterpret_cast<char*>(dst),
                        .heads = view.kv_heads,
                        .head_dim = view.head_dim,
                        .dst_stride = head_bytes});
      continue;
    }
    if (t < tokens_) {
      kv::ReadRows(view, plane.layer, plane.component, {token, token + 1}, row.data());
      if (rotation >= 0) {
        rope::StripRope(Rotation(rotation, t), row.data(), view.kv_heads, view.head_dim);
      }
    } else {
      std::fill(row.begin(), row.end(), 0.0f);
    }
    pack({.src = row.data(),
          .dst = reinterpret_cast<char*>(dst),
          .heads = view.kv_heads,
          .head_dim = view.head_dim,
          .head_stride = head_bytes});
  }
  _mm_sfence();
}

}  // namespace kvbridge::device::cpu
