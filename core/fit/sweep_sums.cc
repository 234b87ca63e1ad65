#include "core/fit/sweep_sums.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <tuple>

#include <cblas.h>

#include "core/base/mutex.h"
#include "core/base/status_macros.h"

namespace kvbridge::fit {
namespace {

// Columns that are centred together: their running sums stay in registers and L1.
constexpr int64_t kCentreColumns = 64;
// What the hardware does not foresee: rows lie far apart. Beyond the buffer it is harmless.
constexpr int64_t kRowsAhead = 16;
constexpr int64_t kLine = 16;  // floats

}  // namespace

SweepSums::SweepSums(const Sweep& sweep, const std::vector<ColumnTile>& columns,
                     base::WorkerPool* pool)
    : sweep_(sweep), columns_(columns), pool_(pool), index_of_(columns.size()) {
  for (const int32_t c : sweep.columns) {
    index_of_[c] = offsets_.size();
    offsets_.push_back(width_);
    width_ += columns[c].width;
  }
  stride_ = RowStride(width_);
  size_t size = 1 + 2 * static_cast<size_t>(width_);
  for (const Tile& tile : sweep.tiles) {
    tile_offsets_.push_back(size);
    const auto numbers = static_cast<size_t>(columns[tile.row].width * columns[tile.column].width);
    largest_tile_ = std::max(largest_tile_, numbers);
    size += numbers;
  }
  deltas_.resize(static_cast<size_t>(width_));
  residuals_.resize(static_cast<size_t>(width_));
  state_size_ = size;
}

absl::StatusOr<std::unique_ptr<SweepSums>> SweepSums::Create(const Sweep& sweep,
                                                             const std::vector<ColumnTile>& columns,
                                                             bool amx, base::WorkerPool* pool) {
  std::unique_ptr<SweepSums> sums(new SweepSums(sweep, columns, pool));
  KVB_ASSIGN_OR_RETURN(sums->rows_, base::Pages::Map(kBlockRows * sums->stride_ * sizeof(float)));
  KVB_ASSIGN_OR_RETURN(sums->state_, base::Pages::Map(sums->state_size_ * sizeof(double)));
  if (amx) {
    const std::vector<int64_t> widths = WidthsOf(sweep, columns);
    KVB_ASSIGN_OR_RETURN(sums->split_, SplitColumns::Create(widths, kBlockRows));
  }
  KVB_RETURN_IF_ERROR(sums->MakeScratch());
  return sums;
}

// Pages that no tile reaches are never touched.
absl::Status SweepSums::MakeScratch() {
  scratch_.resize(static_cast<size_t>(pool_->threads()));
  for (Scratch& scratch : scratch_) {
    KVB_ASSIGN_OR_RETURN(scratch.product, base::Pages::Map(largest_tile_ * sizeof(float)));
    if (split_ == nullptr) continue;
    KVB_ASSIGN_OR_RETURN(scratch.split, split_->NewScratch());
  }
  return absl::OkStatus();
}

std::span<const double> SweepSums::mean(size_t i) const {
  return state().subspan(1 + offsets_[i], columns_[sweep_.columns[i]].width);
}

std::span<const double> SweepSums::sum_of_squares(size_t i) const {
  return state().subspan(1 + width_ + offsets_[i], columns_[sweep_.columns[i]].width);
}

std::span<double> SweepSums::tile(size_t t) const {
  const Tile& tile = sweep_.tiles[t];
  return state().subspan(tile_offsets_[t], columns_[tile.row].width * columns_[tile.column].width);
}

void SweepSums::MirrorDiagonal() {
  for (size_t t = 0; t < sweep_.tiles.size(); ++t) {
    if (sweep_.tiles[t].row != sweep_.tiles[t].column) continue;
    const int64_t n = columns_[sweep_.tiles[t].row].width;
    double* sums = tile(t).data();
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < i; ++j) sums[i * n + j] = sums[j * n + i];
    }
  }
}

SweepSums::NotFinite SweepSums::Locate(int64_t column, int64_t rows) const {
  int64_t row = 0;
  while (row < rows - 1 && std::isfinite(buffer()[row * stride_ + column])) ++row;
  const auto i = static_cast<size_t>(std::upper_bound(offsets_.begin(), offsets_.end(), column) -
                                     offsets_.begin() - 1);
  return {row, i, column - offsets_[i]};
}

// Columns [begin, end), at most kCentreColumns. The running means move on to include the block.
std::optional<SweepSums::NotFinite> SweepSums::Centre(std::span<const float> weights, int64_t begin,
                                                      int64_t end) {
  const int64_t n = end - begin, rows = static_cast<int64_t>(weights.size());
  double sums[kCentreColumns] = {};
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = buffer() + r * stride_ + begin;
    for (int64_t j = 0; j < n; j += kLine) __builtin_prefetch(row + kRowsAhead * stride_ + j);
    const double w = weights[r];
    for (int64_t j = 0; j < n; ++j) sums[j] += w * row[j];
  }
  float shift[kCentreColumns];
  for (int64_t j = 0; j < n; ++j) {
    if (!std::isfinite(sums[j])) return Locate(begin + j, rows);
    shift[j] = static_cast<float>(sums[j] / block_weight_);
  }
  double residuals[kCentreColumns] = {}, squares[kCentreColumns] = {};
  for (int64_t r = 0; r < rows; ++r) {
    float* row = buffer() + r * stride_ + begin;
    const double w = weights[r];
    const float root = std::sqrt(weights[r]);
    for (int64_t j = 0; j < n; ++j) {
      const float centred = row[j] - shift[j];
      residuals[j] += w * centred;
      squares[j] += w * centred * centred;
      row[j] = root * centred;
    }
  }
  const double total = weight() + block_weight_;
  for (int64_t j = 0; j < n; ++j) {
    double& mean = means()[begin + j];
    const double residual = residuals[j] / block_weight_;
    const double delta = sums[j] / block_weight_ - mean;
    mean += delta * (block_weight_ / total);
    squared_sums()[begin + j] +=
        squares[j] - block_weight_ * residual * residual + correction_ * delta * delta;
    residuals_[begin + j] = residual;
    deltas_[begin + j] = delta;
  }
  return std::nullopt;
}

void SweepSums::Multiply(const Tile& tile, int64_t rows, Scratch& scratch) const {
  auto* product = scratch.product->as<float>();
  if (split_ != nullptr) {
    split_->Multiply(index_of_[tile.row], index_of_[tile.column], rows, scratch.split, product);
    return;
  }
  const int64_t x = offsets_[index_of_[tile.row]], y = offsets_[index_of_[tile.column]];
  const auto m = static_cast<int>(columns_[tile.row].width);
  const auto n = static_cast<int>(columns_[tile.column].width);
  const auto k = static_cast<int>(rows), stride = static_cast<int>(stride_);
  if (tile.row == tile.column) {
    cblas_ssyrk(CblasRowMajor, CblasUpper, CblasTrans, n, k, 1, buffer() + x, stride, 0, product,
                n);
  } else {
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, m, n, k, 1, buffer() + x, stride,
                buffer() + y, stride, 0, product, n);
  }
}

void SweepSums::AddTile(size_t t, int64_t rows, Scratch& scratch) {
  const Tile& tile = sweep_.tiles[t];
  Multiply(tile, rows, scratch);
  const int64_t x = offsets_[index_of_[tile.row]], y = offsets_[index_of_[tile.column]];
  const int64_t m = columns_[tile.row].width, n = columns_[tile.column].width;
  const float* product = scratch.product->as<float>();
  double* sums = state().data() + tile_offsets_[t];
  const double* deltas = deltas_.data() + y;
  const double* residuals = residuals_.data() + y;
  for (int64_t i = 0; i < m; ++i, sums += n, product += n) {
    const double delta = correction_ * deltas_[x + i];
    const double residual = block_weight_ * residuals_[x + i];
    for (int64_t j = tile.row == tile.column ? i : 0; j < n; ++j) {
      sums[j] += product[j] + delta * deltas[j] - residual * residuals[j];
    }
  }
}

std::optional<SweepSums::NotFinite> SweepSums::AddBlock(std::span<const float> weights) {
  const auto rows = static_cast<int64_t>(weights.size());
  block_weight_ = 0;
  for (const float w : weights) block_weight_ += w;
  correction_ = weight() * block_weight_ / (weight() + block_weight_);

  // Columns that were just centred are packed while they are in a cache.
  const int64_t chunks = split_ ? split_->panels() : (width_ + kCentreColumns - 1) / kCentreColumns;
  base::Mutex mutex;
  std::optional<NotFinite> first;
  pool_->ParallelFor(chunks, [&](int64_t c) {
    const int64_t begin = split_ ? split_->panel(c).begin : c * kCentreColumns;
    const int64_t end = split_ ? split_->panel(c).end : std::min(width_, begin + kCentreColumns);
    const auto found = Centre(weights, begin, end);
    if (!found) {
      if (split_) split_->Pack(c, buffer(), stride_, rows);
      return;
    }
    const base::MutexLock lock(&mutex);
    const auto place = [](const NotFinite& f) { return std::tie(f.row, f.column_tile, f.column); };
    if (!first || place(*found) < place(*first)) first = found;
  });
  if (first) return first;

  // Which lane takes a tile changes nothing in the tile.
  std::atomic<size_t> next{0};
  pool_->ParallelFor(pool_->threads(), [&](int64_t lane) {
    for (size_t t; (t = next.fetch_add(1)) < sweep_.tiles.size();) AddTile(t, rows, scratch_[lane]);
  });
  weight() += block_weight_;
  return std::nullopt;
}

}  // namespace kvbridge::fit
