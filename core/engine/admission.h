// Who may come in. Everything is reserved before anything is allocated, and refused with a reason
// when it cannot be; nobody waits here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "core/base/mutex.h"
#include "core/guard/reason.h"

namespace kvbridge::engine {

struct Limits {
  int64_t max_tokens = 131072;                      // of one request
  uint64_t max_request_bytes = uint64_t{64} << 30;  // payload in and out of one request
  uint64_t max_inflight_bytes = uint64_t{1} << 30;  // buffers and workspace of all requests
  int32_t max_inflight_transfers = 256;
  uint64_t max_tenant_bytes = 0;  // buffers and workspace of one tenant; 0 = max_inflight_bytes
  // Of single tenants, 0 = max_tenant_bytes; empty = none has a limit of its own. Answers at once,
  // from any thread.
  std::function<uint64_t(absl::string_view tenant)> tenant_bytes = nullptr;
};

// What one transfer needs.
struct Claim {
  absl::string_view tenant;
  uint64_t payload_bytes = 0;  // in and out
  uint64_t buffer_bytes = 0;   // buffers and workspace, at most, at any time
  // At least buffer_bytes, or 0: granted instead where it leaves half of every limit free.
  uint64_t wish_bytes = 0;
};

class Admission;

// Room that was granted. Gives it back when destroyed. Move-only; keeps its Admission alive.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept { *this = std::move(other); }
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation() { Release(); }

  uint64_t bytes() const { return bytes_; }

 private:
  friend class Admission;
  Reservation(std::shared_ptr<Admission> admission, std::string tenant, uint64_t bytes)
      : admission_(std::move(admission)), tenant_(std::move(tenant)), bytes_(bytes) {}
  void Release();

  std::shared_ptr<Admission> admission_;
  std::string tenant_;
  uint64_t bytes_ = 0;
};

// Thread contract: every method may be called from any thread; none blocks on another transfer.
class Admission : public std::enable_shared_from_this<Admission> {
 public:
  // INVALID_ARGUMENT names a limit below 1 (max_tenant_bytes may be 0).
  static absl::StatusOr<std::shared_ptr<Admission>> Create(const Limits& limits);

  // batch_limit for what could never fit, overload for what does not fit now. Detail names the
  // limit, never a tenant.
  std::variant<Reservation, guard::Refusal> Reserve(const Claim& claim);

  const Limits& limits() const { return limits_; }
  uint64_t inflight_bytes() const;
  int32_t inflight_transfers() const;
  size_t active_tenants() const;

 private:
  friend class Reservation;
  explicit Admission(const Limits& limits) : limits_(limits) {}
  uint64_t LimitOf(absl::string_view tenant) const;
  void Release(const std::string& tenant, uint64_t bytes);

  const Limits limits_;
  mutable base::Mutex mutex_;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int32_t transfers_ ABSL_GUARDED_BY(mutex_) = 0;
  struct Tenant {
    uint64_t bytes = 0;
    int32_t transfers = 0;
  };
  // Only tenants with a transfer in flight: at most max_inflight_transfers entries.
  absl::flat_hash_map<std::string, Tenant> tenants_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvbridge::engine
