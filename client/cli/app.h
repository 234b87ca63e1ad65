// The command line: flags in, exit code out.
#pragma once

#include <stop_token>

namespace kvbridge::cli {

// Parses and runs. Never throws; usage errors are ExitCode::kUsage, on stderr, with the nearest
// known word where one was misspelt. `stop` ends what can be ended early.
int RunApp(int argc, const char* const* argv, const std::stop_token& stop);

}  // namespace kvbridge::cli
