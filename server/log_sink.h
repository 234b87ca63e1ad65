// Where log lines go: a descriptor that may be a file on a full disk, or a pipe that nobody reads.
// Neither may hold the process up: a line that finds no room within kPatience is lost, and counted;
// after it, lines don't wait until one has found room again.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include <spdlog/sinks/base_sink.h>

namespace kvbridge::server {

// Thread contract: spdlog's; lost() may be called from any thread.
class LogSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  static constexpr absl::Duration kPatience = absl::Milliseconds(100);

  // `fd` is borrowed, and may be non-blocking.
  explicit LogSink(int fd) : fd_(fd) {}

  // Lines that were not written, or not to their end.
  uint64_t lost() const { return lost_.load(std::memory_order_relaxed); }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override;
  void flush_() override {}
  // How many bytes were written.
  size_t Write(absl::string_view bytes) const;

  const int fd_;
  std::atomic<uint64_t> lost_{0};
  bool stuck_ = false;  // the last line was lost
  bool torn_ = false;   // part of a line stands without its end
};

}  // namespace kvbridge::server
