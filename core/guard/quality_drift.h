// Whether a route has become worse than its artifact's evidence says, told from reports that come
// one by one.
//
// Under the null hypothesis the mean of a non-negative figure x is at most m. Then, for any share
// s of 0 to 1, L = 1 + s (x / m - 1) is non-negative with a mean of at most 1, whatever the
// distribution, and R := (R + 1) L grows by at most 1 per report on average. So the mean number of
// reports until R first reaches A is at least A, however long one looks: R - reports is a
// supermartingale (the Shiryaev-Roberts e-detector of Shin, Ramdas and Rinaldo, arXiv 2203.03532).
// The mean of several R keeps that, so one number watches several figures with several shares:
// large shares are quick to see a large change, small ones see a small change in noise.
//
// A figure is cut at kMaxRatio times m: that only lowers its mean, and no single report can raise
// an alarm.
#pragma once

#include <array>
#include <optional>

namespace kvbridge::guard {

// Largest means that are as good as the evidence. What is not stated is not watched.
struct DriftBounds {
  std::optional<double> kl_nats{};
  std::optional<double> disagreement{};  // of the most likely token, a share
  double false_alarm_reports = 10000;  // A

  friend bool operator==(const DriftBounds&, const DriftBounds&) = default;
};

// Thread contract: one thread at a time.
class QualityDrift {
 public:
  static constexpr double kMaxRatio = 10;
  static constexpr std::array<double, 4> kShares = {0.05, 0.2, 0.5, 1};

  explicit QualityDrift(const DriftBounds& bounds) : bounds_(bounds) {}

  // One report, both figures at least 0. True: the quality is worse than the bounds; it begins
  // anew.
  bool Add(double kl_nats, double disagreement);

  const DriftBounds& bounds() const { return bounds_; }
  // R; an alarm is raised at bounds().false_alarm_reports.
  double evidence() const;

 private:
  using Detectors = std::array<double, kShares.size()>;
  static void Update(double ratio, Detectors* detectors);

  const DriftBounds bounds_;
  Detectors kl_{};
  Detectors disagreement_{};
};

}  // namespace kvbridge::guard
