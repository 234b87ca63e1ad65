// Where a command's results go: data to stdout or a file, everything else to stderr.
#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "client/cli/exit_code.h"
#include "core/base/strict_json.h"

namespace kvbridge::cli {

struct OutputOptions {
  bool json = false;
  std::string file;  // empty = stdout
  bool quiet = false;
  bool color = true;  // allowed; used on a terminal only, and never when NO_COLOR is set
};

// Thread contract: one thread.
class Output {
 public:
  explicit Output(OutputOptions options) : options_(std::move(options)) {}

  // One document per command: as JSON, or what `text` makes of it, told whether it may use colour.
  // Every document has a "schema".
  absl::Status Emit(const base::Json& document, const std::function<std::string(bool)>& text) const;

  // One line of many on stdout, at once: JSON without line breaks, or `text`.
  absl::Status EmitLine(const base::Json& document, absl::string_view text) const;

  // A line on stderr, unless quiet.
  void Note(absl::string_view line) const;
  // On stderr, also when quiet: "kvbridge: ..." or a JSON object with code, message and exit_code.
  void Error(absl::string_view code, absl::string_view message, ExitCode exit_code) const;

  // Whether data is text that a person sees at once.
  bool on_terminal() const;
  // Whether that text may hold colours.
  bool color() const;

  bool quiet() const { return options_.quiet; }

 private:
  const OutputOptions options_;
};

// "data_loss", ...
std::string CodeWord(absl::StatusCode code);

}  // namespace kvbridge::cli
