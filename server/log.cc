#include "server/log.h"

#include "absl/strings/str_cat.h"
#include <unistd.h>

#include "server/log_sink.h"

namespace kvbridge::server {
namespace {

constexpr size_t kMaxRepeatKeys = 256;

std::string Serialize(const Log::Fields& fields) {
  return fields.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string Timestamp(absl::Time now) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", now, absl::UTCTimeZone());
}

absl::string_view Word(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::debug:
      return "debug";
    case spdlog::level::warn:
      return "warn";
    case spdlog::level::err:
      return "error";
    default:
      return "info";
  }
}

}  // namespace

Log::Options Log::ToStderr(absl::string_view level, absl::string_view format) {
  Options options;
  options.level = spdlog::level::from_str(std::string(level));
  options.json = format == "json" || (format == "auto" && isatty(STDERR_FILENO) == 0);
  const auto sink = std::make_shared<LogSink>(STDERR_FILENO);
  options.sink = sink;
  options.lost = [sink] { return sink->lost(); };
  return options;
}

void Log::SetLevel(absl::string_view level) {
  logger_.set_level(spdlog::level::from_str(std::string(level)));
}

Log::Log(const Options& options, const base::Clock* clock)
    : json_(options.json), clock_(clock), lost_(options.lost), logger_("kvbridged", options.sink) {
  logger_.set_pattern("%v");
  logger_.set_level(options.level);
  logger_.flush_on(spdlog::level::warn);
}

void Log::Debug(absl::string_view msg, Fields fields) {
  Write(spdlog::level::debug, msg, std::move(fields));
}
void Log::Info(absl::string_view msg, Fields fields) {
  Write(spdlog::level::info, msg, std::move(fields));
}
void Log::Warn(absl::string_view msg, Fields fields) {
  Write(spdlog::level::warn, msg, std::move(fields));
}
void Log::Error(absl::string_view msg, Fields fields) {
  Write(spdlog::level::err, msg, std::move(fields));
}
void Log::Event(absl::string_view msg, Fields fields) {
  Emit(spdlog::level::info, msg, std::move(fields));
}

void Log::Write(spdlog::level::level_enum level, absl::string_view msg, Fields fields) {
  if (!logger_.should_log(level)) return;
  const absl::Time now = clock_->Now();
  {
    base::MutexLock lock(&mutex_);
    if (repeats_.size() >= kMaxRepeatKeys) repeats_.clear();
    Repeats& repeats = repeats_[std::string(msg)];
    if (now - repeats.window >= absl::Seconds(1)) {
      if (repeats.suppressed > 0) fields["suppressed"] = repeats.suppressed;
      repeats = {.window = now};
    }
    if (repeats.written >= kBurst) {
      ++repeats.suppressed;
      return;
    }
    ++repeats.written;
  }
  Emit(level, msg, std::move(fields));
}

void Log::Emit(spdlog::level::level_enum level, absl::string_view msg, Fields fields) {
  const absl::Time now = clock_->WallNow();
  std::string line;
  if (json_) {
    fields["ts"] = Timestamp(now);
    fields["level"] = std::string(Word(level));
    fields["msg"] = std::string(msg);
    line = Serialize(fields);
  } else {
    line = absl::StrCat(Timestamp(now), " ", Word(level), " ", msg);
    for (const auto& [key, value] : fields.items()) {
      absl::StrAppend(&line, " ", key, "=", Serialize(value));
    }
  }
  logger_.log(level, spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace kvbridge::server
