#include "core/evidence/random_map.h"

#include <cmath>
#include <cstddef>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "core/tensor/convert.h"

namespace kvbridge::evidence {
namespace {

// What the random weights lie in, with the storage of the biases.
struct Storage {
  std::vector<std::vector<std::byte>> weights;
  std::shared_ptr<const void> rest;
};

// One head's block of a weight, or a hidden layer's.
void Randomize(tensor::DType dtype, std::span<const std::byte> from, std::mt19937_64& engine,
               std::byte* to) {
  std::vector<float> block(from.size() / tensor::ByteSize(dtype));
  tensor::DecodeRow(dtype, from.data(), 1, block.data(), block.size());
  double squares = 0;
  for (const float weight : block) squares += double{weight} * weight;
  const auto rms = static_cast<float>(std::sqrt(squares / static_cast<double>(block.size())));
  for (float& weight : block) weight = (engine() >> 63) != 0 ? rms : -rms;
  tensor::EncodeRow(dtype, block.data(), 1, to, block.size());
}

}  // namespace

mapper::Mapper RandomMap(const mapper::Mapper& mapper, uint64_t seed) {
  mapper::Mapper out = mapper;
  auto storage = std::make_shared<Storage>();
  storage->rest = mapper.storage;
  std::mt19937_64 engine(seed);
  const auto randomize = [&](mapper::TensorRef& weight, int64_t blocks) {
    const std::span<const std::byte> from = weight.data;
    std::vector<std::byte>& to = storage->weights.emplace_back(from.size());
    const size_t block = from.size() / static_cast<size_t>(blocks);
    for (size_t begin = 0; begin < from.size(); begin += block) {
      Randomize(weight.dtype, from.subspan(begin, block), engine, to.data() + begin);
    }
    weight.data = to;
  };
  for (auto* layers : {&out.keys, &out.values}) {
    for (mapper::LayerMap& layer : *layers) {
      randomize(layer.weight, out.target.geometry.kv_heads);
      for (mapper::HiddenLayer& hidden : layer.hidden) randomize(hidden.weight, 1);
      if (!layer.hidden.empty()) randomize(layer.out, out.target.geometry.kv_heads);
    }
  }
  out.storage = std::move(storage);
  return out;
}

}  // namespace kvbridge::evidence
