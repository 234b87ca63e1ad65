#include "core/artifact/fit_r2.h"

#include <cmath>

#include "gtest/gtest.h"

namespace kvbridge::artifact {
namespace {

FitR2 Of(const char* calibration) {
  return FitR2Of({.calibration = base::Json::parse(calibration)});
}

TEST(FitR2Test, HeldOutRowsCountWhereThereWereAny) {
  const FitR2 fit = Of(R"({"layers": [
      {"key": {"r2_in_sample": 0.9, "r2_held_out": 0.5}, "value": {"r2_in_sample": 0.75}},
      {"key": {"r2_in_sample": 0.8, "r2_held_out": 0.75},
       "value": {"r2_in_sample": 0.25, "r2_held_out": null}}]})");
  EXPECT_EQ(fit.keys.min, 0.5);
  EXPECT_EQ(fit.keys.mean, 0.625);
  EXPECT_EQ(fit.values.min, 0.25);
  EXPECT_EQ(fit.values.mean, 0.5);
}

TEST(FitR2Test, ThePrototypesListsAreRead) {
  const FitR2 fit = Of(R"({"prototype": {"fit_key_r2": [0.5, 1.0], "fit_value_r2": []}})");
  EXPECT_EQ(fit.keys.min, 0.5);
  EXPECT_EQ(fit.keys.mean, 0.75);
  EXPECT_TRUE(std::isnan(fit.values.min) && std::isnan(fit.values.mean));
}

TEST(FitR2Test, WhatIsNotSaidOrNotUnderstoodIsNotANumber) {
  for (const char* calibration :
       {"{}", "null", "[1]", R"({"layers": 3})", R"({"layers": [{"key": {"r2_in_sample": 1}}, 7]})",
        R"({"layers": [{"key": {"r2_held_out": "good"}}]})",
        R"({"prototype": {"fit_key_r2": "x"}})"}) {
    EXPECT_TRUE(std::isnan(Of(calibration).keys.mean)) << calibration;
  }
}

}  // namespace
}  // namespace kvbridge::artifact
