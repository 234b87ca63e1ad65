#include "server/log_sink.h"

#include <algorithm>
#include <cerrno>
#include <climits>

#include <poll.h>
#include <unistd.h>

namespace kvbridge::server {

void LogSink::sink_it_(const spdlog::details::log_msg& message) {
  spdlog::memory_buf_t line;
  if (torn_) line.push_back('\n');
  const size_t begin = line.size();
  formatter_->format(message, line);
  const size_t written = Write({line.data(), line.size()});
  stuck_ = written < line.size();
  if (stuck_) lost_.fetch_add(1, std::memory_order_relaxed);
  if (written > 0) torn_ = stuck_ && written > begin;
}

// A pipe that can be written to takes PIPE_BUF bytes without waiting.
size_t LogSink::Write(absl::string_view bytes) const {
  const int patience = stuck_ ? 0 : static_cast<int>(absl::ToInt64Milliseconds(kPatience));
  size_t written = 0;
  while (written < bytes.size()) {
    pollfd room{.fd = fd_, .events = POLLOUT, .revents = 0};
    const int ready = poll(&room, 1, patience);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) break;
    const size_t piece = std::min<size_t>(bytes.size() - written, PIPE_BUF);
    const ssize_t n = write(fd_, bytes.data() + written, piece);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) break;
    written += static_cast<size_t>(n);
  }
  return written;
}

}  // namespace kvbridge::server
