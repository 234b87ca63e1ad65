#include "core/engine/scheduler.h"

#include <algorithm>

namespace kvbridge::engine {

double Scheduler::Enter(absl::string_view name, double seconds, double until_deadline) {
  ForgetIdle();
  Tenant& tenant = Find(name);
  ++tenant.entered;
  return tenant.virtual_now + std::min(kPatience * seconds, until_deadline);
}

void Scheduler::Leave(absl::string_view name) { --Find(name).entered; }

Scheduler::Tenant& Scheduler::Find(absl::string_view name) {
  const auto [it, fresh] = tenants_.try_emplace(name);
  if (fresh) it->second.virtual_now = virtual_base_;
  return it->second;
}

// What a tenant was given beyond its share is remembered until the others have caught up.
void Scheduler::ForgetIdle() {
  for (auto it = tenants_.begin(); it != tenants_.end();) {
    const auto tenant = it++;
    const Tenant& seen = tenant->second;
    if (seen.entered > 0 || !seen.queue.empty() || seen.tag > tag_now_) continue;
    virtual_base_ = std::max(virtual_base_, tenant->second.virtual_now);
    tenants_.erase(tenant);
  }
}

Scheduler::Ticket Scheduler::Push(absl::string_view name, double due) {
  Tenant& tenant = Find(name);
  if (tenant.queue.empty()) tenant.tag = std::max(tenant.tag, tag_now_);
  const Ticket ticket = ++last_ticket_;
  tenant.queue.emplace(std::pair(due, ticket), ticket);
  ++queued_;
  return ticket;
}

std::optional<Scheduler::Ticket> Scheduler::Pop() {
  Tenant* next = nullptr;
  for (auto& [name, tenant] : tenants_) {
    if (tenant.queue.empty()) continue;
    if (next == nullptr ||
        std::pair(tenant.tag, tenant.last_served) < std::pair(next->tag, next->last_served)) {
      next = &tenant;
    }
  }
  if (next == nullptr) return std::nullopt;
  tag_now_ = std::max(tag_now_, next->tag);
  next->last_served = ++serves_;
  const Ticket ticket = next->queue.begin()->second;
  next->queue.erase(next->queue.begin());
  --queued_;
  return ticket;
}

std::vector<Scheduler::Ticket> Scheduler::PopIf(absl::FunctionRef<bool(Ticket)> wanted) {
  std::vector<Ticket> taken;
  for (auto& [name, tenant] : tenants_) {
    for (auto it = tenant.queue.begin(); it != tenant.queue.end();) {
      const auto unit = it++;
      if (!wanted(unit->second)) continue;
      taken.push_back(unit->second);
      tenant.queue.erase(unit);
    }
  }
  queued_ -= taken.size();
  return taken;
}

void Scheduler::Charge(absl::string_view name, double seconds) {
  Tenant& tenant = Find(name);
  const double weight = weight_of_ ? weight_of_(name) : 1;
  tenant.tag += seconds / (weight > 0 ? weight : 1);
  tenant.virtual_now += seconds / static_cast<double>(std::max<int64_t>(1, tenant.entered));
}

}  // namespace kvbridge::engine
