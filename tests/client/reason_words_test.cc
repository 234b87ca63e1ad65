#include "client/cpp/reason_words.h"

#include <set>

#include <gtest/gtest.h>

namespace kvbridge::client {
namespace {

TEST(ReasonWordsTest, ReasonsAreTheWiresInLowerCase) {
  EXPECT_EQ(ReasonWord(v1::REASON_UNSPECIFIED), "");
  EXPECT_EQ(ReasonWord(v1::REASON_LATENCY_BUDGET), "latency_budget");
  EXPECT_EQ(ReasonWord(v1::REASON_DEVICE_OOM), "device_oom");
  EXPECT_EQ(ReasonClassWord(v1::REASON_CLASS_CAPACITY), "capacity");
  EXPECT_EQ(ReasonWord(static_cast<v1::Reason>(999)), "internal");
  std::set<std::string> words;
  for (int i = v1::Reason_MIN; i <= v1::Reason_MAX; ++i) {
    words.insert(ReasonWord(static_cast<v1::Reason>(i)));
  }
  EXPECT_EQ(words.size(), 23u);
}

TEST(ReasonWordsTest, ACallThatBrokeIsAFallbackWithItsReason) {
  const auto reason = [](const absl::Status& status, bool accepted) {
    TransferResult result;
    SetFallback(status, accepted, &result);
    EXPECT_EQ(result.outcome, v1::OUTCOME_FALLBACK_REPREFILL);
    EXPECT_EQ(result.detail, "why");
    return result.reason + "/" + result.reason_class;
  };
  EXPECT_EQ(reason(absl::UnavailableError("why"), false), "unreachable/infra");
  EXPECT_EQ(reason(absl::UnavailableError("why"), true), "transport/infra");
  EXPECT_EQ(reason(absl::UnimplementedError("why"), false), "unreachable/infra");
  EXPECT_EQ(reason(absl::DeadlineExceededError("why"), true), "deadline_exceeded/capacity");
  EXPECT_EQ(reason(absl::ResourceExhaustedError("why"), false), "overload/capacity");
  EXPECT_EQ(reason(absl::InvalidArgumentError("why"), true), "invalid_request/client");
  EXPECT_EQ(reason(absl::DataLossError("why"), true), "transport/infra");
  EXPECT_EQ(reason(absl::UnknownError("why"), true), "internal/internal");
}

TEST(ReasonWordsTest, CallersThatAskedToFailGetACode) {
  const auto code = [](const char* reason, const char* reason_class) {
    TransferResult result;
    result.reason = reason;
    result.reason_class = reason_class;
    return ToStatus(result).code();
  };
  EXPECT_EQ(code("unreachable", "infra"), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code("circuit_open", "infra"), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code("deadline_exceeded", "capacity"), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(code("overload", "capacity"), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code("transport", "infra"), absl::StatusCode::kDataLoss);
  EXPECT_EQ(code("invalid_request", "client"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("internal", "internal"), absl::StatusCode::kInternal);
  EXPECT_EQ(code("unproven_pair", "quality"), absl::StatusCode::kFailedPrecondition);
}

TEST(ReasonWordsTest, ACallerThatIsNotLetInCanTellThatTheServerIsThere) {
  for (const auto code :
       {absl::StatusCode::kUnauthenticated, absl::StatusCode::kPermissionDenied}) {
    TransferResult result;
    SetFallback(absl::Status(code, "expected a caller that is granted transfer"), false, &result);
    EXPECT_EQ(result.reason, "unreachable");
    EXPECT_EQ(result.call_status, code);
    EXPECT_TRUE(result.refused());
    EXPECT_EQ(ToStatus(result),
              absl::Status(code, "unreachable: expected a caller that is granted transfer"));
  }
  TransferResult away;
  SetFallback(absl::UnavailableError("why"), false, &away);
  EXPECT_FALSE(away.refused());
}

}  // namespace
}  // namespace kvbridge::client
