#include "client/cli/number_checks.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace kvbridge::cli {
namespace {

std::string Check(const std::string& text, const char* expected, bool (*good)(double)) {
  double value = 0;
  if (absl::SimpleAtod(text, &value) && std::isfinite(value) && good(value)) return "";
  return absl::StrCat("expected ", expected, ", got ", text);
}

}  // namespace

std::string NonNegative(const std::string& text) {
  return Check(text, "a number, 0 or more", [](double v) { return v >= 0; });
}

std::string Positive(const std::string& text) {
  return Check(text, "a number above 0", [](double v) { return v > 0; });
}

}  // namespace kvbridge::cli
