#include "server/trace_context.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvbridge::server {
namespace {

using ::testing::MatchesRegex;

const std::string kTrace = "4bf92f3577b34da6a3ce929d0e0e4736";
const std::string kParent = "00f067aa0ba902b7";
const std::string kWhole = "00-" + kTrace + "-" + kParent + "-01";

TraceContext Of(const std::string& traceparent, const std::string& state = "") {
  Metadata metadata = {{"traceparent", traceparent}};
  if (!state.empty()) metadata.emplace("tracestate", state);
  return ContinueTrace(metadata);
}

TEST(TraceContextTest, ATraceGoesOnWithASpanOfItsOwn) {
  const TraceContext trace = Of(kWhole, "vendor=x");
  EXPECT_EQ(trace.trace_id, kTrace);
  EXPECT_EQ(trace.flags, "01");
  EXPECT_EQ(trace.state, "vendor=x");
  EXPECT_THAT(trace.span_id, MatchesRegex("[0-9a-f]+"));
  EXPECT_EQ(trace.span_id.size(), 16u);
  EXPECT_NE(trace.span_id, kParent);
  EXPECT_NE(trace.span_id, Of(kWhole).span_id);
  EXPECT_EQ(trace.traceparent(), "00-" + kTrace + "-" + trace.span_id + "-01");
}

TEST(TraceContextTest, WithoutOneNoneIsBegun) {
  EXPECT_TRUE(ContinueTrace({}).empty());
  const std::string state = "vendor=x";
  EXPECT_TRUE(ContinueTrace({{"tracestate", state}}).empty());
}

TEST(TraceContextTest, WhatIsNotWellFormedOrComesTwiceIsNone) {
  EXPECT_TRUE(Of(kWhole + "-extra").empty());
  EXPECT_TRUE(ContinueTrace({{"traceparent", kWhole}, {"traceparent", kWhole}}).empty());
}

// gRPC hands them on, and aborts whoever sends them.
TEST(TraceContextTest, AStateWithOtherThanPrintableAsciiIsDroppedWhole) {
  for (const char* state : {"a=\x01", "a=\t", "a=\n", "a=\x7f", "a=\x80\xff"}) {
    const TraceContext trace = Of(kWhole, state);
    EXPECT_EQ(trace.trace_id, kTrace);
    EXPECT_EQ(trace.state, "") << state;
  }
}

TEST(TraceContextTest, AStateTooLongIsDroppedWhole) {
  const std::string state = "vendor=" + std::string(600, 'x');
  const TraceContext trace = Of(kWhole, state);
  EXPECT_EQ(trace.trace_id, kTrace);
  EXPECT_EQ(trace.state, "");
}

}  // namespace
}  // namespace kvbridge::server
