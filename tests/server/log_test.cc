#include "server/log.h"

#include <sstream>

#include "absl/strings/str_split.h"
#include <spdlog/sinks/ostream_sink.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/event_log.h"

namespace kvbridge::server {
namespace {

class FakeClock final : public base::Clock {
 public:
  absl::Time Now() const override { return now; }
  absl::Time WallNow() const override { return now; }
  absl::Time now = absl::FromUnixMillis(1700000000123);
};

class LogTest : public ::testing::Test {
 protected:
  Log::Options Options(bool json) {
    return {.level = spdlog::level::info,
            .json = json,
            .sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(out_)};
  }
  std::vector<nlohmann::json> Lines() {
    std::vector<nlohmann::json> lines;
    for (absl::string_view line : absl::StrSplit(out_.str(), '\n', absl::SkipEmpty())) {
      lines.push_back(nlohmann::json::parse(std::string(line)));
    }
    return lines;
  }
  std::ostringstream out_;
  FakeClock clock_;
};

TEST_F(LogTest, ALineIsOneJsonObjectWhateverItHolds) {
  Log log(Options(true), &clock_);
  log.Info("a \"quoted\"\nmessage\xff", {{"path", "x\ty"}, {"count", 3}});
  const auto lines = Lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["msg"], "a \"quoted\"\nmessage\xEF\xBF\xBD");
  EXPECT_EQ(lines[0]["level"], "info");
  EXPECT_EQ(lines[0]["ts"], "2023-11-14T22:13:20.123Z");
  EXPECT_EQ(lines[0]["path"], "x\ty");
  EXPECT_EQ(lines[0]["count"], 3);
}

TEST_F(LogTest, TextIsForPeople) {
  Log log(Options(false), &clock_);
  log.Warn("route is degraded", {{"route", "a"}});
  EXPECT_EQ(out_.str(), "2023-11-14T22:13:20.123Z warn route is degraded route=\"a\"\n");
}

TEST_F(LogTest, LevelsBelowTheConfiguredOneAreSilent) {
  Log log(Options(true), &clock_);
  log.Debug("quiet");
  EXPECT_EQ(out_.str(), "");
}

TEST_F(LogTest, RepeatsAreHeldBackAndCounted) {
  Log log(Options(true), &clock_);
  for (int i = 0; i < Log::kBurst + 5; ++i) log.Warn("again");
  log.Warn("another");
  EXPECT_EQ(Lines().size(), Log::kBurst + 1u);
  clock_.now += absl::Seconds(1);
  log.Warn("again");
  EXPECT_EQ(Lines().back()["suppressed"], 5);
}

TEST_F(LogTest, EventsAreNeverHeldBack) {
  Log log(Options(true), &clock_);
  for (int i = 0; i < 50; ++i) log.Event("decision", {{"n", i}});
  EXPECT_EQ(Lines().size(), 50u);
}

v1::WatchEventsResponse Offered(const std::string& id) {
  v1::WatchEventsResponse response;
  response.mutable_event()->set_request_id(id);
  return response;
}

TEST(EventLogTest, StopHandsOutEverythingInOrder) {
  std::vector<std::string> ids;
  EventLog log([&ids](const v1::WatchEventsResponse& response) {
    ids.push_back(response.event().request_id());
  });
  for (int i = 0; i < 100; ++i) log.Offer(Offered(std::to_string(i)));
  log.Stop();
  ASSERT_EQ(ids.size(), 100u);
  EXPECT_EQ(ids[42], "42");
  EXPECT_EQ(log.dropped(), 0u);
}

TEST(EventLogTest, AStuckSinkCostsEventsNotTime) {
  base::Mutex gate;
  gate.Lock();
  EventLog log([&gate](const v1::WatchEventsResponse&) { base::MutexLock wait(&gate); }, 4);
  for (int i = 0; i < 100; ++i) log.Offer(Offered("x"));
  // At most a batch of 4 in the sink's hands and 4 queued.
  EXPECT_GE(log.dropped(), 92u);
  gate.Unlock();
  log.Stop();
  const uint64_t before = log.dropped();
  log.Offer(Offered("late"));
  EXPECT_EQ(log.dropped(), before + 1);
}

}  // namespace
}  // namespace kvbridge::server
