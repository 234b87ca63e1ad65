#include "core/guard/quality_drift.h"

#include <algorithm>
#include <numeric>

namespace kvbridge::guard {

void QualityDrift::Update(double ratio, Detectors* detectors) {
  const double cut = std::min(ratio, kMaxRatio);
  for (size_t i = 0; i < kShares.size(); ++i) {
    (*detectors)[i] = ((*detectors)[i] + 1) * (1 + kShares[i] * (cut - 1));
  }
}

double QualityDrift::evidence() const {
  double sum = 0;
  int watched = 0;
  const auto add = [&](bool bound, const Detectors& detectors) {
    if (!bound) return;
    sum += std::accumulate(detectors.begin(), detectors.end(), 0.0);
    watched += static_cast<int>(detectors.size());
  };
  add(bounds_.kl_nats.has_value(), kl_);
  add(bounds_.disagreement.has_value(), disagreement_);
  return watched == 0 ? 0 : sum / watched;
}

bool QualityDrift::Add(double kl_nats, double disagreement) {
  if (bounds_.kl_nats) Update(kl_nats / *bounds_.kl_nats, &kl_);
  if (bounds_.disagreement) Update(disagreement / *bounds_.disagreement, &disagreement_);
  if (evidence() < bounds_.false_alarm_reports) return false;
  kl_ = {};
  disagreement_ = {};
  return true;
}

}  // namespace kvbridge::guard
