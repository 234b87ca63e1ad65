// The process_* metrics that every Prometheus client exports, read from /proc/self at each scrape.
#pragma once

#include <vector>

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

namespace kvbridge::metrics {

// Thread contract: Collect() may be called from any thread. A value that cannot be read is left
// out.
class ProcessCollector final : public prometheus::Collectable {
 public:
  std::vector<prometheus::MetricFamily> Collect() const override;
};

}  // namespace kvbridge::metrics
