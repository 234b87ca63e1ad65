#include "core/metrics/process_collector.h"

#include <map>

#include <fcntl.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace kvbridge::metrics {
namespace {

std::map<std::string, double> Values() {
  std::map<std::string, double> values;
  for (const auto& family : ProcessCollector().Collect()) {
    const auto& metric = family.metric.at(0);
    values[family.name] =
        family.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value;
  }
  return values;
}

TEST(ProcessCollectorTest, ReadsAPlausibleProcess) {
  const auto values = Values();
  EXPECT_GT(values.at("process_resident_memory_bytes"), 1e6);
  EXPECT_GE(values.at("process_virtual_memory_bytes"), values.at("process_resident_memory_bytes"));
  EXPECT_GE(values.at("process_threads"), 1);
  EXPECT_GT(values.at("process_start_time_seconds"), 1.5e9);
  EXPECT_GT(values.at("process_max_fds"), values.at("process_open_fds"));
  EXPECT_GE(values.at("process_cpu_seconds_total"), 0);
}

TEST(ProcessCollectorTest, SeesOneMoreDescriptor) {
  const double before = Values().at("process_open_fds");
  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(Values().at("process_open_fds"), before + 1);
  close(fd);
}

}  // namespace
}  // namespace kvbridge::metrics
