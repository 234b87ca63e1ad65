#include "core/metrics/server_metrics.h"

#include <map>
#include <regex>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "core/metrics/metric_names.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvbridge::metrics {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const RpcMethod kTransfer{"kvbridge.v1.KvBridge", "Transfer", "bidi_stream"};

ServerMetrics::Options EightPairs() {
  ServerMetrics::Options options;
  for (int i = 0; i < 8; ++i) options.pairs.push_back(absl::StrCat("pair-", i));
  for (int i = 0; i < 22; ++i) options.reasons.push_back({absl::StrCat("reason_", i), "capacity"});
  for (int i = 0; i < 11; ++i) options.methods.push_back({"s", absl::StrCat("m", i), "unary"});
  options.methods.push_back(kTransfer);
  options.version = "0.1.0";
  return options;
}

std::vector<std::string> Series(const std::string& scrape) {
  std::vector<std::string> series;
  for (absl::string_view line : absl::StrSplit(scrape, '\n', absl::SkipEmpty())) {
    if (line[0] != '#') series.emplace_back(line);
  }
  return series;
}

// Label names of one line of the text format, `le` left out.
std::set<std::string> LabelNames(const std::string& series) {
  std::set<std::string> names;
  const std::regex label("([a-z_]+)=\"");
  for (std::sregex_iterator it(series.begin(), series.end(), label), end; it != end; ++it) {
    if ((*it)[1] != "le") names.insert((*it)[1]);
  }
  return names;
}

std::set<std::string> Sorted(absl::string_view labels) {
  return absl::StrSplit(labels, ',', absl::SkipEmpty());
}

TransferSample Applied(const std::string& pair) {
  return {.pair = pair,
          .outcome = "applied",
          .duration = absl::Milliseconds(3),
          .tokens = 65,
          .covered_tokens = 64,
          .max_abs = 12.5,
          .stages = {{"map", absl::Milliseconds(2)}}};
}

TEST(ServerMetricsTest, AFreshScrapeHasTheSeriesOfEveryPairAndReason) {
  ServerMetrics metrics(EightPairs());
  const std::string scrape = metrics.Scrape();
  EXPECT_THAT(scrape, HasSubstr("kvbridge_transfers_total{outcome=\"applied\",pair=\"pair-7\"} 0"));
  EXPECT_THAT(scrape, HasSubstr("kvbridge_fallbacks_total{class=\"capacity\",pair=\"pair-0\","
                                "reason=\"reason_21\"} 0"));
  EXPECT_THAT(scrape, HasSubstr("kvbridge_transfers_total{outcome=\"applied\",pair=\"_other\"} 0"));
}

TEST(ServerMetricsTest, EveryFamilyIsInTheListWithItsTypeAndLabels) {
  ServerMetrics metrics(EightPairs());
  metrics.TransferEnded(Applied("pair-0"));
  metrics.ArtifactLoad("pair-0", "ok", absl::Seconds(1));
  metrics.ArtifactResident({.pair = "pair-0", .artifact = "abc"});
  metrics.UnprovenAllowed("pair-0", true);
  metrics.DrillIs("pair-0", 0.05);
  metrics.operations().CertificateExpires("server", absl::UnixEpoch() + absl::Hours(1));
  std::map<std::string, MetricSpec> listed;
  for (const MetricSpec& spec : kAllMetrics) listed.emplace(spec.name, spec);
  EXPECT_EQ(listed.size(), std::size(kAllMetrics)) << "a name is listed twice";
  std::set<std::string> seen;
  for (absl::string_view line : absl::StrSplit(metrics.Scrape(), '\n')) {
    if (!absl::StartsWith(line, "# TYPE ")) continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    ASSERT_EQ(listed.count(words[2]), 1u) << words[2];
    const std::map<MetricType, std::string> types = {{MetricType::kCounter, "counter"},
                                                     {MetricType::kGauge, "gauge"},
                                                     {MetricType::kHistogram, "histogram"}};
    EXPECT_EQ(types.at(listed[words[2]].type), words[3]) << words[2];
    seen.insert(words[2]);
  }
  for (const auto& [name, spec] : listed) EXPECT_EQ(seen.count(name), 1u) << name;
  for (const std::string& series : Series(metrics.Scrape())) {
    std::string name = series.substr(0, series.find_first_of("{ "));
    for (const char* suffix : {"_bucket", "_sum", "_count"}) {
      if (listed.count(name) == 0) name = std::string(absl::StripSuffix(name, suffix));
    }
    EXPECT_EQ(LabelNames(series), Sorted(listed.at(name).labels)) << series;
  }
}

TEST(ServerMetricsTest, EightPairsStayBelowTwoThousandSeries) {
  ServerMetrics metrics(EightPairs());
  for (int pair = 0; pair < 8; ++pair) {
    for (const char* outcome :
         {"applied", "fallback_reprefill", "unsupported", "error", "cancelled"}) {
      TransferSample sample = Applied(absl::StrCat("pair-", pair));
      sample.outcome = outcome;
      metrics.TransferEnded(sample);
    }
  }
  EXPECT_LT(Series(metrics.Scrape()).size(), 2000u);
}

TEST(ServerMetricsTest, TenThousandUnknownPairsShareOneSeries) {
  ServerMetrics metrics(EightPairs());
  metrics.TransferEnded(Applied("stranger"));
  const size_t before = Series(metrics.Scrape()).size();
  for (int i = 0; i < 10000; ++i) metrics.TransferEnded(Applied(absl::StrCat("tenant-", i)));
  const std::string scrape = metrics.Scrape();
  EXPECT_EQ(Series(scrape).size(), before);
  EXPECT_THAT(scrape,
              HasSubstr("kvbridge_transfers_total{outcome=\"applied\",pair=\"_other\"} 10001"));
}

TEST(ServerMetricsTest, PairsBeyondTheCapAreFoldedAndCounted) {
  ServerMetrics::Options options;
  for (int i = 0; i < 70; ++i) options.pairs.push_back(absl::StrCat("pair-", i));
  ServerMetrics metrics(std::move(options));
  metrics.TransferEnded(Applied("pair-69"));
  const std::string scrape = metrics.Scrape();
  EXPECT_THAT(scrape, HasSubstr("kvbridge_metric_series_overflow_total{metric="
                                "\"kvbridge_transfers_total\"} 6"));
  EXPECT_THAT(scrape, Not(HasSubstr("pair=\"pair-69\"")));
}

TEST(ServerMetricsTest, AppliedTransfersCountCoveredTokensAndStages) {
  ServerMetrics metrics(EightPairs());
  metrics.TransferEnded(Applied("pair-1"));
  const std::string scrape = metrics.Scrape();
  EXPECT_THAT(scrape, HasSubstr("kvbridge_avoided_prefill_tokens_total{pair=\"pair-1\"} 64"));
  EXPECT_THAT(scrape, HasSubstr("kvbridge_tokens_total{outcome=\"applied\",pair=\"pair-1\"} 65"));
  EXPECT_THAT(scrape, HasSubstr("kvbridge_mapped_max_abs{pair=\"pair-1\"} 12.5"));
  EXPECT_THAT(scrape, HasSubstr("kvbridge_transfer_stage_duration_seconds_bucket{stage=\"map\","
                                "le=\"0.002\"} 1"));
}

TEST(ServerMetricsTest, FallbacksCountTheirReasonAndAvoidNothing) {
  ServerMetrics metrics(EightPairs());
  TransferSample sample = Applied("pair-1");
  sample.outcome = "fallback_reprefill";
  sample.reason = "reason_3";
  sample.reason_class = "capacity";
  metrics.TransferEnded(sample);
  const std::string scrape = metrics.Scrape();
  EXPECT_THAT(scrape, HasSubstr("kvbridge_fallbacks_total{class=\"capacity\",pair=\"pair-1\","
                                "reason=\"reason_3\"} 1"));
  EXPECT_THAT(scrape, HasSubstr("kvbridge_avoided_prefill_tokens_total{pair=\"pair-1\"} 0"));
}

TEST(ServerMetricsTest, AModelIdWithQuotesNewlineAndUtf8SurvivesAsALabelValue) {
  ServerMetrics metrics(EightPairs());
  metrics.ArtifactResident({.pair = "pair-2",
                            .artifact = "0123456789ab",
                            .source = "org/\"quoted\"\nmodel",
                            .target = "组织/模型",
                            .dtype = "bf16",
                            .bytes = 42});
  const std::string scrape = metrics.Scrape();
  EXPECT_THAT(scrape, HasSubstr("source=\"org/\\\"quoted\\\"\\nmodel\""));
  EXPECT_THAT(scrape, HasSubstr("target=\"组织/模型\""));
  EXPECT_THAT(scrape, HasSubstr("kvbridge_artifact_bytes{pair=\"pair-2\"} 42"));
}

TEST(ServerMetricsTest, AReplacedArtifactLeavesNoSeriesBehind) {
  ServerMetrics metrics(EightPairs());
  metrics.ArtifactResident({.pair = "pair-2", .artifact = "old"});
  metrics.ArtifactResident({.pair = "pair-2", .artifact = "new"});
  EXPECT_THAT(metrics.Scrape(), Not(HasSubstr("artifact=\"old\"")));
  metrics.ArtifactGone("pair-2");
  EXPECT_THAT(metrics.Scrape(), Not(HasSubstr("artifact=\"new\"")));
}

TEST(ServerMetricsTest, StateIsOneHot) {
  ServerMetrics metrics(EightPairs());
  metrics.StateIs("starting");
  metrics.StateIs("draining");
  const std::string scrape = metrics.Scrape();
  EXPECT_THAT(scrape, HasSubstr("kvbridge_state{state=\"draining\"} 1"));
  EXPECT_THAT(scrape, HasSubstr("kvbridge_state{state=\"starting\"} 0"));
}

TEST(ServerMetricsTest, GaugesAreReadWhenScraped) {
  Saturation now{.inflight_transfers = 3, .queue_depth = 7, .memory_used_bytes = 11};
  now.events_dropped = 2;
  ServerMetrics::Options options = EightPairs();
  options.saturation = [&now] { return now; };
  ServerMetrics metrics(std::move(options));
  EXPECT_THAT(metrics.Scrape(), HasSubstr("kvbridge_inflight_transfers 3"));
  now.queue_depth = 0;
  const std::string scrape = metrics.Scrape();
  EXPECT_THAT(scrape, HasSubstr("kvbridge_queue_depth 0"));
  EXPECT_THAT(scrape, HasSubstr("kvbridge_events_dropped_total{sink=\"log\"} 2"));
}

TEST(ServerMetricsTest, ARefusedConfigurationShowsUntilOneIsTaken) {
  ServerMetrics metrics(EightPairs());
  OperationMetrics& operations = metrics.operations();
  operations.ConfigRead(absl::FromUnixSeconds(100));
  operations.ConfigRefused();
  EXPECT_THAT(metrics.Scrape(), HasSubstr("kvbridge_config_last_reload_successful 0\n"));
  EXPECT_THAT(metrics.Scrape(),
              HasSubstr("kvbridge_config_last_reload_success_timestamp_seconds 100\n"));
  operations.ConfigReloaded(absl::FromUnixSeconds(200));
  const std::string scrape = metrics.Scrape();
  EXPECT_THAT(scrape, HasSubstr("kvbridge_config_last_reload_successful 1\n"));
  EXPECT_THAT(scrape, HasSubstr("kvbridge_config_reloads_total{result=\"error\"} 1\n"));
  EXPECT_THAT(scrape, HasSubstr("kvbridge_config_reloads_total{result=\"ok\"} 1\n"));
}

TEST(ServerMetricsTest, APairThatComesLaterHasItsSeriesFromThenOn) {
  ServerMetrics metrics(EightPairs());
  metrics.AddPair("late");
  EXPECT_THAT(metrics.Scrape(),
              HasSubstr("kvbridge_transfers_total{outcome=\"applied\",pair=\"late\"} 0"));
  EXPECT_EQ(metrics.Pair("late"), "late");
  EXPECT_EQ(metrics.Pair("stranger"), kOtherPair);
}

// Everything that can be said of a pair.
void SayAll(const std::string& pair, ServerMetrics& metrics) {
  for (const char* outcome :
       {"applied", "fallback_reprefill", "unsupported", "error", "cancelled"}) {
    TransferSample sample = Applied(pair);
    sample.outcome = outcome;
    sample.reason = "reason_3";
    sample.reason_class = "capacity";
    metrics.TransferEnded(sample);
  }
  metrics.ArtifactLoad(pair, "ok", absl::Seconds(1));
  metrics.ArtifactResident({.pair = pair, .artifact = "abc"});
  metrics.UnprovenAllowed(pair, true);
  metrics.DrillIs(pair, 0.5);
  OperationMetrics& operations = metrics.operations();
  operations.CircuitIs(pair, "open");
  operations.CircuitOpened(pair);
  operations.QualityReported(pair, false, 0.2);
  operations.QualitySkipped(pair);
  operations.QualityRefused(pair);
  operations.QualityThreshold(pair, 0.1);
  operations.SteppedBack(pair);
}

TEST(ServerMetricsTest, APairThatGoesTakesItsSeriesAlong) {
  ServerMetrics metrics(EightPairs());
  metrics.AddPair("late");
  SayAll("late", metrics);
  EXPECT_THAT(metrics.Scrape(), HasSubstr("\"late\""));
  metrics.RemovePair("late");
  EXPECT_THAT(metrics.Scrape(), Not(HasSubstr("\"late\"")));
  SayAll("late", metrics);  // what was under way
  const std::string scrape = metrics.Scrape();
  EXPECT_THAT(scrape, Not(HasSubstr("\"late\"")));
  EXPECT_THAT(scrape, HasSubstr("kvbridge_transfers_total{outcome=\"applied\",pair=\"_other\"} 1"));
  EXPECT_THAT(scrape, HasSubstr("kvbridge_route_step_backs_total{pair=\"_other\"} 1"));
  EXPECT_THAT(scrape, Not(HasSubstr("kvbridge_route_circuit_state{pair=\"_other\"")));
  metrics.AddPair("late");
  EXPECT_THAT(metrics.Scrape(),
              HasSubstr("kvbridge_transfers_total{outcome=\"applied\",pair=\"late\"} 0"));
}

TEST(ServerMetricsTest, PairsThatComeAndGoAddUpToNothing) {
  ServerMetrics metrics(EightPairs());
  SayAll("stranger", metrics);
  const size_t before = Series(metrics.Scrape()).size();
  for (int i = 0; i < 200; ++i) {
    const std::string pair = absl::StrCat("release-", i);
    metrics.AddPair(pair);
    SayAll(pair, metrics);
    metrics.RemovePair(pair);
  }
  const std::string scrape = metrics.Scrape();
  EXPECT_EQ(Series(scrape).size(), before);
  EXPECT_THAT(scrape, HasSubstr("overflow_total{metric=\"kvbridge_transfers_total\"} 0"));
}

TEST(ServerMetricsTest, PairsMayGoWhileTheyAreCounted) {
  ServerMetrics metrics(EightPairs());
  std::thread other([&metrics] {
    for (int i = 0; i < 100; ++i) SayAll("late", metrics);
  });
  for (int i = 0; i < 100; ++i) {
    metrics.AddPair("late");
    metrics.Scrape();
    metrics.RemovePair("late");
  }
  other.join();
  EXPECT_THAT(metrics.Scrape(), Not(HasSubstr("\"late\"")));
}

TEST(ServerMetricsTest, ACircuitIsInOneStateAtATime) {
  ServerMetrics metrics(EightPairs());
  metrics.operations().CircuitIs("pair-0", "half_open");
  const std::string scrape = metrics.Scrape();
  EXPECT_THAT(scrape, HasSubstr("circuit_state{pair=\"pair-0\",state=\"half_open\"} 1"));
  EXPECT_THAT(scrape, HasSubstr("circuit_state{pair=\"pair-0\",state=\"closed\"} 0"));
  EXPECT_THAT(scrape, HasSubstr("circuit_state{pair=\"pair-1\",state=\"closed\"} 1"));
}

TEST(ServerMetricsTest, RpcsAreCountedByCode) {
  ServerMetrics metrics(EightPairs());
  metrics.RpcStarted(kTransfer);
  metrics.RpcHandled(kTransfer, "INVALID_ARGUMENT", absl::Milliseconds(1));
  EXPECT_THAT(metrics.Scrape(),
              HasSubstr("grpc_server_handled_total{grpc_code=\"INVALID_ARGUMENT\",grpc_method="
                        "\"Transfer\",grpc_service=\"kvbridge.v1.KvBridge\",grpc_type="
                        "\"bidi_stream\"} 1"));
}

TEST(ServerMetricsTest, RecordsFromManyThreadsAddUp) {
  ServerMetrics metrics(EightPairs());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&metrics] {
      for (int j = 0; j < 100; ++j) metrics.TransferEnded(Applied("pair-0"));
    });
  }
  const std::string during = metrics.Scrape();
  for (auto& thread : threads) thread.join();
  EXPECT_THAT(metrics.Scrape(),
              HasSubstr("kvbridge_transfers_total{outcome=\"applied\",pair=\"pair-0\"} 400"));
}

}  // namespace
}  // namespace kvbridge::metrics
