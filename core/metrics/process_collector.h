// The process_* metrics that every Prometheus client exports, read from /proc/self at each scrape.
#pragma once

#include <cstdint>
#include <vector>

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

namespace kvbridge::metrics {

// Resident memory of this process; 0 where it cannot be read.
uint64_t ResidentBytes();

// Thread contract: Collect() may be called from any thread. A value that cannot be read is left
// out.
class ProcessCollector final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace kvbridge::metrics
