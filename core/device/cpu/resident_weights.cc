#include "core/device/cpu/resident_weights.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/device/cpu/packer.h"
#include "core/tensor/convert.h"

namespace kvbridge::device::cpu {
namespace {

using kv::Component;
using mapper::LayerMap;
using mapper::Mapper;
using mapper::Support;
using mapper::TensorRef;

Blocking BlockingOf(const Mapper& m, Precision precision) {
  const model::KvGeometry& source = m.source.geometry;
  const model::KvGeometry& target = m.target.geometry;
  return {.element_bytes = precision == Precision::kBf16 ? 2 : 4,
          .source_heads = source.kv_heads,
          .head_steps = CeilDiv(source.head_dim, kBlock),
          .target_heads = target.kv_heads,
          .head_columns = CeilDiv(target.head_dim, kBlock)};
}

int64_t SegmentCount(const LayerMap& map, const Blocking& blocking) {
  return map.plane_count() * (map.support == Support::kFull ? blocking.source_heads : 1);
}

// Of one target head.
int64_t HeadBytes(const LayerMap& map, const Blocking& blocking) {
  return SegmentCount(map, blocking) * blocking.segment_bytes() * blocking.head_columns;
}

std::string FieldName(int32_t layer, Component c, absl::string_view tensor) {
  return absl::StrCat(c == Component::kKey ? "keys" : "values", "[", layer, "].", tensor);
}

absl::Status NotFinite(const std::string& field, int32_t head) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected finite numbers, got NaN or infinity in head ", head));
}

size_t PlaneIndex(const mapper::SourcePlane& plane) {
  return size_t(2) * plane.layer + static_cast<size_t>(plane.component);
}

int32_t IndexOf(std::vector<model::RopeParams>& known, const model::RopeParams& params) {
  if (params.rotary_dim == 0) return -1;
  const auto it = std::find(known.begin(), known.end(), params);
  if (it != known.end()) return static_cast<int32_t>(it - known.begin());
  known.push_back(params);
  return static_cast<int32_t>(known.size() - 1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ResidentWeights>> ResidentWeights::Create(
    std::shared_ptr<const Mapper> mapper, Precision precision, const VerifyWeights& verify,
    base::WorkerPool& workers) {
  KVB_RETURN_IF_ERROR(Validate(*mapper));
  for (const auto* spec : {&mapper->source, &mapper->target}) {
    if (spec->geometry.head_dim > kMaxHeadDim) {
      return absl::InvalidArgumentError(absl::StrCat(
          spec == &mapper->source ? "source" : "target", ".geometry.head_dim: expected at most ",
          kMaxHeadDim, ", got ", spec->geometry.head_dim));
    }
  }
  const Blocking blocking = BlockingOf(*mapper, precision);
  int64_t bytes = 0;
  for (const auto* component : {&mapper->keys, &mapper->values}) {
    for (const LayerMap& map : *component)
      bytes += HeadBytes(map, blocking) * blocking.target_heads;
  }
  KVB_ASSIGN_OR_RETURN(HugeMemory memory, HugeMemory::Allocate(bytes));
  std::unique_ptr<ResidentWeights> resident(
      new ResidentWeights(std::move(mapper), precision, blocking, std::move(memory)));
  resident->PlanPlanes();
  resident->PlanSlots();
  resident->PlanLayers();
  resident->PlanRotations();
  resident->FillSmall();
  KVB_RETURN_IF_ERROR(resident->PackAll(verify, workers));
  return resident;
}

void ResidentWeights::PlanPlanes() {
  plane_of_.assign(size_t(mapper_->source.geometry.layers) * 2, -1);
  for (int32_t l = 0; l < mapper_->target.geometry.layers; ++l) {
    for (Component c : kv::kComponents) {
      for (const auto& source : mapper_->layer(l, c).planes(c)) {
        int32_t& index = plane_of_[PlaneIndex(source)];
        if (index < 0) {
          index = static_cast<int32_t>(planes_.size());
          planes_.push_back({.layer = source.layer, .component = source.component, .first_use = l});
        }
        planes_[index].last_use = l;
      }
    }
  }
}

void ResidentWeights::PlanSlots() {
  std::vector<int32_t> last_group;  // of the slot's plane
  for (Plane& plane : planes_) {
    const int32_t first = plane.first_use / kLayersPerGroup;
    const auto free = std::find_if(last_group.begin(), last_group.end(),
                                   [first](int32_t last) { return last < first; });
    plane.slot = static_cast<int32_t>(free - last_group.begin());
    if (free == last_group.end()) last_group.emplace_back();
    last_group[plane.slot] = plane.last_use / kLayersPerGroup;
  }
  slots_ = static_cast<int32_t>(last_group.size());
}

void ResidentWeights::PlanLayers() {
  const std::byte* weights = memory_.data();
  for (int32_t l = 0; l < mapper_->target.geometry.layers; ++l) {
    for (Component c : kv::kComponents) {
      const LayerMap& map = mapper_->layer(l, c);
      ResidentLayer layer{.support = map.support, .weights = weights};
      const std::vector<mapper::SourcePlane> planes = map.planes(c);
      if (map.support == Support::kFull) {
        for (const auto& plane : planes) {
          for (int32_t h = 0; h < blocking_.source_heads; ++h) {
            layer.segments.push_back({plane_of_[PlaneIndex(plane)], h});
          }
        }
      } else {
        layer.head_segments.resize(blocking_.target_heads);
        for (int32_t h = 0; h < blocking_.target_heads; ++h) {
          const int32_t head = map.head_source.empty() ? h : map.head_source[h];
          for (const auto& plane : planes) {
            layer.head_segments[h].push_back({plane_of_[PlaneIndex(plane)], head});
          }
        }
      }
      weights += HeadBytes(map, blocking_) * blocking_.target_heads;
      layers_.push_back(std::move(layer));
    }
  }
}

void ResidentWeights::PlanRotations() {
  for (int32_t l = 0; l < mapper_->source.geometry.layers; ++l) {
    source_rotation_.push_back(
        mapper_->strip_rope ? IndexOf(rotations_, mapper_->source.rope.ForLayer(l)) : -1);
  }
  for (int32_t l = 0; l < mapper_->target.geometry.layers; ++l) {
    target_rotation_.push_back(
        mapper_->strip_rope ? IndexOf(rotations_, mapper_->target.rope.ForLayer(l)) : -1);
  }
}

void ResidentWeights::FillSmall() {
  const int32_t padded = blocking_.padded_dim();
  const int32_t head_dim = mapper_->target.geometry.head_dim;
  const size_t bias_size = size_t(blocking_.target_heads) * padded;
  small_.resize(layers_.size() * (bias_size + padded));
  float* next = small_.data();
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto l = static_cast<int32_t>(i / 2);
    const auto c = static_cast<Component>(i % 2);
    const TensorRef& bias = mapper_->layer(l, c).bias;
    layers_[i].bias = next;
    for (int32_t h = 0; h < blocking_.target_heads; ++h) {
      const std::byte* row = bias.data.data() + h * head_dim * tensor::ByteSize(bias.dtype);
      tensor::DecodeRow(bias.dtype, row, 1, next + h * padded, head_dim);
    }
    next += bias_size;
    if (c == Component::kValue || mapper_->key_norm.kind != mapper::KeyNorm::Kind::kKNorm) continue;
    // A weight of zero says nothing about the length: the mean is taken over the other dimensions.
    int32_t count = 0;
    for (int32_t d = 0; d < head_dim; ++d) {
      const float gamma = mapper_->key_norm.gamma[l][d];
      if (std::abs(gamma) < FLT_MIN) continue;
      next[d] = 1 / gamma;
      ++count;
    }
    layers_[i].inv_gamma = next;
    layers_[i].inv_count = 1.0f / static_cast<float>(count);
    next += padded;
  }
}

absl::Status ResidentWeights::PackAll(const VerifyWeights& verify, base::WorkerPool& workers) {
  Packer packer(blocking_, mapper_->source.geometry.head_dim, mapper_->target.geometry.head_dim);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const LayerMap& map =
        mapper_->layer(static_cast<int32_t>(i / 2), static_cast<Component>(i % 2));
    packer.Add({.from = map.weight.data,
                .dtype = map.weight.dtype,
                .segments = static_cast<int32_t>(SegmentCount(map, blocking_)),
                .to = memory_.data() + (layers_[i].weights - memory_.data())});
  }
  if (verify) {
    KVB_RETURN_IF_ERROR(
        verify([&](std::span<const std::byte> piece) { packer.PackStepsEndingIn(piece); }));
  } else {
    packer.PackAll(workers);
  }
  if (const auto bad = packer.first_non_finite()) {
    return NotFinite(FieldName(static_cast<int32_t>(bad->tensor / 2),
                               static_cast<Component>(bad->tensor % 2), "weight"),
                     bad->head);
  }
  if (!packer.complete()) {
    return absl::InternalError("weights: expected all of them to be verified, got a part");
  }
  return CheckBiases();
}

absl::Status ResidentWeights::CheckBiases() const {
  const int64_t heads = blocking_.target_heads;
  for (size_t i = 0; i < layers_.size(); ++i) {
    for (int64_t j = 0; j < heads * blocking_.padded_dim(); ++j) {
      if (std::isfinite(layers_[i].bias[j])) continue;
      return NotFinite(
          FieldName(static_cast<int32_t>(i / 2), static_cast<Component>(i % 2), "bias"),
          static_cast<int32_t>(j / blocking_.padded_dim()));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvbridge::device::cpu
