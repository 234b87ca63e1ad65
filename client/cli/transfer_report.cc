#include "client/cli/transfer_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/cli/output.h"
#include "client/cli/spec_convert.h"
#include "client/cli/table.h"
#include "client/cpp/router_words.h"
#include "core/base/units.h"
#include "core/guard/reason.h"

namespace kvbridge::cli {

TransferReport ReportOf(const engine::Decision& decision, int64_t tokens, absl::Duration total) {
  TransferReport report;
  report.outcome = std::string(guard::Name(decision.outcome));
  if (!decision.applied()) {
    report.reason = std::string(guard::Name(decision.reason));
    report.reason_class = std::string(guard::Name(guard::ClassOf(decision.reason)));
  }
  report.detail = decision.detail;
  report.tokens = tokens;
  report.covered_tokens = decision.covered_tokens;
  report.artifact_digest = decision.artifact_digest;
  report.hops = decision.hops;
  report.salt = decision.salt;
  report.bytes_in = decision.bytes_in;
  report.bytes_out = decision.bytes_out;
  report.max_abs = decision.max_abs;
  report.saturated_elements = decision.saturated_elements;
  for (size_t i = 0; i < engine::kStageCount; ++i) {
    report.stage_seconds.emplace_back(std::string(engine::Name(static_cast<engine::Stage>(i))),
                                      absl::ToDoubleSeconds(decision.stages[i]));
  }
  report.seconds = absl::ToDoubleSeconds(total);
  return report;
}

TransferReport ReportOf(const client::TransferResult& result, int64_t tokens) {
  const v1::Decision& decision = result.decision;
  TransferReport report;
  report.outcome = std::string(client::ToRouterStatus(result.outcome));
  report.reason = result.reason;
  report.reason_class = result.reason_class;
  report.detail = result.detail;
  if (result.call_status != absl::StatusCode::kOk) {
    report.call_status = CodeWord(result.call_status);
  }
  report.refused = result.refused();
  report.tokens = tokens;
  report.covered_tokens = result.covered_tokens;
  report.artifact_digest = decision.artifact_digest();
  report.hops = decision.hops();
  report.salt = decision.salt();
  const bool region = result.plane == v1::PLANE_REGION;
  if (result.plane != v1::PLANE_UNSPECIFIED) report.plane = region ? "region" : "inline";
  report.plane_reason = result.plane_reason;
  if (result.peer_plane != v1::PLANE_UNSPECIFIED) {
    report.peer_plane = EnumWord(v1::Plane_Name(result.peer_plane), "PLANE_");
  }
  if (decision.map_side() != v1::MAP_SIDE_UNSPECIFIED) {
    report.map_side = EnumWord(v1::MapSide_Name(decision.map_side()), "MAP_SIDE_");
  }
  report.bytes_in = region ? decision.bytes_in() : result.bytes_sent;
  report.bytes_out = region ? decision.bytes_out() : result.bytes_received;
  report.max_abs = decision.max_abs();
  report.saturated_elements = decision.saturated_elements();
  for (const auto& stage : decision.stages()) {
    report.stage_seconds.emplace_back(stage.stage(), stage.seconds());
  }
  report.seconds = absl::ToDoubleSeconds(result.timings.total);
  report.trace_id = result.trace_id;
  report.span_id = result.span_id;
  return report;
}

base::Json ToJson(const TransferReport& report) {
  base::Json stages = base::Json::object();
  for (const auto& [stage, seconds] : report.stage_seconds) stages[stage] = seconds;
  return {{"schema", "kvbridge.transfer/v1"},
          {"outcome", report.outcome},
          {"reason", report.reason},
          {"reason_class", report.reason_class},
          {"detail", report.detail},
          {"call_status", report.call_status},
          {"tokens", report.tokens},
          {"covered_tokens", report.covered_tokens},
          {"artifact_digest", report.artifact_digest},
          {"hops", report.hops},
          {"salt", report.salt},
          {"plane", report.plane},
          {"plane_reason", report.plane_reason},
          {"peer_plane", report.peer_plane},
          {"map_side", report.map_side},
          {"bytes_in", report.bytes_in},
          {"bytes_out", report.bytes_out},
          {"max_abs", report.max_abs},
          {"saturated_elements", report.saturated_elements},
          {"stage_seconds", stages},
          {"seconds", report.seconds},
          {"trace_id", report.trace_id},
          {"span_id", report.span_id},
          {"out", report.out}};
}

std::string ToText(const TransferReport& report) {
  std::string why = report.reason;
  if (!report.reason_class.empty()) absl::StrAppend(&why, " (", report.reason_class, ")");
  if (report.refused) absl::StrAppend(&why, ", ", report.call_status);
  std::string stages;
  for (const auto& [stage, seconds] : report.stage_seconds) {
    if (seconds == 0) continue;
    absl::StrAppend(&stages, stages.empty() ? "" : ", ", stage,
                    absl::StrFormat(" %.1f ms", seconds * 1e3));
  }
  std::string plane = report.plane;
  if (!report.plane_reason.empty()) absl::StrAppend(&plane, " (", report.plane_reason, ")");
  if (!report.peer_plane.empty()) absl::StrAppend(&plane, ", to the peer ", report.peer_plane);
  std::string saturated;
  if (report.saturated_elements != 0) saturated = absl::StrCat(report.saturated_elements);
  return RenderFields(
      {{"outcome", report.outcome},
       {"reason", why},
       {"detail", report.detail},
       {"tokens", absl::StrCat(report.covered_tokens, " of ", report.tokens, " covered")},
       {"artifact", report.artifact_digest.substr(0, 12)},
       {"salt", report.salt},
       {"plane", plane},
       {"bytes", absl::StrCat(base::HumanBytes(static_cast<uint64_t>(report.bytes_in)), " in, ",
                              base::HumanBytes(static_cast<uint64_t>(report.bytes_out)), " out")},
       {"max abs", report.applied() ? absl::StrFormat("%.4g", report.max_abs) : ""},
       {"saturated", saturated},
       {"stages", stages},
       {"time", absl::StrFormat("%.3f s", report.seconds)},
       {"trace", report.trace_id},
       {"out", report.out}});
}

}  // namespace kvbridge::cli
