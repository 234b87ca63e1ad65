#include <gtest/gtest.h>

#include "client/cli/exit_code.h"
#include "client/cli/flag_file.h"
#include "client/cli/spec_convert.h"
#include "client/cli/suggest.h"
#include "client/cli/table.h"
#include "kvbridge/v1/plan.pb.h"
#include "kvbridge/v1/transfer.pb.h"

namespace kvbridge::cli {
namespace {

TEST(NearestWordTest, FindsSwapsDropsAndExtras) {
  const std::vector<std::string> known = {"transfer", "inspect", "plan", "health"};
  EXPECT_EQ(NearestWord("trasnfer", known), "transfer");
  EXPECT_EQ(NearestWord("inspct", known), "inspect");
  EXPECT_EQ(NearestWord("plann", known), "plan");
  EXPECT_EQ(NearestWord("fit", known), "");
  EXPECT_EQ(NearestWord("", known), "");
}

TEST(TableTest, NumbersStandToTheRightAndNothingTrails) {
  Table table({"NAME", "COUNT", "NOTE"});
  table.AddRow({"a", "7", "-"});
  table.AddRow({"größer", "1234567", "-"});
  table.AddRow({"b", "-", "-"});
  EXPECT_EQ(table.Render(false),
            "NAME      COUNT  NOTE\n"
            "a             7  -\n"
            "größer  1234567  -\n"
            "b             -  -\n");
  EXPECT_EQ(Table({"A", "B"}).Render(true), "\x1b[1mA  B\x1b[0m\n");
}

TEST(TableTest, FieldsWithoutAValueAreLeftOut) {
  EXPECT_EQ(RenderFields({{"a", "1"}, {"longer", ""}, {"bcd", "2"}}), "a    1\nbcd  2\n");
}

TEST(InFileTest, AnErrorNamesTheWholePathOnce) {
  const auto text = [](const char* path, const char* message) {
    return std::string(InFile(path, absl::NotFoundError(message)).message());
  };
  EXPECT_EQ(text("/a/in", "open in: No such file"), "open /a/in: No such file");
  EXPECT_EQ(text("/etc/passwd", "passwd: header length: expected 1, got 2"),
            "/etc/passwd: header length: expected 1, got 2");
  EXPECT_EQ(text("/a/x", "artifact folder: does not exist"),
            "/a/x: artifact folder: does not exist");
  EXPECT_EQ(text("/a/in", "opening in there: in: bad"), "opening in there: /a/in: bad");
  EXPECT_EQ(text("/a/in", "/a/in: expected a model"), "/a/in: expected a model");
  EXPECT_EQ(text("/a/b/", "nothing there"), "/a/b/: nothing there");
  EXPECT_EQ(InFile("/a/in", absl::DataLossError("in: bad")), absl::DataLossError("/a/in: bad"));
  EXPECT_TRUE(InFile("/a/in", absl::OkStatus()).ok());
}

TEST(DocumentTest, SaysEnumsByTheirWordsAndCountsAsNumbers) {
  v1::HealthResponse health;
  health.set_state(v1::SERVER_STATE_READY);
  v1::RouteHealth& route = *health.add_routes();
  route.set_route("a");
  route.set_circuit(v1::CIRCUIT_STATE_HALF_OPEN);
  const base::Json document = ToDocument("kvbridge.health/v1", health).value();
  EXPECT_EQ(document["schema"], "kvbridge.health/v1");
  EXPECT_EQ(document["state"], "ready");
  EXPECT_EQ(document["routes"][0]["circuit"], "half_open");
  EXPECT_EQ(document["routes"][0]["stage"], "");

  v1::PlanResponse plan;
  plan.set_reason(v1::REASON_LATENCY_BUDGET);
  plan.set_bytes_in(int64_t{1} << 40);
  plan.mutable_map_seconds()->set_value(0.5);
  const base::Json planned = ToDocument("kvbridge.plan/v1", plan).value();
  EXPECT_EQ(planned["reason"], "latency_budget");
  EXPECT_EQ(planned["bytes_in"], int64_t{1} << 40);
  EXPECT_EQ(planned["map_seconds"]["value"], 0.5);
}

TEST(ExitCodeTest, EveryErrorHasItsNumber) {
  EXPECT_EQ(ExitCodeFor(absl::InvalidArgumentError("")), ExitCode::kBadInput);
  EXPECT_EQ(ExitCodeFor(absl::DataLossError("")), ExitCode::kBadInput);
  EXPECT_EQ(ExitCodeFor(absl::UnauthenticatedError("")), ExitCode::kBadInput);
  EXPECT_EQ(ExitCodeFor(absl::UnimplementedError("")), ExitCode::kIncompatible);
  EXPECT_EQ(ExitCodeFor(absl::UnavailableError("")), ExitCode::kUnreachable);
  EXPECT_EQ(ExitCodeFor(absl::ResourceExhaustedError("")), ExitCode::kResources);
  EXPECT_EQ(ExitCodeFor(absl::CancelledError("")), ExitCode::kInterrupted);
  EXPECT_EQ(static_cast<int>(ExitCode::kInterrupted), 130);
}

TEST(ExitCodeTest, FallbacksByPolicyAreAnswers) {
  const auto code = [](const char* outcome, const char* reason, bool fail) {
    return ExitCodeForFallback(outcome, reason, /*refused=*/false, fail);
  };
  EXPECT_EQ(code("fallback_reprefill", "latency_budget", false), ExitCode::kOk);
  EXPECT_EQ(code("fallback_reprefill", "latency_budget", true), ExitCode::kGateFailed);
  EXPECT_EQ(code("unsupported", "app_gate", false), ExitCode::kIncompatible);
  EXPECT_EQ(code("fallback_reprefill", "unreachable", false), ExitCode::kUnreachable);
  EXPECT_EQ(code("fallback_reprefill", "token_limit", false), ExitCode::kResources);
  EXPECT_EQ(code("fallback_reprefill", "artifact_integrity", false), ExitCode::kBadInput);
  EXPECT_EQ(ExitCodeForFallback("fallback_reprefill", "unreachable", /*refused=*/true, false),
            ExitCode::kBadInput);
}

}  // namespace
}  // namespace kvbridge::cli
