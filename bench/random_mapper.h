// A mapper of random weights, for benches that measure time and not what comes out.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/mapper/mapper.h"

namespace kvbridge::bench {

// Standard normal bf16 times `deviation`.
std::vector<std::byte> RandomBf16(size_t n, float deviation);

struct MapperShape {
  int layers = 28;  // of both models, like the rest
  int heads = 8;
  int head_dim = 128;
  int top_k = 8;  // source layers around each target layer
};

// Every layer's tensors refer to the same bytes: packing gives each its own.
struct MapperAndBytes {
  std::vector<std::byte> weight, bias;
  std::shared_ptr<mapper::Mapper> mapper = std::make_shared<mapper::Mapper>();
};

MapperAndBytes MakeMapper(const MapperShape& shape, mapper::Support support);

}  // namespace kvbridge::bench
