#include "core/memory/ledger.h"

#include "absl/strings/str_cat.h"

#include "core/base/units.h"

namespace kvbridge::memory {
namespace {

using base::HumanBytes;

bool Fits(uint64_t used, uint64_t more, uint64_t limit) {
  return used <= limit && more <= limit - used;
}

}  // namespace

Charge::~Charge() {
  if (ledger_ != nullptr) ledger_->GiveBack(id_);
}

absl::StatusOr<Charge> Ledger::Take(absl::string_view tenant, uint64_t bytes,
                                    uint64_t tenant_limit) {
  base::MutexLock lock(&mutex_);
  const auto it = tenants_.find(tenant);
  const uint64_t used = it == tenants_.end() ? 0 : it->second;
  if (!Fits(used, bytes, tenant_limit)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "bytes: expected at most ", HumanBytes(tenant_limit), " in all regions of the tenant, got ",
        HumanBytes(bytes), " on top of ", HumanBytes(used)));
  }
  if (!Fits(totals_.bytes, bytes, max_bytes_)) {
    return absl::ResourceExhaustedError(absl::StrCat("bytes: the server has no ", HumanBytes(bytes),
                                                     " left of the ", HumanBytes(max_bytes_),
                                                     " of all regions"));
  }
  const uint64_t id = next_id_++;
  entries_[id] = {.tenant = std::string(tenant), .bytes = bytes};
  tenants_[tenant] += bytes;
  totals_.bytes += bytes;
  return Charge(shared_from_this(), id);
}

void Ledger::MarkDraining(uint64_t id) {
  base::MutexLock lock(&mutex_);
  const auto it = entries_.find(id);
  if (it == entries_.end() || it->second.draining) return;
  it->second.draining = true;
  totals_.draining_bytes += it->second.bytes;
}

bool Ledger::Holds(uint64_t id) const {
  base::MutexLock lock(&mutex_);
  return entries_.contains(id);
}

Ledger::Totals Ledger::totals() const {
  base::MutexLock lock(&mutex_);
  return totals_;
}

void Ledger::GiveBack(uint64_t id) {
  base::MutexLock lock(&mutex_);
  const auto it = entries_.find(id);
  const Entry& entry = it->second;
  totals_.bytes -= entry.bytes;
  if (entry.draining) totals_.draining_bytes -= entry.bytes;
  const auto tenant = tenants_.find(entry.tenant);
  tenant->second -= entry.bytes;
  if (tenant->second == 0) tenants_.erase(tenant);
  entries_.erase(it);
}

}  // namespace kvbridge::memory
