#include "client/cli/top_view.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/cli/printable.h"
#include "client/cli/spec_convert.h"
#include "client/cli/table.h"

namespace kvbridge::cli {
namespace {

// Transfers that named no route that is configured.
constexpr char kOther[] = "_other";

base::Json OrNull(const std::optional<double>& value) {
  return value ? base::Json(*value) : base::Json(nullptr);
}

std::string Figure(const std::optional<double>& value, double scale = 1) {
  return value ? absl::StrFormat("%.1f", scale * *value) : "-";
}

base::Json ToJson(const Decisions& decisions, const TopWindow::Reading& reading) {
  return {{"transfers_per_second", reading.PerSecond(decisions.all())},
          {"tokens_per_second", reading.PerSecond(decisions.tokens)},
          {"applied", decisions.applied},
          {"fell_back", decisions.fell_back},
          {"fallback_share", OrNull(decisions.fallback_share())},
          {"p50_ms", OrNull(decisions.p50_ms)},
          {"p99_ms", OrNull(decisions.p99_ms)},
          {"last_reason", decisions.last_reason}};
}

Decisions Of(const TopFrame& frame, const std::string& route) {
  const auto found = frame.reading.routes.find(route);
  return found == frame.reading.routes.end() ? Decisions() : found->second;
}

std::string Stage(const v1::RouteHealth& route) {
  return EnumWord(v1::RouteStage_Name(route.stage()), "ROUTE_STAGE_");
}

std::string Circuit(const v1::RouteHealth& route) {
  return EnumWord(v1::CircuitState_Name(route.circuit()), "CIRCUIT_STATE_");
}

std::vector<std::string> Row(const std::string& name, const std::string& stage,
                             const std::string& circuit, const Decisions& decisions,
                             const TopFrame& frame, const std::string& note) {
  const TopWindow::Reading& reading = frame.reading;
  return {name,
          OrDash(stage),
          OrDash(circuit),
          absl::StrFormat("%.1f", reading.PerSecond(decisions.all())),
          absl::StrFormat("%.0f", reading.PerSecond(decisions.tokens)),
          Figure(decisions.fallback_share(), 100),
          Figure(decisions.p50_ms),
          Figure(decisions.p99_ms),
          OrDash(decisions.last_reason),
          OrDash(note)};
}

std::string State(const v1::HealthResponse& health) {
  return EnumWord(v1::ServerState_Name(health.state()), "SERVER_STATE_");
}

std::string Head(const TopFrame& frame) {
  std::string text =
      absl::StrCat("kvbridged ", Printable(frame.health.version()), "  ", State(frame.health), "  ",
                   absl::FormatTime("%H:%M:%S", frame.time, absl::LocalTimeZone()), "  last ",
                   absl::ToInt64Seconds(frame.reading.span), " s\n");
  if (frame.load) {
    absl::StrAppend(&text, "in flight ", frame.load->inflight_transfers, "  queue ",
                    frame.load->queue_depth, " of ", frame.load->queue_limit, "\n");
  }
  return text;
}

}  // namespace

base::Json TopDocument(const TopFrame& frame) {
  base::Json routes = base::Json::array();
  for (const v1::RouteHealth& route : frame.health.routes()) {
    base::Json entry = ToJson(Of(frame, route.route()), frame.reading);
    entry["route"] = route.route();
    entry["stage"] = Stage(route);
    entry["circuit"] = Circuit(route);
    entry["serving"] = route.serving();
    entry["detail"] = route.detail();
    routes.push_back(std::move(entry));
  }
  const auto load = [&frame](int64_t ServerLoad::*field) {
    return frame.load ? base::Json(*frame.load.*field) : base::Json(nullptr);
  };
  return {{"schema", "kvbridge.top/v1"},
          {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", frame.time, absl::UTCTimeZone())},
          {"state", State(frame.health)},
          {"version", frame.health.version()},
          {"window_seconds", absl::ToDoubleSeconds(frame.reading.span)},
          {"inflight_transfers", load(&ServerLoad::inflight_transfers)},
          {"queue_depth", load(&ServerLoad::queue_depth)},
          {"queue_limit", load(&ServerLoad::queue_limit)},
          {"routes", std::move(routes)},
          {"total", ToJson(frame.reading.total, frame.reading)}};
}

std::string TopText(const TopFrame& frame, bool bold_header) {
  Table table({"ROUTE", "STAGE", "CIRCUIT", "TRANSFERS/S", "TOKENS/S", "FELL BACK %", "P50 MS",
               "P99 MS", "LAST REASON", "DETAIL"});
  for (const v1::RouteHealth& route : frame.health.routes()) {
    table.AddRow(Row(route.route(), Stage(route), Circuit(route), Of(frame, route.route()), frame,
                     route.detail()));
  }
  if (const Decisions other = Of(frame, kOther); other.all() > 0) {
    table.AddRow(Row(kOther, "", "", other, frame, "named no route"));
  }
  table.AddRow(Row("all", "", "", frame.reading.total, frame, ""));
  return absl::StrCat(Head(frame), "\n", table.Render(bold_header));
}

}  // namespace kvbridge::cli
