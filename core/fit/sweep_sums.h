// The sums of one sweep: rows in, centred second moments out.
//
// A block of up to kBlockRows rows is centred on its own mean (rounded to FP32), multiplied in FP32
// and added to FP64 sums with the exact correction for the difference of means (Chan, Golub,
// LeVeque 1983):  M += B - w r_x r_y + (W w / (W + w)) d_x d_y,  with B the block's products about
// its rounded mean, w its weight, r what is left of its mean, W the weight so far, and d the
// difference of the means. Rows of weight other than 1 are scaled by its square root.
//
// B comes from AMX where asked for (split_columns.h says how exact it is), else from OpenBLAS.
//
// Thread contract: one thread; the work inside is spread over the pool. OpenBLAS is called from the
// pool's threads; each call must stay on its own thread: a SingleThreadedBlas lives (dense.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "core/base/pages.h"
#include "core/base/worker_pool.h"
#include "core/fit/accumulate_plan.h"
#include "core/fit/split_columns.h"

namespace kvbridge::fit {

class SweepSums {
 public:
  // `sweep` and `columns` outlive it. `amx` needs SplitColumns::Available(). RESOURCE_EXHAUSTED as
  // base::Pages::Map.
  static absl::StatusOr<std::unique_ptr<SweepSums>> Create(const Sweep& sweep,
                                                           const std::vector<ColumnTile>& columns,
                                                           bool amx, base::WorkerPool* pool);

  // Where row `r` of the block's columns of sweep.columns[i] go.
  float* row(int64_t r, size_t i) { return buffer() + r * stride_ + offsets_[i]; }
  int64_t stride() const { return stride_; }

  // A number in the block that is not finite.
  struct NotFinite {
    int64_t row = 0;
    size_t column_tile = 0;  // index into sweep.columns
    int64_t column = 0;      // in that tile
  };
  // Adds the first weights.size() rows and leaves the buffer spent. NotFinite ends the sweep: the
  // sums are spoilt.
  std::optional<NotFinite> AddBlock(std::span<const float> weights);

  // Everything summed so far, for checkpoints.
  std::span<double> state() const { return {state_->as<double>(), state_size_}; }

  // Results: vectors of sweep.columns[i], and tile t. Of tiles on the diagonal only the upper
  // triangle is there before MirrorDiagonal.
  std::span<const double> mean(size_t i) const;
  std::span<const double> sum_of_squares(size_t i) const;
  std::span<double> tile(size_t t) const;
  void MirrorDiagonal();

 private:
  SweepSums(const Sweep& sweep, const std::vector<ColumnTile>& columns, base::WorkerPool* pool);

  std::optional<NotFinite> Centre(std::span<const float> weights, int64_t begin, int64_t end);
  // Of one lane that multiplies.
  struct Scratch {
    std::unique_ptr<base::Pages> product;  // floats of the largest tile
    SplitColumns::Scratch split;           // with split_ only
  };
  absl::Status MakeScratch();

  void Multiply(const Tile& tile, int64_t rows, Scratch& scratch) const;
  void AddTile(size_t t, int64_t rows, Scratch& scratch);
  NotFinite Locate(int64_t column, int64_t rows) const;

  float* buffer() const { return rows_->as<float>(); }
  double& weight() const { return state()[0]; }
  double* means() const { return state().data() + 1; }
  double* squared_sums() const { return means() + width_; }

  const Sweep& sweep_;
  const std::vector<ColumnTile>& columns_;
  base::WorkerPool* const pool_;
  int64_t width_ = 0;                    // columns in the buffer
  int64_t stride_ = 0;                   // of its rows, in floats
  std::vector<int64_t> offsets_;         // of each column tile in a row
  std::vector<size_t> index_of_;         // column tile -> its place in sweep.columns
  std::vector<size_t> tile_offsets_;     // in state_
  size_t largest_tile_ = 0;              // numbers
  std::unique_ptr<base::Pages> rows_;    // floats [kBlockRows, stride_]
  std::unique_ptr<SplitColumns> split_;  // runs are sweep_.columns; null: OpenBLAS multiplies
  std::vector<Scratch> scratch_;         // of each lane
  // Of the block, [width_]: its mean less the mean so far, and less its mean rounded to FP32.
  std::vector<double> deltas_;
  std::vector<double> residuals_;
  double block_weight_ = 0;
  double correction_ = 0;               // W w / (W + w)
  std::unique_ptr<base::Pages> state_;  // doubles: weight, means, sums of squares, tiles
  size_t state_size_ = 0;
};

}  // namespace kvbridge::fit
