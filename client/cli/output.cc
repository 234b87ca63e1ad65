#include "client/cli/output.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include <unistd.h>

#include "client/cli/flag_file.h"
#include "client/cli/printable.h"
#include "core/base/file.h"

namespace kvbridge::cli {
namespace {

// What is no UTF-8, such as the name of a file, does not make a document impossible.
std::string JsonText(const base::Json& document, int indent = -1) {
  return PrintableJson(document.dump(indent, ' ', false, base::Json::error_handler_t::replace));
}

absl::Status Print(const std::string& data) {
  if (std::fwrite(data.data(), 1, data.size(), stdout) == data.size() && std::fflush(stdout) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  const std::string why = absl::StrCat("stdout: ", std::strerror(error));
  return error == ENOSPC || error == EDQUOT || error == EFBIG ? absl::ResourceExhaustedError(why)
                                                              : absl::DataLossError(why);
}

}  // namespace

bool Output::on_terminal() const {
  return !options_.json && options_.file.empty() && isatty(STDOUT_FILENO) != 0;
}

bool Output::color() const {
  return options_.color && on_terminal() && std::getenv("NO_COLOR") == nullptr;
}

absl::Status Output::Emit(const base::Json& document,
                          const std::function<std::string(bool)>& text) const {
  const std::string data = options_.json ? JsonText(document, 2) + "\n" : text(color());
  if (!options_.file.empty()) {
    return InFile(options_.file, base::WriteFileAtomic(options_.file, data));
  }
  return Print(data);
}

absl::Status Output::EmitLine(const base::Json& document, absl::string_view text) const {
  return Print(absl::StrCat(options_.json ? JsonText(document) : std::string(text), "\n"));
}

void Output::Note(absl::string_view line) const {
  if (!options_.quiet) std::fprintf(stderr, "%s\n", Printable(line).c_str());
}

void Output::Error(absl::string_view code, absl::string_view message, ExitCode exit_code) const {
  if (!options_.json) {
    std::fprintf(stderr, "kvbridge: %s\n", Printable(message).c_str());
    return;
  }
  const base::Json error = {{"schema", "kvbridge.error/v1"},
                            {"code", std::string(code)},
                            {"message", std::string(message)},
                            {"exit_code", static_cast<int>(exit_code)}};
  std::fprintf(stderr, "%s\n", JsonText(error).c_str());
}

std::string CodeWord(absl::StatusCode code) {
  return absl::AsciiStrToLower(absl::StatusCodeToString(code));
}

}  // namespace kvbridge::cli
