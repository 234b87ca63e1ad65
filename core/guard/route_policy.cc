#include "core/guard/route_policy.h"

#include <cstddef>

#include "absl/strings/str_cat.h"

#include "core/base/exact.h"

namespace kvbridge::guard {
namespace {

template <typename T>
absl::Status Expect(bool good, absl::string_view field, absl::string_view expected, const T& got) {
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("policy.", field, ": expected ", expected, ", got ", base::Exact(got)));
}

}  // namespace

absl::string_view Name(RouteStage stage) {
  constexpr absl::string_view kNames[] = {"off", "shadow", "canary", "live"};
  return kNames[static_cast<size_t>(stage)];
}

std::string Drill::Sentence() const {
  return absl::StrCat("drill: ", 100 * share, " % of transfers fall back with ", Name(reason));
}

absl::Status Validate(const RoutePolicy& p) {
  const auto share = [](double x) { return x >= 0 && x <= 1; };
  absl::Status status = Expect(share(p.canary_share), "canary_share", "0 to 1", p.canary_share);
  if (p.max_latency.has_value()) {
    status.Update(Expect(*p.max_latency > absl::ZeroDuration(), "max_latency", "more than 0",
                         absl::FormatDuration(*p.max_latency)));
  }
  status.Update(Expect(p.max_abs > 0, "max_abs", "more than 0", p.max_abs));
  status.Update(Expect(p.max_covered_tokens >= 0, "max_covered_tokens", "0 (no limit) or more",
                       p.max_covered_tokens));
  status.Update(
      Expect(p.min_covered_tokens >= 1, "min_covered_tokens", "1 or more", p.min_covered_tokens));
  status.Update(Expect(p.native_tail >= 1, "native_tail", "1 or more", p.native_tail));
  status.Update(Expect(p.max_hops >= 1, "max_hops", "1 or more", p.max_hops));
  status.Update(Expect(share(p.shadow_rate), "shadow_rate", "0 to 1", p.shadow_rate));
  status.Update(Expect(share(p.drill.share), "drill.share", "0 to 1", p.drill.share));
  status.Update(Expect(!p.drill.on() || p.drill.reason != Reason::kNone, "drill.reason",
                       "a reason beside a share above 0", Name(p.drill.reason)));
  return status;
}

}  // namespace kvbridge::guard
