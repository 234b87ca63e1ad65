#include "absl/strings/str_cat.h"

#include "client/cli/commands.h"
#include "core/base/status_macros.h"

namespace kvbridge::cli {

absl::StatusOr<ExitCode> RunVersion(const Output& output) {
  const base::Json document = {{"schema", "kvbridge.version/v1"}, {"version", KVBRIDGE_VERSION}};
  KVB_RETURN_IF_ERROR(output.Emit(
      document, [](bool) { return absl::StrCat("kvbridge ", KVBRIDGE_VERSION, "\n"); }));
  return ExitCode::kOk;
}

}  // namespace kvbridge::cli
