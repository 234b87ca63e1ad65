#include "client/cli/app.h"
#include "client/cli/exit_code.h"
#include "client/cli/interrupt.h"
#include "core/base/standard_streams.h"

int main(int argc, char** argv) {
  if (!kvbridge::base::OccupyStandardStreams()) {
    return static_cast<int>(kvbridge::cli::ExitCode::kResources);
  }
  const kvbridge::cli::Interrupt interrupt;
  return kvbridge::cli::RunApp(argc, argv, interrupt.token());
}
