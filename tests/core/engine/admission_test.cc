#include "core/engine/admission.h"

#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvbridge::engine {
namespace {

using guard::Reason;
using guard::Refusal;

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

std::shared_ptr<Admission> Make() {
  return Admission::Create({.max_tokens = 100,
                            .max_request_bytes = 1000,
                            .max_inflight_bytes = 100,
                            .max_inflight_transfers = 3,
                            .max_tenant_bytes = 60})
      .value();
}

Reason Why(const std::variant<Reservation, Refusal>& answer) {
  const auto* refusal = std::get_if<Refusal>(&answer);
  return refusal == nullptr ? Reason::kNone : refusal->reason;
}

TEST(AdmissionTest, WhatCouldNeverFitIsBatchLimit) {
  const auto admission = Make();
  EXPECT_EQ(Why(admission->Reserve({"a", 1001, 1})), Reason::kBatchLimit);
  EXPECT_EQ(Why(admission->Reserve({"a", uint64_t{10} << 30, 1})), Reason::kBatchLimit);
  EXPECT_EQ(Why(admission->Reserve({"a", 1, 101})), Reason::kBatchLimit);
  EXPECT_EQ(Why(admission->Reserve({"a", 1, 61})), Reason::kBatchLimit);
  EXPECT_EQ(Why(admission->Reserve({"a", kMax, kMax})), Reason::kBatchLimit);
  EXPECT_EQ(admission->inflight_transfers(), 0);
  EXPECT_EQ(admission->active_tenants(), 0u);
}

TEST(AdmissionTest, WhatDoesNotFitNowIsOverloadAndNamesTheLimitButNoTenant) {
  const auto admission = Make();
  const auto first = admission->Reserve({"alice", 1, 60});
  ASSERT_EQ(Why(first), Reason::kNone);
  const auto same_tenant = admission->Reserve({"alice", 1, 1});
  EXPECT_EQ(Why(same_tenant), Reason::kOverload);
  EXPECT_THAT(std::get<Refusal>(same_tenant).detail,
              testing::AllOf(testing::StartsWith("max_tenant_bytes: expected at most 60 B"),
                             testing::Not(testing::HasSubstr("alice"))));
  EXPECT_EQ(Why(admission->Reserve({"bob", 1, 41})), Reason::kOverload);
  EXPECT_EQ(Why(admission->Reserve({"bob", 1, 40})), Reason::kNone);
}

TEST(AdmissionTest, ATenantMayHaveALimitOfItsOwn) {
  const auto admission =
      Admission::Create({.max_inflight_bytes = 100,
                         .max_tenant_bytes = 60,
                         .tenant_bytes = [](absl::string_view tenant) -> uint64_t {
                           return tenant == "small" ? 10 : tenant == "large" ? 80 : 0;
                         }})
          .value();
  EXPECT_EQ(Why(admission->Reserve({"small", 1, 11})), Reason::kBatchLimit);
  EXPECT_EQ(Why(admission->Reserve({"other", 1, 61})), Reason::kBatchLimit);
  const auto held = admission->Reserve({"large", 1, 80});
  EXPECT_EQ(Why(held), Reason::kNone);
  EXPECT_EQ(Why(admission->Reserve({"small", 1, 10})), Reason::kNone);
}

TEST(AdmissionTest, TransfersAreCountedWhateverTheirSize) {
  const auto admission = Make();
  std::vector<std::variant<Reservation, Refusal>> held;
  for (int i = 0; i < 3; ++i) held.push_back(admission->Reserve({std::to_string(i), 0, 0}));
  EXPECT_EQ(Why(admission->Reserve({"x", 0, 0})), Reason::kOverload);
  EXPECT_EQ(admission->active_tenants(), 3u);
  held.pop_back();
  EXPECT_EQ(Why(admission->Reserve({"x", 0, 0})), Reason::kNone);
}

TEST(AdmissionTest, ReservationsGiveBackOnceHoweverTheyMove) {
  const auto admission = Make();
  {
    Reservation a = std::get<Reservation>(admission->Reserve({"t", 1, 30}));
    Reservation b = std::get<Reservation>(admission->Reserve({"t", 1, 20}));
    EXPECT_EQ(admission->inflight_bytes(), 50u);
    a = std::move(b);
    EXPECT_EQ(admission->inflight_bytes(), 20u);
    EXPECT_EQ(a.bytes(), 20u);
    Reservation c(std::move(a));
    EXPECT_EQ(admission->inflight_transfers(), 1);
  }
  EXPECT_EQ(admission->inflight_bytes(), 0u);
  EXPECT_EQ(admission->inflight_transfers(), 0);
  EXPECT_EQ(admission->active_tenants(), 0u);
}

TEST(AdmissionTest, CountersAreZeroAfterAStormAndTheLimitHeldThroughout) {
  const auto admission = Admission::Create({.max_inflight_bytes = 64}).value();
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        auto answer = admission->Reserve({std::to_string(t % 3), 1, 20});
        EXPECT_LE(admission->inflight_bytes(), 64u);
        EXPECT_THAT(Why(answer), testing::AnyOf(Reason::kNone, Reason::kOverload));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(admission->inflight_bytes(), 0u);
  EXPECT_EQ(admission->active_tenants(), 0u);
}

TEST(AdmissionTest, LimitsBelowOneAreRefusedByName) {
  const auto message = [](Limits limits) {
    return std::string(Admission::Create(limits).status().message());
  };
  EXPECT_EQ(message({.max_tokens = -1}), "limits.max_tokens: expected 1 or more");
  EXPECT_EQ(message({.max_request_bytes = 0}), "limits.max_request_bytes: expected 1 or more");
  EXPECT_EQ(message({.max_inflight_bytes = 0}), "limits.max_inflight_bytes: expected 1 or more");
  EXPECT_EQ(message({.max_inflight_transfers = 0}),
            "limits.max_inflight_transfers: expected 1 or more");
}

}  // namespace
}  // namespace kvbridge::engine
