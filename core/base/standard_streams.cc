#include "core/base/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

namespace kvbridge::base {

bool OccupyStandardStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (fcntl(fd, F_GETFD) != -1) continue;
    const int mode = fd == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    if (open("/dev/null", mode) != fd) return false;
  }
  return true;
}

}  // namespace kvbridge::base
