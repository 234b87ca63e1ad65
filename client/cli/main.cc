#include "client/cli/app.h"
#include "client/cli/interrupt.h"

int main(int argc, char** argv) {
  const kvbridge::cli::Interrupt interrupt;
  return kvbridge::cli::RunApp(argc, argv, interrupt.token());
}
