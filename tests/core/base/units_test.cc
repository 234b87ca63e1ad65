#include "core/base/units.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace kvbridge::base {
namespace {

TEST(HumanBytes, UsesTheLargestUnitBelowTheValue) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(1024), "1.0 KiB");
  EXPECT_EQ(HumanBytes(3 * kGiB / 2), "1.5 GiB");
  EXPECT_EQ(HumanBytes(UINT64_MAX), "16.0 EiB");
}

TEST(CheckedArithmetic, SaysWhenTheResultDoesNotFit) {
  uint64_t out = 0;
  EXPECT_TRUE(CheckedMul(uint64_t{1} << 31, uint64_t{1} << 32, &out));
  EXPECT_EQ(out, uint64_t{1} << 63);
  EXPECT_FALSE(CheckedMul(uint64_t{1} << 32, uint64_t{1} << 32, &out));
  EXPECT_FALSE(CheckedAdd(UINT64_MAX, 1, &out));
  EXPECT_TRUE(CheckedAdd(UINT64_MAX, 0, &out));
}

}  // namespace
}  // namespace kvbridge::base
