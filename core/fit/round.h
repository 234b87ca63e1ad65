// Rounding weights to BF16 with the Gram in hand.
//
// What counts is |R (W - Q)|, with R^T R = G + lambda I, not |W - Q|. Rows are rounded from the
// last to the first; each one first takes up what the errors of the rows after it did to its row of
// the residual (Babai's nearest plane; the same as GPTQ, arXiv 2210.17323, in the opposite order,
// but with the factor that the solve has already).
//
// Thread contract: pure functions.
#pragma once

#include "core/fit/dense.h"
#include "core/fit/ridge.h"

namespace kvbridge::fit {

// Each weight to the nearest BF16 value, ties to even.
Matrix RoundPlain(const Matrix& weight);
// With error feedback.
Matrix RoundWithFeedback(const Ridge& ridge);

}  // namespace kvbridge::fit
