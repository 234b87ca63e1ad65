// A block's columns, made ready for products on AMX.
//
// A number is taken as the sum of two BF16 numbers, h + l: its first 16 significant bits, off by at
// most 2^-17 of itself (caches have 8 bits). All four products of two numbers are exact and summed
// in FP32, so that what comes out are the products of the numbers h + l: a gram stays positive
// semidefinite.
//
// Thread contract: Pack and Multiply of different panels and runs may run beside each other; no
// Multiply before every Pack of its runs.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

#include "core/base/pages.h"

namespace kvbridge::fit {

class SplitColumns {
 public:
  // Whether this machine multiplies so: it has AMX-BF16.
  static bool Available();

  // What holds `rows` rows of runs of these widths takes.
  static uint64_t Bytes(std::span<const int64_t> widths, int64_t rows);

  // For blocks of up to `rows` rows. Columns come in runs of widths[i]; whole runs are multiplied.
  // RESOURCE_EXHAUSTED as base::Pages::Map. Needs Available().
  static absl::StatusOr<std::unique_ptr<SplitColumns>> Create(std::span<const int64_t> widths,
                                                              int64_t rows);

  // A run is packed in panels of up to 32 columns. In a row of what is packed runs follow each
  // other.
  struct Panel {
    int64_t begin;  // columns of the row
    int64_t end;
  };
  int64_t panels() const { return static_cast<int64_t>(panels_.size()); }
  const Panel& panel(int64_t p) const { return panels_[p]; }
  // Rows [0, rows), finite, of a panel. `first` is row 0; rows are `stride` floats apart.
  void Pack(int64_t panel, const float* first, int64_t stride, int64_t rows);

  // Of one thread that multiplies.
  class Scratch {
   private:
    friend SplitColumns;
    std::unique_ptr<base::Pages> features_;  // a chunk of run x, transposed
    std::unique_ptr<base::Pages> sums_;      // blocks of 32 x 32 floats
  };
  // RESOURCE_EXHAUSTED as base::Pages::Map.
  absl::StatusOr<Scratch> NewScratch() const;

  // product [widths[x], widths[y]] = X^T Y over the rows that were packed last. Of x == y only the
  // upper triangle is there.
  void Multiply(size_t x, size_t y, int64_t rows, Scratch& scratch, float* product) const;

 private:
  SplitColumns(std::span<const int64_t> widths, int64_t rows);

  // Steps of 32 rows from `chunk` on: those of h, then those of l.
  std::byte* chunk(int64_t panel, int64_t chunk) const;
  int64_t panels_of(size_t run) const { return first_panel_[run + 1] - first_panel_[run]; }

  const std::vector<int64_t> widths_;
  std::vector<int64_t> first_panel_;  // of each run, and the end
  std::vector<Panel> panels_;
  int64_t panel_bytes_ = 0;
  std::unique_ptr<base::Pages> memory_;
};

}  // namespace kvbridge::fit
