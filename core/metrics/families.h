// How a MetricSpec becomes a family of prometheus-cpp.
#pragma once

#include <string>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "core/metrics/metric_names.h"

namespace kvbridge::metrics {

inline prometheus::Family<prometheus::Counter>& AddCounter(const MetricSpec& spec,
                                                           prometheus::Registry& registry) {
  return prometheus::BuildCounter()
      .Name(std::string(spec.name))
      .Help(std::string(spec.help))
      .Register(registry);
}

inline prometheus::Family<prometheus::Gauge>& AddGauge(const MetricSpec& spec,
                                                       prometheus::Registry& registry) {
  return prometheus::BuildGauge()
      .Name(std::string(spec.name))
      .Help(std::string(spec.help))
      .Register(registry);
}

inline prometheus::Family<prometheus::Histogram>& AddHistogram(const MetricSpec& spec,
                                                               prometheus::Registry& registry) {
  return prometheus::BuildHistogram()
      .Name(std::string(spec.name))
      .Help(std::string(spec.help))
      .Register(registry);
}

}  // namespace kvbridge::metrics
