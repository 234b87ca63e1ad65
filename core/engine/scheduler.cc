#include "core/engine/scheduler.h"

#include <algorithm>
#include <limits>

namespace kvbridge::engine {

Scheduler::Place Scheduler::Enter(absl::string_view name, double seconds, double until_deadline) {
  ForgetIdle();
  Tenant& tenant = Find(name);
  ++tenant.entered;
  const double weight = weight_of_ ? weight_of_(name) : 1;
  tenant.weight = weight > 0 ? weight : 1;
  return {tenant.virtual_now + std::min(kPatience * seconds, until_deadline), seconds};
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

Scheduler::Ticket Scheduler::Push(absl::string_view name, Place place) {
  Tenant& tenant = Find(name);
  if (tenant.queue.empty()) tenant.tag = std::max(tenant.tag, tag_now_);
  const Ticket ticket = ++last_ticket_;
  tenant.queue.emplace(std::pair(place.due, ticket), place.seconds);
  ++queued_;
  return ticket;
}

Scheduler::Turn Scheduler::TurnOf(const Tenant& tenant) const {
  const double seconds = tenant.queue.begin()->second;
  const double ahead = (tenant.tag - tag_now_) * tenant.weight;
  const bool borrows = seconds <= kShort && ahead < kBorrowed;
  return {!borrows, borrows ? seconds : tenant.tag, tenant.last_served};
}

std::optional<Scheduler::Ticket> Scheduler::Pop() {
  if (queued_ == 0) return std::nullopt;
  double least_tag = std::numeric_limits<double>::infinity();
  for (const auto& [name, tenant] : tenants_) {
    if (!tenant.queue.empty()) least_tag = std::min(least_tag, tenant.tag);
  }
  tag_now_ = std::max(tag_now_, least_tag);
  Tenant* next = nullptr;
  for (auto& [name, tenant] : tenants_) {
    if (tenant.queue.empty()) continue;
    if (next == nullptr || TurnOf(tenant) < TurnOf(*next)) next = &tenant;
  }
  next->last_served = ++serves_;
  const Ticket ticket = next->queue.begin()->first.second;
  next->queue.erase(next->queue.begin());
  --queued_;
  return ticket;
}

std::vector<Scheduler::Ticket> Scheduler::PopIf(absl::FunctionRef<bool(Ticket)> wanted) {
  std::vector<Ticket> taken;
  for (auto& [name, tenant] : tenants_) {
    for (auto it = tenant.queue.begin(); it != tenant.queue.end();) {
      const auto unit = it++;
      const Ticket ticket = unit->first.second;
      if (!wanted(ticket)) continue;
      taken.push_back(ticket);
      tenant.queue.erase(unit);
    }
  }
  queued_ -= taken.size();
  return taken;
}

void Scheduler::Charge(absl::string_view name, double seconds) {
  Tenant& tenant = Find(name);
  tenant.tag += seconds / tenant.weight;
  tenant.virtual_now += seconds / static_cast<double>(std::max<int64_t>(1, tenant.entered));
}

}  // namespace kvbridge::engine
