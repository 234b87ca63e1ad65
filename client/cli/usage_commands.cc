// kvbridge man and kvbridge completion: what the command line says of itself.
#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "client/cli/commands.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/usage/completion.h"
#include "core/usage/man_page.h"

namespace kvbridge::cli {
namespace {

absl::StatusOr<std::vector<std::string>> WritePages(const std::vector<usage::ManPage>& pages,
                                                    const std::filesystem::path& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat("--dir: ", dir.string(), ": ", error.message()));
  }
  std::vector<std::string> written;
  for (const usage::ManPage& page : pages) {
    KVB_RETURN_IF_ERROR(base::WriteFileAtomic(dir / page.file, page.text));
    written.push_back((dir / page.file).string());
  }
  return written;
}

}  // namespace

absl::StatusOr<ExitCode> RunMan(const ManFlags& flags, const usage::CommandTree& tree,
                                const Output& output) {
  const std::vector<usage::ManPage> pages = usage::ManPages(tree, 1, KVBRIDGE_VERSION);
  if (!flags.dir.empty()) {
    KVB_ASSIGN_OR_RETURN(const std::vector<std::string> written, WritePages(pages, flags.dir));
    KVB_RETURN_IF_ERROR(output.Emit({{"schema", "kvbridge.man/v1"}, {"pages", written}}, [&](bool) {
      return absl::StrCat(absl::StrJoin(written, "\n"), "\n");
    }));
    return ExitCode::kOk;
  }
  const std::string file = absl::StrCat(flags.page, ".1");
  const auto page = std::find_if(pages.begin(), pages.end(),
                                 [&file](const usage::ManPage& p) { return p.file == file; });
  if (page == pages.end()) {
    return absl::NotFoundError(
        absl::StrCat("page: expected one that kvbridge man names, got ", flags.page));
  }
  KVB_RETURN_IF_ERROR(
      output.Emit({{"schema", "kvbridge.man/v1"}, {"file", page->file}, {"text", page->text}},
                  [&page](bool) { return page->text; }));
  return ExitCode::kOk;
}

absl::StatusOr<ExitCode> RunCompletion(const CompletionFlags& flags, const usage::CommandTree& tree,
                                       const Output& output) {
  const std::string script = flags.shell == "bash"  ? usage::BashCompletion(tree)
                             : flags.shell == "zsh" ? usage::ZshCompletion(tree)
                                                    : usage::FishCompletion(tree);
  KVB_RETURN_IF_ERROR(output.Emit(
      {{"schema", "kvbridge.completion/v1"}, {"shell", flags.shell}, {"script", script}},
      [&script](bool) { return script; }));
  return ExitCode::kOk;
}

}  // namespace kvbridge::cli
