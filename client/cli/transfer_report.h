// How a transfer ended, in the words that both ways of running one share.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"

#include "client/cpp/transfer.h"
#include "core/base/strict_json.h"
#include "core/engine/decision.h"

namespace kvbridge::cli {

struct TransferReport {
  std::string outcome;
  std::string reason;
  std::string reason_class;
  std::string detail;
  std::string call_status;  // of gRPC, "unavailable", where there was no decision; else empty
  bool refused = false;     // the server does not let this caller in
  int64_t tokens = 0;
  int64_t covered_tokens = 0;
  std::string artifact_digest;
  int32_t hops = 0;
  std::string salt;
  std::string plane;         // "region", "inline"; empty in this process
  std::string plane_reason;  // why not "region"
  std::string peer_plane;    // on to the peer: "ucx", "inline"; empty: nothing went on
  std::string map_side;      // "target": at the peer; "source": before it
  int64_t bytes_in = 0;
  int64_t bytes_out = 0;
  float max_abs = 0;
  int64_t saturated_elements = 0;
  std::vector<std::pair<std::string, double>> stage_seconds;
  double seconds = 0;
  std::string trace_id;  // of the caller's trace, as the server's log has it; empty = none
  std::string span_id;   // the server's
  std::string out;       // the file; empty unless applied

  bool applied() const { return outcome == "applied"; }
};

TransferReport ReportOf(const engine::Decision& decision, int64_t tokens, absl::Duration total);
TransferReport ReportOf(const client::TransferResult& result, int64_t tokens);

base::Json ToJson(const TransferReport& report);
std::string ToText(const TransferReport& report);

}  // namespace kvbridge::cli
