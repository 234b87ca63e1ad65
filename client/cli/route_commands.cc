// Commands that look at a server's routes, change them, and watch what they do.
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

#include "client/cli/commands.h"
#include "client/cli/printable.h"
#include "client/cli/route_table.h"
#include "client/cli/spec_convert.h"
#include "client/cli/table.h"
#include "core/base/status_macros.h"
#include "kvbridge/v1/admin.pb.h"
#include "kvbridge/v1/transfer.pb.h"
#include "proto/kvbridge/v1/event_json.h"

namespace kvbridge::cli {
namespace {

absl::StatusOr<v1::SetRouteRequest> ToRequest(const RouteFlags& flags) {
  v1::SetRouteRequest request;
  request.set_route(flags.route);
  request.set_canary_share(flags.canary_share);
  v1::RouteStage stage = v1::ROUTE_STAGE_UNSPECIFIED;
  if (!flags.stage.empty() &&
      !v1::RouteStage_Parse("ROUTE_STAGE_" + absl::AsciiStrToUpper(flags.stage), &stage)) {
    return absl::InvalidArgumentError(absl::StrCat("--stage: got \"", flags.stage, "\""));
  }
  request.set_stage(stage);
  const std::pair<const char*, v1::CircuitOverride> overrides[] = {
      {"auto", v1::CIRCUIT_OVERRIDE_AUTO},
      {"closed", v1::CIRCUIT_OVERRIDE_FORCE_CLOSED},
      {"open", v1::CIRCUIT_OVERRIDE_FORCE_OPEN}};
  for (const auto& [word, override] : overrides) {
    if (flags.circuit == word) request.set_circuit(override);
  }
  return request;
}

std::string Time(const google::protobuf::Timestamp& time) {
  return absl::FormatTime("%H:%M:%S", wire::TimeOf(time), absl::LocalTimeZone());
}

std::string Line(const v1::WatchEventsResponse& response) {
  if (response.has_route_event()) {
    const v1::RouteEvent& event = response.route_event();
    return absl::StrCat(Time(event.time()), "  ", event.pair(), "  ", event.what(), ": ",
                        event.from(), " -> ", event.to(), " (", event.cause(), ")  ",
                        event.detail());
  }
  const v1::DecisionEvent& event = response.event();
  const std::string outcome = EnumWord(v1::Outcome_Name(event.outcome()), "OUTCOME_");
  const std::string why =
      event.reason() == v1::REASON_UNSPECIFIED
          ? absl::StrCat(event.covered_tokens(), " of ", event.tokens(), " tokens")
          : absl::StrCat(EnumWord(v1::Reason_Name(event.reason()), "REASON_"), "  ",
                         event.detail());
  return absl::StrFormat("%s  %s  %s  %.1f ms  %s  %s", Time(event.time()), event.pair(), outcome,
                         event.total_ms(), event.request_id(), why);
}

}  // namespace

absl::StatusOr<ExitCode> RunRoutesList(const RouteFlags& flags, const Output& output) {
  KVB_ASSIGN_OR_RETURN(auto client, Connect(flags.server));
  KVB_ASSIGN_OR_RETURN(const v1::HealthResponse health, client->Health("", flags.server.Timeout()));
  KVB_ASSIGN_OR_RETURN(const base::Json document, ToDocument("kvbridge.health/v1", health));
  KVB_RETURN_IF_ERROR(output.Emit(document, [&](bool color) { return RouteTable(health, color); }));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunRoutesSet(const RouteFlags& flags, const Output& output) {
  KVB_ASSIGN_OR_RETURN(const v1::SetRouteRequest request, ToRequest(flags));
  KVB_ASSIGN_OR_RETURN(auto client, Connect(flags.server));
  KVB_ASSIGN_OR_RETURN(const v1::SetRouteResponse response,
                       client->SetRoute(request, flags.server.Timeout()));
  const std::string before = EnumWord(v1::RouteStage_Name(response.previous()), "ROUTE_STAGE_");
  const std::string after = flags.stage.empty() ? before : flags.stage;
  const base::Json document = {{"schema", "kvbridge.route/v1"},
                               {"route", flags.route},
                               {"previous", before},
                               {"stage", after},
                               {"circuit", flags.circuit}};
  KVB_RETURN_IF_ERROR(output.Emit(document, [&](bool) {
    return RenderFields({{"route", flags.route},
                         {"stage", absl::StrCat(before, " -> ", after)},
                         {"circuit", OrDash(flags.circuit)}});
  }));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunEventsTail(const RouteFlags& flags, const Output& output,
                                       const std::stop_token& stop) {
  KVB_ASSIGN_OR_RETURN(auto client, Connect(flags.server));
  KVB_RETURN_IF_ERROR(client->WatchEvents(
      flags.route,
      [&output](const v1::WatchEventsResponse& response) -> absl::Status {
        return output.EmitLine(wire::EventJson(response), Printable(Line(response)));
      },
      stop));
  return ExitCode::kOk;
}

}  // namespace kvbridge::cli
