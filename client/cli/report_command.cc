// kvbridge report: artifacts in, one page out.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/cli/commands.h"
#include "client/cli/flag_file.h"
#include "client/cli/local_models.h"
#include "client/cli/progress.h"
#include "client/cli/report_page.h"
#include "client/cli/table.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/base/units.h"

namespace kvbridge::cli {
namespace {

// "out/k4/" -> "k4".
std::string FolderName(const std::string& path) {
  const std::filesystem::path whole = std::filesystem::path(path).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

}  // namespace

absl::StatusOr<ExitCode> RunReport(const ReportFlags& flags, const Output& output) {
  KVB_ASSIGN_OR_RETURN(auto pool, base::WorkerPool::Create({}));
  std::vector<ArtifactReport> reports;
  for (const std::string& path : flags.artifacts) {
    const Progress progress(absl::StrCat("verifying ", path), output.quiet());
    KVB_ASSIGN_OR_RETURN(const artifact::Artifact loaded,
                         LoadLocalArtifact(path, {}, true, pool.get()));
    reports.push_back(CollectReport(FolderName(path), loaded));
  }
  const std::string page = ReportPage(reports);
  KVB_RETURN_IF_ERROR(InFile(flags.out, base::WriteFileAtomic(flags.out, page)));
  KVB_RETURN_IF_ERROR(output.Emit(
      {{"schema", "kvbridge.report/v1"},
       {"out", flags.out},
       {"bytes", page.size()},
       {"artifacts", reports.size()}},
      [&](bool) {
        return RenderFields({{"out", flags.out}, {"size", base::HumanBytes(page.size())}});
      }));
  return ExitCode::kOk;
}

}  // namespace kvbridge::cli
