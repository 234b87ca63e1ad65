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

int64_t FeaturesBytes(const ResidentWeights& resident, int64_t tokens) {
  const Blocking& blocking = resident.blocking();
  return static_cast<int64_t>(resident.planes().size()) * blocking.source_heads *
         CeilDiv(tokens, kBlock) * blocking.segment_bytes();
}

int64_t ScratchFloats(const ResidentWeights& resident, int64_t tokens) {
  const Blocking& blocking = resident.blocking();
  return int64_t{std::min(CeilDiv(tokens, kBlock), kUnitBlocks)} * UnitHeads(blocking) *
         blocking.head_columns * kBlockElements;
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

int32_t UnitHeads(const Blocking& blocking) {
  return std::clamp(kUnitColumns / blocking.head_columns, 1, blocking.target_heads);
}

CpuTile::CpuTile(const ResidentWeights& resident, int64_t tokens, int32_t lanes)
    : tokens_(tokens),
      blocks_(CeilDiv(tokens, kBlock)),
      chunks_(CeilDiv(tokens, kChunk)),
      source_heads_(resident.blocking().source_heads),
      segment_bytes_(resident.blocking().segment_bytes()),
      features_bytes_(FeaturesBytes(resident, tokens)),
      scratch_floats_(ScratchFloats(resident, tokens)),
      bytes_(Bytes(resident, tokens, lanes)),
      tables_(resident.rotations().size() * chunks_) {}

uint64_t CpuTile::Bytes(const ResidentWeights& resident, int64_t tokens, int32_t lanes) {
  return FeaturesBytes(resident, tokens) + TableBytes(resident, tokens) +
         ScratchFloats(resident, tokens) * lanes * static_cast<int64_t>(sizeof(float));
}

absl::StatusOr<std::unique_ptr<CpuTile>> CpuTile::Create(const ResidentWeights& resident,
                                                         const TileSource& source,
                                                         const KernelSet& kernels, int32_t lanes,
                                                         kv::BufferPool& pool,
                                                         base::WorkerPool& workers) {
  KVB_RETURN_IF_ERROR(CheckSource(resident.mapper(), source));
  std::unique_ptr<CpuTile> tile(new CpuTile(resident, source.tokens.size(), lanes));
  const size_t scratch = tile->scratch_floats_ * lanes * sizeof(float);
  KVB_ASSIGN_OR_RETURN(tile->buffer_, pool.Acquire(tile->features_bytes_ + scratch));
  tile->FillTables(resident, source.positions, workers);
  const auto planes = static_cast<int64_t>(resident.planes().size());
  workers.ParallelFor(planes * tile->chunks_, [&](int64_t i) {
    tile->FillChunk(resident, source, kernels, static_cast<int32_t>(i % planes), i / planes);
  });
  return tile;
}

void CpuTile::FillTables(const ResidentWeights& resident, std::span<const int64_t> positions,
                         base::WorkerPool& workers) {
  workers.ParallelFor(static_cast<int64_t>(tables_.size()), [&](int64_t i) {
    const int64_t begin = i % chunks_ * kChunk;
    const int64_t count = std::min(kChunk, tokens_ - begin);
    tables_[i].emplace(resident.rotations()[i / chunks_],
                       absl::MakeConstSpan(positions.data() + begin, count));
  });
}

void CpuTile::FillChunk(const ResidentWeights& resident, const TileSource& source,
                        const KernelSet& kernels, int32_t slot, int64_t chunk) {
  const ResidentWeights::Plane plane = resident.planes()[slot];
  const Blocking& blocking = resident.blocking();
  const kv::KvView& view = *source.view;
  const int32_t rotation = plane.component == Component::kKey && source.keys_are_roped
                               ? resident.source_rotation(plane.layer)
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
    std::byte* dst = buffer_->data() + PlaneOffset(slot, 0) + t / kBlock * segment_bytes_ +
                     t % kBlock * row_bytes;
    const int64_t token = source.tokens.begin + t;
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
