#include "core/memory/memory_registry.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/crypto/token.h"
#include "core/memory/ledger.h"
#include "core/memory/pool_layout.h"
#include "core/memory/region.h"
#include "core/memory/ticket_box.h"

namespace kvbridge::memory {
namespace {

constexpr size_t kIdBytes = 16;

// A region as its session and the pools in it share it. The bytes are given back after they are
// unmapped: members go in reverse order.
struct Holding {
  Charge charge;
  std::unique_ptr<Region> region;
};

using Regions = absl::flat_hash_map<std::string, std::shared_ptr<const Holding>>;  // by id

// A pool as its session and the pins on it share it.
struct Pool {
  std::string session_id;
  uint64_t generation = 0;
  kv::KvView view;
  int32_t pages = 0;
  bool writable = false;
  std::shared_ptr<const model::ModelSpec> model;
  Regions memory;                       // that it lies in
  std::vector<const Region*> unsealed;  // of them
};

struct Session {
  std::string tenant;
  absl::Time expires;
  int32_t arriving = 0;  // regions that are being mapped
  Regions regions;
  absl::flat_hash_set<std::string> pools;
};

// What an owner let go of. Destroyed outside the registry's lock: unmapping takes its time.
struct Released {
  std::vector<std::shared_ptr<const Holding>> regions;
  std::vector<std::shared_ptr<const Pool>> pools;
  std::vector<UniqueFd> fds;
};

absl::Status NotFound(absl::string_view field) {
  return absl::NotFoundError(absl::StrCat(field, ": not found"));
}

absl::Status CheckOptions(const RegistryOptions& options) {
  const std::pair<absl::string_view, bool> checks[] = {
      {"max_bytes", options.max_bytes >= 1},
      {"max_sessions", options.max_sessions >= 1},
      {"max_regions", options.max_regions >= 1},
      {"max_pools", options.max_pools >= 1},
      {"lease", options.lease > absl::ZeroDuration()},
      {"ticket_life", options.ticket_life > absl::ZeroDuration()}};
  for (const auto& [name, good] : checks) {
    if (good) continue;
    return absl::InvalidArgumentError(absl::StrCat("memory.", name, ": expected more than 0"));
  }
  return absl::OkStatus();
}

// Whether the memory is there already, the client's.
bool IsClients(const RegionRequest& request) {
  return !request.ticket.empty() || !request.shm_name.empty();
}

absl::Status CheckRequest(const RegionRequest& request) {
  if (request.bytes == 0 || request.bytes % PageSize() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("bytes: expected a multiple of ", PageSize(),
                                                   " above 0, got ", request.bytes));
  }
  if (!request.ticket.empty() && !request.shm_name.empty()) {
    return absl::InvalidArgumentError("shm_name: expected none with a ticket");
  }
  if (request.numa_node.has_value() && IsClients(request)) {
    return absl::InvalidArgumentError(absl::StrCat("numa_node: expected none with a ",
                                                   request.ticket.empty() ? "shm_name" : "ticket",
                                                   ": the memory is there already"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Pool>> MakePool(PoolSpec spec, absl::string_view session_id,
                                               const Regions& regions) {
  auto pool = std::make_shared<Pool>();
  pool->session_id = std::string(session_id);
  pool->pages = spec.pages;
  pool->writable = true;
  KVB_ASSIGN_OR_RETURN(pool->view, LayOut(spec, [&](absl::string_view region_id) {
                         const auto it = regions.find(region_id);
                         if (it == regions.end()) return std::optional<std::span<std::byte>>();
                         pool->memory.insert(*it);
                         pool->writable = pool->writable && it->second->region->writable();
                         return std::optional(it->second->region->bytes());
                       }));
  if (pool->writable) KVB_RETURN_IF_ERROR(CheckPlanesApart(pool->view, spec.pages));
  for (const auto& [id, holding] : pool->memory) {
    if (holding->region->unsealed()) pool->unsealed.push_back(holding->region.get());
  }
  pool->model = std::make_shared<const model::ModelSpec>(std::move(spec.model));
  return pool;
}

absl::Status TooMany(absl::string_view what, int32_t most) {
  return absl::ResourceExhaustedError(
      absl::StrCat(what, ": expected at most ", most, ", got one more"));
}

}  // namespace

struct MemoryRegistry::State {
  State(const RegistryOptions& options_in, const base::Clock* clock_in)
      : options(options_in), clock(clock_in), ledger(Ledger::Create(options_in.max_bytes)) {}

  const RegistryOptions options;
  const base::Clock* const clock;
  const std::shared_ptr<Ledger> ledger;

  mutable base::Mutex mutex;
  uint64_t next_generation ABSL_GUARDED_BY(mutex) = 1;
  absl::flat_hash_map<std::string, Session> sessions ABSL_GUARDED_BY(mutex);
  absl::flat_hash_map<std::string, std::shared_ptr<const Pool>> pools ABSL_GUARDED_BY(mutex);
  TicketBox tickets ABSL_GUARDED_BY(mutex);

  // A session whose lease ran out is gone, whether Expire() has swept it or not. Null = not found.
  Session* Find(absl::string_view session_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const auto it = sessions.find(session_id);
    if (it == sessions.end() || it->second.expires <= clock->Now()) return nullptr;
    return &it->second;
  }
  Session* Find(absl::string_view tenant, absl::string_view session_id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Session* const session = Find(session_id);
    return session != nullptr && session->tenant == tenant ? session : nullptr;
  }

  void TakePool(Session& session, const std::string& pool_id, Released& released)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    session.pools.erase(pool_id);
    const auto it = pools.find(pool_id);
    released.pools.push_back(std::move(it->second));
    pools.erase(it);
  }
  // The region and the pools in it.
  void TakeRegion(Session& session, const std::string& region_id, Released& released)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void TakeSession(const std::string& session_id, Released& released)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Outside the lock. Whether a region or pool of it is still in use.
  bool LetGo(Released released) const;

  // What RegisterRegion maps, before the session has it.
  absl::StatusOr<Region::Allocated> Map(absl::string_view tenant, const RegionRequest& request,
                                        const UniqueFd& deposited) const;
  absl::StatusOr<RegionGrant> Adopt(absl::string_view session_id, Charge charge,
                                    Region::Allocated mapped, bool wants_ticket);
};

void MemoryRegistry::State::TakeRegion(Session& session, const std::string& region_id,
                                       Released& released) {
  const auto region = session.regions.find(region_id);
  std::vector<std::string> inside;
  for (const std::string& pool_id : session.pools) {
    if (pools.at(pool_id)->memory.contains(region_id)) inside.push_back(pool_id);
  }
  for (const std::string& pool_id : inside) TakePool(session, pool_id, released);
  released.regions.push_back(std::move(region->second));
  session.regions.erase(region);
}

void MemoryRegistry::State::TakeSession(const std::string& session_id, Released& released) {
  const auto it = sessions.find(session_id);
  if (it == sessions.end()) return;
  Session session = std::move(it->second);
  sessions.erase(it);
  for (const std::string& pool_id : session.pools) {
    const auto pool = pools.find(pool_id);
    released.pools.push_back(std::move(pool->second));
    pools.erase(pool);
  }
  for (auto& [id, region] : session.regions) released.regions.push_back(std::move(region));
  for (UniqueFd& fd : tickets.DropSession(session_id)) released.fds.push_back(std::move(fd));
}

bool MemoryRegistry::State::LetGo(Released released) const {
  std::vector<uint64_t> charges;
  for (const auto& region : released.regions) charges.push_back(region->charge.id());
  for (const uint64_t charge : charges) ledger->MarkDraining(charge);
  bool in_use = false;
  for (auto& pool : released.pools) {
    const std::weak_ptr<const Pool> watched = pool;
    pool.reset();
    in_use = in_use || !watched.expired();
  }
  released.regions.clear();
  // Asked last and of the ledger: a charge ends only after its memory is unmapped.
  return in_use || std::any_of(charges.begin(), charges.end(),
                               [this](uint64_t charge) { return ledger->Holds(charge); });
}

absl::StatusOr<Region::Allocated> MemoryRegistry::State::Map(absl::string_view tenant,
                                                             const RegionRequest& request,
                                                             const UniqueFd& deposited) const {
  Region::Allocated mapped;
  if (deposited.valid()) {
    KVB_ASSIGN_OR_RETURN(mapped.region, Region::Import(deposited, request.bytes, request.writable));
    return mapped;
  }
  if (!request.shm_name.empty()) {
    KVB_ASSIGN_OR_RETURN(UniqueFd segment, OpenNamedShm(options.named_shm, tenant, request.shm_name,
                                                        request.writable));
    KVB_ASSIGN_OR_RETURN(
        mapped.region, Region::ImportUnsealed(std::move(segment), request.bytes, request.writable));
    return mapped;
  }
  return Region::Allocate({.bytes = request.bytes,
                           .writable = request.writable,
                           .numa_node = request.numa_node,
                           .huge_pages = options.huge_pages});
}

absl::StatusOr<RegionGrant> MemoryRegistry::State::Adopt(absl::string_view session_id,
                                                         Charge charge, Region::Allocated mapped,
                                                         bool wants_ticket) {
  RegionGrant grant;
  grant.generation = charge.id();
  KVB_ASSIGN_OR_RETURN(grant.region_id, crypto::RandomHex(kIdBytes));
  auto holding = std::make_shared<Holding>(Holding{std::move(charge), std::move(mapped.region)});
  base::MutexLock lock(&mutex);
  // It may have ended while the memory was being mapped.
  Session* const session = Find(session_id);
  if (session == nullptr) return NotFound("session_id");
  if (wants_ticket) {
    KVB_ASSIGN_OR_RETURN(grant.ticket, tickets.Put(session_id, Way::kToClient, mapped.fd,
                                                   clock->Now() + options.ticket_life));
  }
  session->regions.emplace(grant.region_id, std::move(holding));
  return grant;
}

absl::StatusOr<std::unique_ptr<MemoryRegistry>> MemoryRegistry::Create(
    const RegistryOptions& options, const base::Clock* clock) {
  KVB_RETURN_IF_ERROR(CheckOptions(options));
  return std::unique_ptr<MemoryRegistry>(
      new MemoryRegistry(std::make_shared<State>(options, clock)));
}

MemoryRegistry::MemoryRegistry(std::shared_ptr<State> state) : state_(std::move(state)) {}

MemoryRegistry::~MemoryRegistry() {
  Released released;
  {
    base::MutexLock lock(&state_->mutex);
    while (!state_->sessions.empty()) {
      const std::string id = state_->sessions.begin()->first;
      state_->TakeSession(id, released);
    }
  }
  state_->LetGo(std::move(released));
}

absl::StatusOr<std::string> MemoryRegistry::OpenSession(absl::string_view tenant) {
  KVB_ASSIGN_OR_RETURN(const std::string id, crypto::RandomHex(kIdBytes));
  base::MutexLock lock(&state_->mutex);
  if (std::cmp_greater_equal(state_->sessions.size(), state_->options.max_sessions)) {
    return TooMany("sessions", state_->options.max_sessions);
  }
  Session& session = state_->sessions[id];
  session.tenant = std::string(tenant);
  session.expires = state_->clock->Now() + state_->options.lease;
  return id;
}

absl::Status MemoryRegistry::Heartbeat(absl::string_view session_id) {
  base::MutexLock lock(&state_->mutex);
  Session* const session = state_->Find(session_id);
  if (session == nullptr) return NotFound("session_id");
  session->expires = state_->clock->Now() + state_->options.lease;
  return absl::OkStatus();
}

void MemoryRegistry::CloseSession(absl::string_view session_id) {
  Released released;
  {
    base::MutexLock lock(&state_->mutex);
    state_->TakeSession(std::string(session_id), released);
  }
  state_->LetGo(std::move(released));
}

void MemoryRegistry::Expire() {
  Released released;
  {
    base::MutexLock lock(&state_->mutex);
    const absl::Time now = state_->clock->Now();
    std::vector<std::string> ended;
    for (const auto& [id, session] : state_->sessions) {
      if (session.expires <= now) ended.push_back(id);
    }
    for (const std::string& id : ended) state_->TakeSession(id, released);
    for (UniqueFd& fd : state_->tickets.DropExpired(now)) released.fds.push_back(std::move(fd));
  }
  state_->LetGo(std::move(released));
}

absl::StatusOr<RegionGrant> MemoryRegistry::RegisterRegion(absl::string_view tenant,
                                                           absl::string_view session_id,
                                                           const RegionRequest& request) {
  UniqueFd deposited;
  {
    base::MutexLock lock(&state_->mutex);
    Session* const session = state_->Find(tenant, session_id);
    if (session == nullptr) return NotFound("session_id");
    KVB_RETURN_IF_ERROR(CheckRequest(request));
    if (!request.ticket.empty()) {
      KVB_ASSIGN_OR_RETURN(deposited, state_->tickets.Take(session_id, Way::kToServer,
                                                           request.ticket, state_->clock->Now()));
    }
    if (std::cmp_greater_equal(session->regions.size() + session->arriving,
                               state_->options.max_regions)) {
      return TooMany("regions of the session", state_->options.max_regions);
    }
    ++session->arriving;
  }
  const absl::Cleanup arrived = [this, session_id] {
    base::MutexLock lock(&state_->mutex);
    if (Session* const session = state_->Find(session_id)) --session->arriving;
  };
  const auto& tenant_bytes = state_->options.tenant_bytes;
  KVB_ASSIGN_OR_RETURN(
      Charge charge,
      state_->ledger->Take(tenant, request.bytes,
                           tenant_bytes ? tenant_bytes(tenant) : state_->options.max_bytes));
  KVB_ASSIGN_OR_RETURN(Region::Allocated mapped, state_->Map(tenant, request, deposited));
  return state_->Adopt(session_id, std::move(charge), std::move(mapped),
                       /*wants_ticket=*/!IsClients(request));
}

absl::StatusOr<PoolGrant> MemoryRegistry::RegisterPool(absl::string_view tenant,
                                                       absl::string_view session_id,
                                                       PoolSpec spec) {
  KVB_ASSIGN_OR_RETURN(const std::string id, crypto::RandomHex(kIdBytes));
  Regions regions;
  {
    base::MutexLock lock(&state_->mutex);
    const Session* const session = state_->Find(tenant, session_id);
    if (session == nullptr) return NotFound("session_id");
    regions = session->regions;
  }
  KVB_ASSIGN_OR_RETURN(auto pool, MakePool(std::move(spec), session_id, regions));
  base::MutexLock lock(&state_->mutex);
  Session* const session = state_->Find(tenant, session_id);
  if (session == nullptr) return NotFound("session_id");
  if (std::cmp_greater_equal(session->pools.size(), state_->options.max_pools)) {
    return TooMany("pools of the session", state_->options.max_pools);
  }
  // It may have been unregistered while the strides were checked.
  for (const auto& [region_id, holding] : pool->memory) {
    if (!session->regions.contains(region_id)) return NotFound("planes: region_id");
  }
  pool->generation = state_->next_generation++;
  session->pools.insert(id);
  const PoolGrant grant{id, pool->generation};
  state_->pools.emplace(id, std::move(pool));
  return grant;
}

absl::StatusOr<bool> MemoryRegistry::Unregister(absl::string_view tenant,
                                                absl::string_view session_id,
                                                absl::string_view id) {
  Released released;
  {
    base::MutexLock lock(&state_->mutex);
    Session* const session = state_->Find(tenant, session_id);
    if (session == nullptr) return NotFound("session_id");
    if (session->regions.contains(id)) {
      state_->TakeRegion(*session, std::string(id), released);
    } else if (session->pools.contains(id)) {
      state_->TakePool(*session, std::string(id), released);
    } else {
      return NotFound("id");
    }
  }
  return state_->LetGo(std::move(released));
}

absl::StatusOr<MemoryRegistry::Owned> MemoryRegistry::List(absl::string_view tenant,
                                                           absl::string_view session_id) const {
  Owned owned;
  {
    base::MutexLock lock(&state_->mutex);
    const Session* const session = state_->Find(tenant, session_id);
    if (session == nullptr) return NotFound("session_id");
    for (const auto& [id, region] : session->regions) owned.region_ids.push_back(id);
    owned.pool_ids.assign(session->pools.begin(), session->pools.end());
  }
  std::sort(owned.region_ids.begin(), owned.region_ids.end());
  std::sort(owned.pool_ids.begin(), owned.pool_ids.end());
  return owned;
}

absl::StatusOr<PoolPin> MemoryRegistry::Pin(absl::string_view tenant, absl::string_view pool_id,
                                            uint64_t generation) const {
  std::shared_ptr<const Pool> pool;
  {
    base::MutexLock lock(&state_->mutex);
    const auto it = state_->pools.find(pool_id);
    if (it == state_->pools.end() || state_->Find(tenant, it->second->session_id) == nullptr) {
      return NotFound("pool_id");
    }
    pool = it->second;
  }
  if (pool->generation != generation) {
    return absl::FailedPreconditionError(
        absl::StrCat("generation: expected the pool's own, got a stale one (", generation, ")"));
  }
  return PoolPin(pool->view, pool->pages, pool->writable, pool, pool->unsealed, pool->model);
}

absl::StatusOr<std::string> MemoryRegistry::DepositFd(absl::string_view session_id, UniqueFd fd) {
  base::MutexLock lock(&state_->mutex);
  if (state_->Find(session_id) == nullptr) return NotFound("session_id");
  return state_->tickets.Put(session_id, Way::kToServer, fd,
                             state_->clock->Now() + state_->options.ticket_life);
}

absl::StatusOr<UniqueFd> MemoryRegistry::ClaimFd(absl::string_view session_id,
                                                 absl::string_view ticket) {
  base::MutexLock lock(&state_->mutex);
  if (state_->Find(session_id) == nullptr) return NotFound("session_id");
  return state_->tickets.Take(session_id, Way::kToClient, ticket, state_->clock->Now());
}

MemoryUse MemoryRegistry::use() const {
  MemoryUse use;
  {
    base::MutexLock lock(&state_->mutex);
    use.sessions = static_cast<int32_t>(state_->sessions.size());
    use.pools = static_cast<int32_t>(state_->pools.size());
    use.waiting_fds = static_cast<int32_t>(state_->tickets.size());
    for (const auto& [id, session] : state_->sessions) {
      use.regions += static_cast<int32_t>(session.regions.size());
      for (const auto& [region_id, holding] : session.regions) {
        use.huge_bytes += holding->region->huge_bytes();
      }
    }
  }
  const Ledger::Totals totals = state_->ledger->totals();
  use.mapped_bytes = totals.bytes;
  use.draining_bytes = totals.draining_bytes;
  return use;
}

absl::Duration MemoryRegistry::lease() const { return state_->options.lease; }

}  // namespace kvbridge::memory
