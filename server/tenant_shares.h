// What the configuration says of single tenants, for whoever schedules: it may change at any time.
#pragma once

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
    std::map<std::string, double, std::less<>> weights;
    for (const v1::TenantConfig& tenant : config.tenants())
      weights[tenant.name()] = tenant.weight();
    base::MutexLock lock(&mutex_);
    weights_.swap(weights);
  }

  // 1 for a tenant that is not configured.
  double WeightOf(absl::string_view tenant) const {
    base::MutexLock lock(&mutex_);
    const auto it = weights_.find(std::string(tenant));
    return it == weights_.end() ? 1 : it->second;
  }

 private:
  mutable base::Mutex mutex_;
  std::map<std::string, double, std::less<>> weights_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvbridge::server
