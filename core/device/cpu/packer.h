// Lays weights out for the kernels, from wherever they are shown.
//
// The unit is a step: up to 32 features of one head, a run of bytes in the source and one block in
// each of the head's column blocks at the destination. Steps may be packed in any order and on
// several threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/worker_pool.h"
#include "core/device/cpu/blocking.h"
#include "core/tensor/dtype.h"

namespace kvbridge::device::cpu {

class Packer {
 public:
  // One weight tensor. Segments and heads are padded with zeros to whole steps and column blocks.
  struct Tensor {
    std::span<const std::byte> from;  // [heads, segments * rows, columns]
    tensor::DType dtype;              // kBf16 or kF32
    int32_t heads;
    int32_t segments;
    int32_t rows;     // of each segment
    int32_t columns;  // of each head
    std::byte* to;    // [heads][ceil(columns / 32)][segments * ceil(rows / 32)] steps

    int64_t steps() const { return int64_t{heads} * segments * CeilDiv(rows, kBlock); }
    int64_t blocks() const { return steps() * CeilDiv(columns, kBlock); }
  };
  struct Place {
    size_t tensor;  // in the order of Add
    int32_t head;
  };

  // `element_bytes` of what is packed: 2 for bf16, 4 for float.
  explicit Packer(int32_t element_bytes) : element_bytes_(element_bytes) {}

  // Before anything is packed. What is added is borrowed.
  void Add(const Tensor& tensor);

  // Packs the steps whose last byte lies in `piece`, an address range of memory that holds some of
  // the tensors whole. Pieces that do not overlap and together cover a tensor pack all of it. Any
  // thread.
  void PackStepsEndingIn(std::span<const std::byte> piece);
  void PackAll(base::WorkerPool& workers);

  // After all packing.
  std::optional<Place> first_non_finite() const;
  bool complete() const { return packed_ == steps_; }

 private:
  void PackStepsEndingIn(std::span<const std::byte> piece, size_t tensor);
  bool PackStep(const Tensor& tensor, int64_t step, class StepRows& rows) const;

  const int32_t element_bytes_;
  std::vector<Tensor> tensors_;
  int64_t steps_ = 0;
  std::atomic<int64_t> packed_{0};
  std::atomic<int64_t> first_bad_{INT64_MAX};  // tensor * 2^32 + head
};

}  // namespace kvbridge::device::cpu
