// Structured log lines: one JSON object per line, or text for a person at a terminal.
//
//   {"level":"info","msg":"listening","ts":"2026-01-02T03:04:05.678Z","address":"unix:/run/k.sock"}
//
// Always valid JSON, whatever the message holds: spdlog's own pattern can't promise that, so the
// line is serialised first and spdlog only writes it. A message that repeats more than kBurst times
// a second is held back and counted in the next line of its kind ("suppressed").
//
// Thread contract: every method may be called from any thread. A line may wait a moment for a slow
// stderr: transfers report through EventLog instead.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include <spdlog/spdlog.h>

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "nlohmann/json.hpp"

namespace kvbridge::server {

class Log {
 public:
  using Fields = nlohmann::json;  // an object
  static constexpr int kBurst = 10;

  struct Options {
    spdlog::level::level_enum level = spdlog::level::info;
    bool json = true;
    spdlog::sink_ptr sink;
    // Lines that the sink could not write.
    std::function<uint64_t()> lost = [] { return uint64_t{0}; };
  };
  // `level` and `format` are the configuration's words; "auto" is text when stderr is a terminal.
  static Options ToStderr(absl::string_view level, absl::string_view format);

  // `clock` is borrowed.
  Log(const Options& options, const base::Clock* clock);
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  void Debug(absl::string_view msg, Fields fields = Fields::object());
  void Info(absl::string_view msg, Fields fields = Fields::object());
  void Warn(absl::string_view msg, Fields fields = Fields::object());
  void Error(absl::string_view msg, Fields fields = Fields::object());
  // An information line that is never held back.
  void Event(absl::string_view msg, Fields fields);

  void SetLevel(absl::string_view level);  // as ToStderr
  void Flush() { logger_.flush(); }
  uint64_t lost() const { return lost_(); }

 private:
  struct Repeats {
    absl::Time window;
    int written = 0;
    int suppressed = 0;
  };

  void Write(spdlog::level::level_enum level, absl::string_view msg, Fields fields);
  void Emit(spdlog::level::level_enum level, absl::string_view msg, Fields fields);

  const bool json_;
  const base::Clock* const clock_;
  const std::function<uint64_t()> lost_;
  spdlog::logger logger_;
  base::Mutex mutex_;
  std::map<std::string, Repeats, std::less<>> repeats_ ABSL_GUARDED_BY(mutex_);  // at most 256
};

}  // namespace kvbridge::server
