// kvbridge transfer: from one cache file to another, in this process or by a server.
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "client/cli/commands.h"
#include "client/cli/flag_file.h"
#include "client/cli/handoff.h"
#include "client/cli/progress.h"
#include "client/cli/transfer_report.h"
#include "core/artifact/cache_file.h"
#include "core/base/status_macros.h"
#include "proto/kvbridge/v1/traceparent.h"

namespace kvbridge::cli {
namespace {

absl::Status WriteCovered(const std::string& path, int64_t covered, artifact::CacheFile answer) {
  answer.view.tokens = covered;
  answer.positions.resize(static_cast<size_t>(covered));
  if (!answer.token_ids.empty()) answer.token_ids.resize(static_cast<size_t>(covered));
  return InFile(path, artifact::WriteCacheFile(path, answer));
}

absl::StatusOr<TransferReport> Transfer(const TransferFlags& flags, const HandoffRequest& request,
                                        const Output& output, const std::stop_token& stop) {
  KVB_ASSIGN_OR_RETURN(const artifact::CacheFile source,
                       InFile(flags.in, artifact::ReadCacheFile(flags.in)));
  KVB_ASSIGN_OR_RETURN(const auto handoff, OpenHandoff(flags.by, source.view.tokens, output));
  artifact::CacheFile answer = AnswerFor(handoff->target(), source);
  absl::StatusOr<TransferReport> report;
  {
    const Progress progress("transferring", output.quiet());
    report = handoff->Run(request, source, answer, stop);
  }
  if (report.ok() && report->applied()) {
    KVB_RETURN_IF_ERROR(WriteCovered(flags.out, report->covered_tokens, std::move(answer)));
    report->out = flags.out;
  }
  return report;
}

// The caller's span where no flag states it: the variable that otel-cli and its like set. Whoever
// asks for a transfer did not write it, and so a malformed one is no mistake of theirs.
HandoffRequest WithTrace(HandoffRequest request, const Output& output) {
  const char* span = std::getenv("TRACEPARENT");
  if (!request.traceparent.empty() || span == nullptr || *span == '\0') return request;
  if (wire::ParseTraceparent(span).has_value()) {
    request.traceparent = span;
  } else {
    output.Note("TRACEPARENT is ignored: it is no W3C traceparent");
  }
  return request;
}

}  // namespace

absl::StatusOr<ExitCode> RunTransfer(const TransferFlags& flags, const Output& output,
                                     const std::stop_token& stop) {
  std::error_code absent;
  if (std::filesystem::equivalent(flags.in, flags.out, absent)) {
    return absl::InvalidArgumentError("--out: expected another file than --in, got the same");
  }
  KVB_ASSIGN_OR_RETURN(const TransferReport report,
                       Transfer(flags, WithTrace(flags.request, output), output, stop));
  KVB_RETURN_IF_ERROR(output.Emit(ToJson(report), [&](bool) { return ToText(report); }));
  if (report.applied()) return ExitCode::kOk;
  if (report.reason == "unproven_pair" && flags.by.server.address.empty()) {
    output.Note("the artifact has no passing evidence; --allow-unproven maps all the same");
  }
  return ExitCodeForFallback(report.outcome, report.reason, report.refused, flags.fail_on_fallback);
}

}  // namespace kvbridge::cli
