#include "proto/kvbridge/v1/traceparent.h"

#include "gtest/gtest.h"

namespace kvbridge::wire {
namespace {

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736";
const std::string kSpan = "00f067aa0ba902b7";
const std::string kWhole = "00-" + kTrace + "-" + kSpan + "-01";

TEST(TraceparentTest, IsReadAndWritten) {
  const auto parent = ParseTraceparent(kWhole);
  ASSERT_TRUE(parent.has_value());
  EXPECT_EQ(parent->trace_id, kTrace);
  EXPECT_EQ(parent->span_id, kSpan);
  EXPECT_EQ(parent->flags, "01");
  EXPECT_EQ(parent->ToString(), kWhole);
}

TEST(TraceparentTest, WhatIsNotWellFormedIsNone) {
  for (const std::string& bad :
       {std::string(), "ff" + kWhole.substr(2), kWhole.substr(0, kWhole.size() - 1),
        kWhole + "-extra", "00-4BF92F3577B34DA6A3CE929D0E0E4736-" + kSpan + "-01",
        "00-" + std::string(32, '0') + "-" + kSpan + "-01",
        "00-" + kTrace + "-" + std::string(16, '0') + "-01", "01" + kWhole.substr(2) + "x"}) {
    EXPECT_FALSE(ParseTraceparent(bad).has_value()) << bad;
  }
}

TEST(TraceparentTest, ALaterVersionMayBeLonger) {
  const std::string later = "cc" + kWhole.substr(2) + "-";
  EXPECT_EQ(ParseTraceparent(later + "what-comes")->trace_id, kTrace);
  for (const std::string& end :
       {std::string("\nauthorization: x"), std::string("\x80"), std::string(300, 'x')}) {
    EXPECT_FALSE(ParseTraceparent(later + end).has_value()) << end;
  }
}

}  // namespace
}  // namespace kvbridge::wire
