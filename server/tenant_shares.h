// What the configuration says of single tenants, for whoever schedules: it may change at any time.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"

#include "core/base/mutex.h"
#include "kvbridge/v1/config.pb.h"

namespace kvbridge::server {

// Thread contract: every method may be called from any thread.
class TenantShares {
 public:
  explicit TenantShares(const v1::Config& config) { Apply(config); }

  void Apply(const v1::Config& config) {
    std::map<std::string, Share, std::less<>> shares;
    for (const v1::TenantConfig& tenant : config.tenants()) {
      shares[tenant.name()] = {tenant.weight(), static_cast<uint64_t>(tenant.max_inflight_bytes())};
    }
    base::MutexLock lock(&mutex_);
    shares_.swap(shares);
  }

  // 1 for a tenant that is not configured.
  double WeightOf(absl::string_view tenant) const { return Of(tenant).weight; }
  // Most bytes of its requests in flight; 0 = no limit of its own.
  uint64_t InflightBytesOf(absl::string_view tenant) const { return Of(tenant).inflight_bytes; }

 private:
  struct Share {
    double weight = 1;
    uint64_t inflight_bytes = 0;
  };

  Share Of(absl::string_view tenant) const {
    base::MutexLock lock(&mutex_);
    const auto it = shares_.find(std::string(tenant));
    return it == shares_.end() ? Share{} : it->second;
  }

  mutable base::Mutex mutex_;
  std::map<std::string, Share, std::less<>> shares_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvbridge::server
