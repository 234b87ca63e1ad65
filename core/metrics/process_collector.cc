#include "core/metrics/process_collector.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include <sys/resource.h>
#include <unistd.h>

#include "core/metrics/metric_names.h"

namespace kvbridge::metrics {
namespace {

std::string ReadAll(const char* path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// What /proc/self/stat says, in its own units; see proc(5).
struct Stat {
  double cpu_ticks = 0;
  double threads = 0;
  double start_ticks = 0;  // since boot
  double virtual_bytes = 0;
  double resident_pages = 0;
};

std::optional<Stat> ReadStat() {
  const std::string text = ReadAll("/proc/self/stat");
  // The second field is the command name in parentheses, which may hold spaces and parentheses.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  const std::vector<std::string> fields =
      absl::StrSplit(absl::string_view(text).substr(name_end + 1), ' ', absl::SkipEmpty());
  constexpr size_t kFirst = 3;  // number in proc(5) of the first field after the name
  const auto number = [&fields](size_t field) {
    double value = 0;
    return absl::SimpleAtod(fields[field - kFirst], &value) ? value : 0.0;
  };
  if (fields.size() < 24 - kFirst + 1) return std::nullopt;
  return Stat{.cpu_ticks = number(14) + number(15),
              .threads = number(20),
              .start_ticks = number(22),
              .virtual_bytes = number(23),
              .resident_pages = number(24)};
}

double ResidentOf(const Stat& stat) {
  return stat.resident_pages * static_cast<double>(sysconf(_SC_PAGESIZE));
}

std::optional<double> BootTime() {
  std::ifstream in("/proc/stat");
  for (std::string line; std::getline(in, line);) {
    double seconds = 0;
    if (line.rfind("btime ", 0) == 0 && absl::SimpleAtod(line.substr(6), &seconds)) return seconds;
  }
  return std::nullopt;
}

prometheus::MetricFamily Single(const MetricSpec& spec, double value) {
  prometheus::MetricFamily family;
  family.name = std::string(spec.name);
  family.help = std::string(spec.help);
  prometheus::ClientMetric metric;
  if (spec.type == MetricType::kCounter) {
    family.type = prometheus::MetricType::Counter;
    metric.counter.value = value;
  } else {
    family.type = prometheus::MetricType::Gauge;
    metric.gauge.value = value;
  }
  family.metric.push_back(metric);
  return family;
}

}  // namespace

uint64_t ResidentBytes() {
  const auto stat = ReadStat();
  return stat ? static_cast<uint64_t>(ResidentOf(*stat)) : 0;
}

std::vector<prometheus::MetricFamily> ProcessCollector::Collect() const {
  std::vector<prometheus::MetricFamily> families;
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  if (const auto stat = ReadStat()) {
    families.push_back(Single(kProcessCpu, stat->cpu_ticks / ticks));
    families.push_back(Single(kProcessThreads, stat->threads));
    families.push_back(Single(kProcessVirtual, stat->virtual_bytes));
    families.push_back(Single(kProcessResident, ResidentOf(*stat)));
    if (const auto boot = BootTime()) {
      families.push_back(Single(kProcessStart, *boot + stat->start_ticks / ticks));
    }
  }
  std::error_code error;
  std::filesystem::directory_iterator fds("/proc/self/fd", error);
  if (!error) {
    // Less the one that this listing holds open.
    families.push_back(
        Single(kProcessOpenFds, static_cast<double>(std::distance(begin(fds), end(fds))) - 1));
  }
  if (rlimit limit{}; getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    families.push_back(Single(kProcessMaxFds, static_cast<double>(limit.rlim_cur)));
  }
  return families;
}

}  // namespace kvbridge::metrics
