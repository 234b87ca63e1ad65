// Moments of disjoint sequences, added up.
#pragma once

#include <filesystem>
#include <stop_token>
#include <vector>

#include "absl/status/status.h"

namespace kvbridge::fit {

struct MergeOptions {
  bool overwrite = false;  // replace `out`, which may be one of the inputs
};

// Adds the moments in `inputs` up (Chan, Golub, LeVeque 1983), rows of one split with rows of the
// same. The order of `inputs` makes no difference to a bit; merging merged files agrees to FP64
// rounding. Inputs are mapped and the result is written a few rows at a time.
//   FAILED_PRECONDITION  another model than in the first, named
//   INVALID_ARGUMENT     a malformed file, another layout or kind of keys, or a sequence in two of
//                        them, named
//   ALREADY_EXISTS       `out`, without overwrite
//   CANCELLED            stopped; nothing is left
absl::Status MergeMoments(const std::vector<std::filesystem::path>& inputs,
                          const std::filesystem::path& out, const MergeOptions& options,
                          const std::stop_token& stop);

}  // namespace kvbridge::fit
