#include "core/device/cpu/product.h"

#include <algorithm>
#include <array>

#include "core/device/cpu/blocking.h"

namespace kvbridge::device::cpu {
namespace {

// Features multiplied between two visits to a block of results: 16 KiB of A stay in the first-level
// cache while 8 column blocks pass by.
constexpr int32_t kRoundSteps = 8;
constexpr int32_t kLine = 64;

// Some segments of a factor.
struct Round {
  const Factor& factor;
  int32_t first;
  int32_t count;
  bool accumulate;
};

void MultiplyBlock(const Product& product, const Round& round, const Gemm& gemm, int32_t block) {
  const Factor& factor = round.factor;
  std::array<const void*, kRoundSteps> a;
  for (int32_t s = 0; s < round.count; ++s) a[s] = factor.a(round.first + s, block);
  const int64_t segment_bytes = factor.steps * gemm.step_bytes;
  const int64_t column_bytes = factor.segments * segment_bytes;
  const int64_t round_bytes = round.count * segment_bytes;
  const auto step_lines = static_cast<int32_t>(gemm.step_bytes / kLine);
  GemmArgs args = {.a = a.data(),
                   .segments = round.count,
                   .steps = factor.steps,
                   .accumulate = round.accumulate,
                   .lines_b = CeilDiv(step_lines, product.blocks),
                   .lines_a = CeilDiv(step_lines, product.columns)};
  const std::byte* b = factor.weights + round.first * segment_bytes;
  for (int32_t column = 0; column < product.columns; ++column, b += column_bytes) {
    args.b = b;
    args.c = product.c + (int64_t{block} * product.columns + column) * kBlockElements;
    // The next round's weights, spread over the blocks, and the next block's features, over the
    // columns.
    args.prefetch_b =
        reinterpret_cast<const char*>(b) + round_bytes + block * (round_bytes / product.blocks);
    args.prefetch_a = factor.block_bytes + column * args.lines_a * kLine;
    gemm.multiply(args);
  }
}

std::vector<Round> RoundsOf(const Product& product) {
  std::vector<Round> rounds;
  for (const Factor& factor : product.factors) {
    const int32_t most = std::max(1, kRoundSteps / factor.steps);
    for (int32_t first = 0; first < factor.segments; first += most) {
      rounds.push_back({.factor = factor,
                        .first = first,
                        .count = std::min(most, factor.segments - first),
                        .accumulate = !rounds.empty()});
    }
  }
  return rounds;
}

}  // namespace

bool Multiply(const Product& product, const Gemm& gemm, const Wanted& wanted,
              absl::FunctionRef<void(int32_t block, const float* c)> finish) {
  const std::vector<Round> rounds = RoundsOf(product);
  for (size_t i = 0; i < rounds.size(); ++i) {
    if (!wanted.any()) return false;
    for (int32_t block = 0; block < product.blocks; ++block) {
      if (!wanted.this_one(block)) continue;
      MultiplyBlock(product, rounds[i], gemm, block);
      if (i + 1 < rounds.size()) continue;
      finish(block, product.c + int64_t{block} * product.columns * kBlockElements);
    }
  }
  return true;
}

}  // namespace kvbridge::device::cpu
