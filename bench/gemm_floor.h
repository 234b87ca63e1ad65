// The time to beat: the same products done by LibTorch with operands ready, in this process, on as
// many threads. Nothing else of a map is counted: no reading, un-rotating, bias, rotation, checks
// or storing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvbridge::bench {

struct FloorShape {
  int32_t products;  // weights, all distinct: target layers * 2
  int32_t heads;     // 1: one product per layer and component; else one per head
  int64_t tokens;
  int64_t features;  // of one product
  int64_t columns;   // of one product
};

// Thread contract: one thread.
class GemmFloor {
 public:
  virtual ~GemmFloor() = default;
  // Ways of doing the products: weight layouts, and batched or one by one.
  virtual std::vector<std::string> variants() const = 0;
  // All products once; seconds.
  virtual double Run(size_t variant) = 0;
};

// Null when built without LibTorch (KVBRIDGE_TORCH_DIR).
std::unique_ptr<GemmFloor> MakeGemmFloor(const FloorShape& shape, int threads);

}  // namespace kvbridge::bench
