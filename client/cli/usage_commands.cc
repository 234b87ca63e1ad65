// kvbridge man and kvbridge completion: what the command line says of itself.
#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "client/cli/commands.h"
#include "client/cli/flag_file.h"
#include "client/cli/suggest.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/usage/completion.h"
#include "core/usage/man_page.h"

namespace kvbridge::cli {
namespace {

constexpr char kProgram[] = "kvbridge";

absl::StatusOr<std::vector<std::string>> WritePages(const std::vector<usage::ManPage>& pages,
                                                    const std::filesystem::path& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat("--dir: ", dir.string(), ": ", error.message()));
  }
  std::vector<std::string> written;
  for (const usage::ManPage& page : pages) {
    const std::string path = (dir / page.file).string();
    KVB_RETURN_IF_ERROR(InFile(path, base::WriteFileAtomic(path, page.text)));
    written.push_back(path);
  }
  return written;
}

// {"routes", "set"} -> "kvbridge-routes-set"
std::string PageNamed(const std::vector<std::string>& words) {
  const std::string name = absl::StrJoin(words, "-");
  if (name.empty()) return kProgram;
  return absl::StartsWith(name, kProgram) ? name : absl::StrCat(kProgram, "-", name);
}

absl::Status NoPage(const std::string& name, const std::vector<usage::ManPage>& pages) {
  if (name == "kvbridged") {
    return absl::NotFoundError("page: kvbridged prints its own: kvbridged --man-page | man -l -");
  }
  std::vector<std::string> names;
  for (const usage::ManPage& page : pages) {
    names.push_back(page.file.substr(0, page.file.rfind('.')));
  }
  const std::string nearest = NearestWord(name, names);
  return absl::NotFoundError(
      absl::StrCat("page: expected a command, got ", name,
                   nearest.empty() ? "" : absl::StrCat(" (did you mean ", nearest, "?)")));
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
  const std::string name = PageNamed(flags.page);
  const auto page = std::find_if(pages.begin(), pages.end(), [&name](const usage::ManPage& p) {
    return p.file == absl::StrCat(name, ".1");
  });
  if (page == pages.end()) return NoPage(name, pages);
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
