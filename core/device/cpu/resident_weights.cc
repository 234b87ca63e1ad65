#include "core/device/cpu/resident_weights.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "absl/strings/str_cat.h"
#include <sys/mman.h>

#include "core/base/status_macros.h"
#include "core/base/units.h"
#include "core/device/cpu/packer.h"
#include "core/tensor/convert.h"

namespace kvbridge::device::cpu {
namespace {

using kv::Component;
using mapper::LayerMap;
using mapper::Mapper;
using mapper::Support;
using mapper::TensorRef;

// Workers have the system back and clear the pages before anything is written: what it clears lies
// in the caches, and the packer's stores, which bypass those, are several times slower where that
// was just now. Pages lie on the NUMA nodes of the workers that asked for them.
absl::StatusOr<std::unique_ptr<base::Pages>> AllocateWeights(size_t bytes,
                                                             base::WorkerPool& workers) {
  constexpr size_t kLarge = base::Pages::kLarge;
  auto pages = base::Pages::MapLarge(bytes);
  if (!pages.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("weights: the system has no ", base::HumanBytes(bytes), " to give"));
  }
  auto* data = (*pages)->as<std::byte>();
  workers.ParallelFor(static_cast<int64_t>((bytes + kLarge - 1) / kLarge), [&](int64_t i) {
    const size_t begin = static_cast<size_t>(i) * kLarge;
    madvise(data + begin, std::min(kLarge, bytes - begin), MADV_POPULATE_WRITE);
  });
  return pages;
}

Blocking BlockingOf(const Mapper& m, Precision precision) {
  const model::KvGeometry& source = m.source.geometry;
  const model::KvGeometry& target = m.target.geometry;
  return {.element_bytes = precision == Precision::kBf16 ? 2 : 4,
          .source_heads = source.kv_heads,
          .head_steps = CeilDiv(source.head_dim, kBlock),
          .target_heads = target.kv_heads,
          .head_columns = CeilDiv(target.head_dim, kBlock)};
}

// The tensors of a map in the order they lie in, each without a place: the linear part's, empty
// where there is none, then the network's.
std::vector<Packer::Tensor> TensorsOf(const LayerMap& map, const Mapper& m) {
  const model::KvGeometry& source = m.source.geometry;
  const model::KvGeometry& target = m.target.geometry;
  const auto segments = static_cast<int32_t>(map.inputs(source) / source.head_dim);
  std::vector<Packer::Tensor> tensors = {
      {.from = map.weight.data,
       .dtype = map.weight.dtype,
       .heads = target.kv_heads,
       .segments = static_cast<int32_t>(map.features(source) / source.head_dim),
       .rows = source.head_dim,
       .columns = target.head_dim}};
  int32_t width = 0;
  for (const mapper::HiddenLayer& layer : map.hidden) {
    tensors.push_back({.from = layer.weight.data,
                       .dtype = layer.weight.dtype,
                       .heads = 1,
                       .segments = width == 0 ? segments : 1,
                       .rows = width == 0 ? source.head_dim : width,
                       .columns = static_cast<int32_t>(layer.width())});
    width = tensors.back().columns;
  }
  if (width == 0) return tensors;
  tensors.push_back({.from = map.out.data,
                     .dtype = map.out.dtype,
                     .heads = target.kv_heads,
                     .segments = 1,
                     .rows = width,
                     .columns = target.head_dim});
  return tensors;
}

int64_t BlocksOf(const LayerMap& map, const Mapper& m) {
  int64_t blocks = 0;
  for (const Packer::Tensor& tensor : TensorsOf(map, m)) blocks += tensor.blocks();
  return blocks;
}

std::string FieldName(int32_t layer, Component c, absl::string_view tensor) {
  return absl::StrCat(c == Component::kKey ? "keys" : "values", "[", layer, "].", tensor);
}

absl::Status NotFinite(const std::string& field, int32_t head) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected finite numbers, got NaN or infinity in head ", head));
}

bool AllFinite(const float* values, int64_t n) {
  return std::all_of(values, values + n, [](float value) { return std::isfinite(value); });
}

void Decode(const TensorRef& tensor, int64_t first, float* out, int64_t n) {
  tensor::DecodeRow(tensor.dtype, tensor.data.data() + first * tensor::ByteSize(tensor.dtype), 1,
                    out, n);
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
  int64_t blocks = 0;
  for (const auto* component : {&mapper->keys, &mapper->values}) {
    for (const LayerMap& map : *component) blocks += BlocksOf(map, *mapper);
  }
  KVB_ASSIGN_OR_RETURN(auto memory, AllocateWeights(blocks * blocking.step_bytes(), workers));
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
  const std::byte* weights = memory_->as<std::byte>();
  for (int32_t l = 0; l < mapper_->target.geometry.layers; ++l) {
    for (Component c : kv::kComponents) {
      const LayerMap& map = mapper_->layer(l, c);
      ResidentLayer layer{.support = map.support, .weights = weights};
      const std::vector<mapper::SourcePlane> planes = map.planes(c);
      if (map.support == Support::kFull || !map.hidden.empty()) {
        for (const auto& plane : planes) {
          for (int32_t h = 0; h < blocking_.source_heads; ++h) {
            layer.segments.push_back({plane_of_[PlaneIndex(plane)], h});
          }
        }
      }
      if (map.support == Support::kHeadLocal) {
        layer.head_segments.resize(blocking_.target_heads);
        for (int32_t h = 0; h < blocking_.target_heads; ++h) {
          const int32_t head = map.head_source.empty() ? h : map.head_source[h];
          for (const auto& plane : planes) {
            layer.head_segments[h].push_back({plane_of_[PlaneIndex(plane)], head});
          }
        }
      }
      layer.network = PlanNetwork(map, weights);
      weights += BlocksOf(map, *mapper_) * blocking_.step_bytes();
      layers_.push_back(std::move(layer));
    }
  }
}

// `weights`: where the map's tensors begin.
ResidentNetwork ResidentWeights::PlanNetwork(const LayerMap& map, const std::byte* weights) const {
  ResidentNetwork network{};
  const std::vector<Packer::Tensor> tensors = TensorsOf(map, *mapper_);
  for (size_t i = 1; i < tensors.size(); ++i) {
    weights += tensors[i - 1].blocks() * blocking_.step_bytes();
    if (i + 1 == tensors.size()) {
      network.out = weights;
    } else {
      network.layers.push_back(
          {.weights = weights, .bias = nullptr, .columns = CeilDiv(tensors[i].columns, kBlock)});
    }
  }
  return network;
}

int32_t ResidentWeights::network_columns() const {
  int32_t most = 0;
  for (const ResidentLayer& layer : layers_) most = std::max(most, layer.network.columns());
  return most;
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
  size_t size = layers_.size() * (bias_size + padded);
  for (const ResidentLayer& layer : layers_) size += size_t(layer.network.columns()) * kBlock;
  small_.resize(size);
  float* next = small_.data();
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto l = static_cast<int32_t>(i / 2);
    const auto c = static_cast<Component>(i % 2);
    const LayerMap& map = mapper_->layer(l, c);
    layers_[i].bias = next;
    for (int32_t h = 0; h < blocking_.target_heads; ++h) {
      Decode(map.bias, int64_t{h} * head_dim, next + h * padded, head_dim);
    }
    next += bias_size;
    for (size_t j = 0; j < map.hidden.size(); ++j) {
      layers_[i].network.layers[j].bias = next;
      Decode(map.hidden[j].bias, 0, next, map.hidden[j].width());
      next += layers_[i].network.layers[j].columns * kBlock;
    }
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
  Packer packer(blocking_.element_bytes);
  std::vector<std::string> names;
  std::byte* to = memory_->as<std::byte>();
  for (int32_t l = 0; l < mapper_->target.geometry.layers; ++l) {
    for (Component c : kv::kComponents) {
      std::vector<Packer::Tensor> tensors = TensorsOf(mapper_->layer(l, c), *mapper_);
      for (size_t j = 0; j < tensors.size(); ++j) {
        tensors[j].to = to;
        to += tensors[j].blocks() * blocking_.step_bytes();
        packer.Add(tensors[j]);
        names.push_back(FieldName(l, c,
                                  j == 0                    ? "weight"
                                  : j + 1 == tensors.size() ? "out"
                                                            : absl::StrCat("hidden[", j - 1, "]")));
      }
    }
  }
  if (verify) {
    KVB_RETURN_IF_ERROR(
        verify([&](std::span<const std::byte> piece) { packer.PackStepsEndingIn(piece); }));
  } else {
    packer.PackAll(workers);
  }
  if (const auto bad = packer.first_non_finite()) {
    return NotFinite(names[bad->tensor], bad->head);
  }
  if (!packer.complete()) {
    return absl::InternalError("weights: expected all of them to be verified, got a part");
  }
  return CheckBiases();
}

absl::Status ResidentWeights::CheckBiases() const {
  const int32_t padded = blocking_.padded_dim();
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto name = [i](absl::string_view tensor) {
      return FieldName(static_cast<int32_t>(i / 2), static_cast<Component>(i % 2), tensor);
    };
    for (int32_t h = 0; h < blocking_.target_heads; ++h) {
      if (!AllFinite(layers_[i].bias + int64_t{h} * padded, padded)) {
        return NotFinite(name("bias"), h);
      }
    }
    const std::vector<ResidentNetwork::Layer>& hidden = layers_[i].network.layers;
    for (size_t j = 0; j < hidden.size(); ++j) {
      if (!AllFinite(hidden[j].bias, int64_t{hidden[j].columns} * kBlock)) {
        return NotFinite(name(absl::StrCat("hidden[", j, "].bias")), 0);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace kvbridge::device::cpu
