#include "core/guard/sample.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/safetensors_lite.h"

namespace kvbridge::guard {
namespace {

TEST(SampleTest, AgreesWithThePrototypeBitByBit) {
  const auto golden =
      nlohmann::json::parse(test::ReadTestFile("tests/data/golden/policy/shadow.json"));
  ASSERT_EQ(golden["cases"].size(), 48u);
  for (const auto& c : golden["cases"]) {
    const std::string salt = c["salt"], id = c["request_id"];
    const double bucket = SampleBucket(salt, id).value();
    EXPECT_EQ(bucket, std::strtod(c["bucket_hex"].get<std::string>().c_str(), nullptr)) << id;
    for (const auto& [rate, selected] : c["selected"].items()) {
      EXPECT_EQ(Sampled(salt, id, std::stod(rate)).value(), selected.get<bool>()) << id << rate;
    }
    EXPECT_EQ(Sampled(salt, id, bucket).value(), c["selected_at_rate_equal_bucket"].get<bool>());
    EXPECT_EQ(Sampled(salt, id, std::nextafter(bucket, 2)).value(),
              c["selected_at_next_double_above"].get<bool>());
  }
}

TEST(SampleTest, RatesOutsideTheUnitIntervalSaturateAndNanIsNever) {
  EXPECT_FALSE(Sampled("s", "id", -1).value());
  EXPECT_TRUE(Sampled("s", "id", 2).value());
  EXPECT_FALSE(Sampled("s", "id", std::numeric_limits<double>::quiet_NaN()).value());
}

}  // namespace
}  // namespace kvbridge::guard
