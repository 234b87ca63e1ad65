// The inner loops of the CPU backend, as one table of functions per instruction set.
//
// Sources that implement a table are compiled for instructions this machine may not have, so this
// header holds plain data and declarations only: an inline function here could be emitted there,
// chosen by the linker for everyone, and crash elsewhere.
//
// Everything is cut into blocks of 32 tokens, 32 columns and steps of 32 features. E is the element
// of the precision: bf16 or float.
//   A (features)  step: [2 strips][16 tokens][32 features] of E; steps of one head follow each
//   other. B (weights)   step: bf16 [2 halves][16 feature pairs][16 columns][2], float [32
//   features][32 columns]. C (results)   block: [32 tokens][32 columns] of float.
//
// finish and lay_bf16 may store past the caches: fence (_mm_sfence) before another thread reads.
//
// Thread contract: pure functions on the caller's memory. All pointers to blocks are 64-byte
// aligned.
#pragma once

#include <cstdint>

#include "core/rope/rope_row.h"

namespace kvbridge::device::cpu {

inline constexpr int32_t kBlock = 32;
inline constexpr int32_t kBlockElements = kBlock * kBlock;

// One block: C (+)= A B, accumulated in FP32 over features in ascending order, so that splitting
// the features over several calls changes no bit.
struct GemmArgs {
  const void* const* a;  // [segments] first step of each segment
  const void* b;         // [segments * steps] steps, one after the other
  float* c;
  int32_t segments;
  int32_t steps;    // per segment
  bool accumulate;  // false: C starts from zero
  // Read ahead into the second-level cache, in 64-byte lines per step: from `prefetch_b` on, and
  // `prefetch_a` bytes after each step of A.
  const char* prefetch_b;
  int32_t lines_b;
  int32_t lines_a;
  int64_t prefetch_a;
};

// What was seen in rows that were written.
struct RowStats {
  uint64_t non_finite;
  uint64_t saturated;
  uint32_t max_magnitude;  // bits of the largest finite |x|, before conversion
};

// One head of up to 32 tokens: bias, key renormalisation, RoPE, checks, conversion, store.
struct FinishArgs {
  const float* c;  // [padded_dim / 32] blocks
  int32_t rows;
  int32_t head_dim;
  int32_t padded_dim;  // head_dim rounded up to whole blocks, at most kMaxHeadDim
  const float* bias;   // [padded_dim], zero from head_dim on
  float scale;         // fitted factor, 1 if there is none
  // x := x / sqrt(sum((x * inv_gamma)^2) * inv_count + eps); null: not renormalised.
  const float* inv_gamma;  // [padded_dim], zero from head_dim on
  float inv_count;
  float eps;
  const rope::RopeRow* rope;  // [rows]; null: not rotated
  void* const* dst;           // [rows] first element of the head
  bool store_bf16;
  // All other stores: encodes head_dim floats, returns how many saturated.
  uint64_t (*encode)(uint8_t dtype, const float* src, float scale, void* dst, uint64_t n);
  uint8_t dtype;  // tensor::DType, handed to encode
  float dst_scale;
};

// One block of hidden activations, from a block of C to a step of A: relu(c + bias), where NaN
// stays NaN, and what is infinite becomes infinite or NaN.
struct ReluArgs {
  const float* c;
  const float* bias;  // [32]
  char* a;
  bool bf16;  // false: float
};

inline constexpr int32_t kMaxHeadDim = 1024;

// Tokens follow each other line by line within a step: lines of the eighth next token are fetched
// early.
inline constexpr int64_t kPackAhead = 8 * 64;

// One token's heads, from FP32 into its row of A's steps.
struct PackArgs {
  const float* src;  // [heads * head_dim]
  char* dst;         // row in the first step of the first head
  int32_t heads;
  int32_t head_dim;     // padded with zeros to whole steps
  int64_t head_stride;  // bytes between heads in dst
};

// One token's bf16 heads, into its row of A's bf16 steps, un-rotated on the way. Whole steps only:
// head_dim and rope->half are multiples of 32, and dimensions are paired by halves.
struct LayArgs {
  const char* src;            // first head
  int64_t src_stride;         // bytes between heads
  const rope::RopeRow* rope;  // null: as they are
  char* dst;                  // row in the first step of the first head
  int32_t heads;
  int32_t head_dim;
  int64_t dst_stride;  // bytes between heads
};

struct KernelSet {
  const char* name;
  void (*enter)();  // before and after a run of gemm calls on one thread
  void (*leave)();
  void (*gemm_bf16)(const GemmArgs& args);
  void (*gemm_f32)(const GemmArgs& args);
  void (*finish)(const FinishArgs& args, RowStats& stats);
  void (*pack_bf16)(const PackArgs& args);
  void (*lay_bf16)(const LayArgs& args);
  void (*relu)(const ReluArgs& args);
};

extern const KernelSet kPortableKernels;
extern const KernelSet kAvx2Kernels;    // AVX2, FMA
extern const KernelSet kAvx512Kernels;  // AVX-512 F, BW, DQ, VL, BF16
extern const KernelSet kAmxKernels;     // the same, and AMX-BF16

// Shared by kAvx512Kernels and kAmxKernels.
void Avx512GemmF32(const GemmArgs& args);
void Avx512Finish(const FinishArgs& args, RowStats& stats);
void Avx512PackBf16(const PackArgs& args);
void Avx512LayBf16(const LayArgs& args);
void Avx512Relu(const ReluArgs& args);

}  // namespace kvbridge::device::cpu
