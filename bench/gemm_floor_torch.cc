#include <chrono>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>

#include "bench/gemm_floor.h"

namespace kvbridge::bench {
namespace {

// Distinct inputs are few, since at 4,096 tokens one is 64 MiB; weights are all distinct, as in a
// mapper.
constexpr int32_t kInputs = 2;

class TorchFloor final : public GemmFloor {
 public:
  TorchFloor(const FloorShape& s, int threads) : shape_(s) {
    const c10::InferenceMode guard;
    at::set_num_threads(threads);
    const auto random = [](at::IntArrayRef size) { return at::randn(size).to(at::kBFloat16); };
    for (int32_t i = 0; i < kInputs; ++i) {
      inputs_.push_back(random({s.heads, s.tokens, s.features}));
      outputs_.push_back(at::empty({s.heads, s.tokens, s.columns}, at::kBFloat16));
    }
    const at::Tensor one = random({s.heads, s.features, s.columns});
    for (int32_t i = 0; i < s.products; ++i) {
      row_major_.push_back(one.clone());
      column_major_.push_back(one.transpose(1, 2).contiguous().transpose(1, 2));
    }
  }

  std::vector<std::string> variants() const override {
    std::vector<std::string> names = {"mm [F,N]", "mm [N,F]^T"};
    if (shape_.heads > 1) names.insert(names.end(), {"bmm [F,N]", "bmm [N,F]^T"});
    return names;
  }

  double Run(size_t variant) override {
    const c10::InferenceMode guard;
    const auto& weights = variant % 2 == 0 ? row_major_ : column_major_;
    const auto start = std::chrono::steady_clock::now();
    for (size_t i = 0; i < weights.size(); ++i) {
      const at::Tensor& x = inputs_[i % kInputs];
      at::Tensor& y = outputs_[i % kInputs];
      if (variant >= 2) {
        at::bmm_out(y, x, weights[i]);
        continue;
      }
      for (int32_t h = 0; h < shape_.heads; ++h) {
        at::Tensor out = y.select(0, h);
        at::mm_out(out, x.select(0, h), weights[i].select(0, h));
      }
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

 private:
  const FloorShape shape_;
  std::vector<at::Tensor> inputs_, outputs_;
  std::vector<at::Tensor> row_major_, column_major_;
};

}  // namespace

std::unique_ptr<GemmFloor> MakeGemmFloor(const FloorShape& shape, int threads) {
  return std::make_unique<TorchFloor>(shape, threads);
}

}  // namespace kvbridge::bench
