#include "core/engine/admission.h"

#include "absl/strings/str_cat.h"

#include "core/base/units.h"

namespace kvbridge::engine {
namespace {

using base::HumanBytes;

guard::Refusal Refuse(guard::Reason reason, absl::string_view limit, const std::string& most,
                      const std::string& got) {
  return {guard::Outcome::kFallbackReprefill, reason,
          absl::StrCat(limit, ": expected at most ", most, ", got ", got)};
}

bool Fits(uint64_t used, uint64_t more, uint64_t limit) {
  return used <= limit && more <= limit - used;
}

}  // namespace

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  Release();
  admission_ = std::exchange(other.admission_, nullptr);
  tenant_ = std::move(other.tenant_);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void Reservation::Release() {
  if (admission_ != nullptr) admission_->Release(tenant_, bytes_);
  admission_ = nullptr;
}

absl::StatusOr<std::shared_ptr<Admission>> Admission::Create(const Limits& limits) {
  const std::pair<absl::string_view, bool> checks[] = {
      {"max_tokens", limits.max_tokens >= 1},
      {"max_request_bytes", limits.max_request_bytes >= 1},
      {"max_inflight_bytes", limits.max_inflight_bytes >= 1},
      {"max_inflight_transfers", limits.max_inflight_transfers >= 1}};
  for (const auto& [name, good] : checks) {
    if (!good) {
      return absl::InvalidArgumentError(absl::StrCat("limits.", name, ": expected 1 or more"));
    }
  }
  return std::shared_ptr<Admission>(new Admission(limits));
}

uint64_t Admission::LimitOf(absl::string_view tenant) const {
  const uint64_t own = limits_.tenant_bytes == nullptr ? 0 : limits_.tenant_bytes(tenant);
  if (own != 0) return own;
  return limits_.max_tenant_bytes == 0 ? limits_.max_inflight_bytes : limits_.max_tenant_bytes;
}

std::variant<Reservation, guard::Refusal> Admission::Reserve(const Claim& claim) {
  using guard::Reason;
  const uint64_t tenant_limit = LimitOf(claim.tenant);
  const std::string need = HumanBytes(claim.buffer_bytes);
  if (claim.payload_bytes > limits_.max_request_bytes) {
    return Refuse(Reason::kBatchLimit, "max_request_bytes", HumanBytes(limits_.max_request_bytes),
                  HumanBytes(claim.payload_bytes));
  }
  if (claim.buffer_bytes > limits_.max_inflight_bytes) {
    return Refuse(Reason::kBatchLimit, "max_inflight_bytes", HumanBytes(limits_.max_inflight_bytes),
                  need);
  }
  if (claim.buffer_bytes > tenant_limit) {
    return Refuse(Reason::kBatchLimit, "max_tenant_bytes", HumanBytes(tenant_limit), need);
  }

  base::MutexLock lock(&mutex_);
  if (transfers_ >= limits_.max_inflight_transfers) {
    return Refuse(Reason::kOverload, "max_inflight_transfers",
                  absl::StrCat(limits_.max_inflight_transfers), "one more");
  }
  if (!Fits(bytes_, claim.buffer_bytes, limits_.max_inflight_bytes)) {
    return Refuse(Reason::kOverload, "max_inflight_bytes", HumanBytes(limits_.max_inflight_bytes),
                  absl::StrCat(need, " on top of ", HumanBytes(bytes_)));
  }
  const auto it = tenants_.find(claim.tenant);
  const uint64_t tenant_bytes = it == tenants_.end() ? 0 : it->second.bytes;
  if (!Fits(tenant_bytes, claim.buffer_bytes, tenant_limit)) {
    return Refuse(Reason::kOverload, "max_tenant_bytes", HumanBytes(tenant_limit),
                  absl::StrCat(need, " on top of ", HumanBytes(tenant_bytes)));
  }
  const bool wish = claim.wish_bytes > 0 &&
                    Fits(bytes_, claim.wish_bytes, limits_.max_inflight_bytes / 2) &&
                    Fits(tenant_bytes, claim.wish_bytes, tenant_limit / 2);
  const uint64_t granted = wish ? claim.wish_bytes : claim.buffer_bytes;
  bytes_ += granted;
  ++transfers_;
  Tenant& tenant = tenants_[claim.tenant];
  tenant.bytes += granted;
  ++tenant.transfers;
  return Reservation(shared_from_this(), std::string(claim.tenant), granted);
}

void Admission::Release(const std::string& tenant, uint64_t bytes) {
  base::MutexLock lock(&mutex_);
  bytes_ -= bytes;
  --transfers_;
  const auto it = tenants_.find(tenant);
  it->second.bytes -= bytes;
  if (--it->second.transfers == 0) tenants_.erase(it);
}

uint64_t Admission::inflight_bytes() const {
  base::MutexLock lock(&mutex_);
  return bytes_;
}

int32_t Admission::inflight_transfers() const {
  base::MutexLock lock(&mutex_);
  return transfers_;
}

size_t Admission::active_tenants() const {
  base::MutexLock lock(&mutex_);
  return tenants_.size();
}

}  // namespace kvbridge::engine
