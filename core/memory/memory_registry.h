// Sessions, and the regions and pools that they own (docs/memory.md).
//
// A session is a lease: who opened it says now and then that it lives, and its end, however it
// comes, releases all that it owns without waiting for other traffic. A released region or pool is
// *draining* while a transfer still holds a pin: it can't be pinned again, its bytes stay charged,
// and its memory is unmapped when the last pin drops.
//
// Ids are unguessable and scoped to the tenant: another tenant's id answers exactly as one that
// never was (NOT_FOUND, with the same text). Generations differ whenever an id's memory does; a
// stale one is refused (FAILED_PRECONDITION).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "core/base/clock.h"
#include "core/memory/named_shm.h"
#include "core/memory/pool.h"
#include "core/memory/unique_fd.h"

namespace kvbridge::memory {

struct RegistryOptions {
  uint64_t max_bytes = uint64_t{8} << 30;  // regions of all sessions, draining ones included
  // Most bytes of this tenant's regions; null = max_bytes for everyone.
  std::function<uint64_t(absl::string_view tenant)> tenant_bytes;
  int32_t max_sessions = 64;
  int32_t max_regions = 256;  // of one session
  int32_t max_pools = 64;     // of one session
  absl::Duration lease = absl::Seconds(30);
  absl::Duration ticket_life = absl::Seconds(10);
  bool huge_pages = true;  // for what the server allocates; plain pages where the host has none
  std::vector<NamedShm> named_shm;  // what clients may name; empty = nothing
};

struct RegionRequest {
  uint64_t bytes = 0;    // a multiple of the page size
  std::string ticket;    // of a descriptor that the client passed
  std::string shm_name;  // of a segment that the client made; both empty = the server allocates
  std::optional<int32_t> numa_node;
  bool writable = false;
};

struct RegionGrant {
  std::string region_id;
  uint64_t generation = 0;
  std::string ticket;  // fetches the descriptor of a server-allocated region; else empty
};

struct PoolGrant {
  std::string pool_id;
  uint64_t generation = 0;
};

struct MemoryUse {
  uint64_t mapped_bytes = 0;  // live and draining
  uint64_t draining_bytes = 0;
  uint64_t huge_bytes = 0;  // of live regions, in huge pages
  int32_t sessions = 0;
  int32_t regions = 0;
  int32_t pools = 0;
  int32_t waiting_fds = 0;  // descriptors that no one has claimed yet
};

// Thread contract: every method may be called from any thread. Mapping and prefaulting happen
// outside the lock; unmapping on the thread that drops the last pin or the release.
class MemoryRegistry {
 public:
  // `clock` is borrowed. INVALID_ARGUMENT names an option.
  static absl::StatusOr<std::unique_ptr<MemoryRegistry>> Create(const RegistryOptions& options,
                                                                const base::Clock* clock);
  ~MemoryRegistry();  // releases everything; pins may outlive it

  // RESOURCE_EXHAUSTED at max_sessions.
  absl::StatusOr<std::string> OpenSession(absl::string_view tenant);
  // NOT_FOUND once it has ended.
  absl::Status Heartbeat(absl::string_view session_id);
  void CloseSession(absl::string_view session_id);
  // Ends sessions whose lease ran out and drops descriptors whose ticket did. For a timer.
  void Expire();

  // Calls about what a session owns: NOT_FOUND for a session of another tenant or none.
  //
  // RESOURCE_EXHAUSTED: a quota, or the host has no memory (never SIGBUS). INVALID_ARGUMENT: size,
  // seals (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL are required), a descriptor that is no memfd
  // or smaller than stated. NOT_FOUND: the ticket. What named_shm.h says of a name. A failure
  // leaves no descriptor and no mapping.
  absl::StatusOr<RegionGrant> RegisterRegion(absl::string_view tenant, absl::string_view session_id,
                                             const RegionRequest& request);
  // INVALID_ARGUMENT or OUT_OF_RANGE names the plane's field; NOT_FOUND a region.
  absl::StatusOr<PoolGrant> RegisterPool(absl::string_view tenant, absl::string_view session_id,
                                         PoolSpec spec);
  // Region or pool. A region that pools still lie in takes them with it. True: draining, the memory
  // is still mapped because a transfer uses it.
  absl::StatusOr<bool> Unregister(absl::string_view tenant, absl::string_view session_id,
                                  absl::string_view id);
  struct Owned {
    std::vector<std::string> region_ids;
    std::vector<std::string> pool_ids;
  };
  absl::StatusOr<Owned> List(absl::string_view tenant, absl::string_view session_id) const;

  // Takes a pin before a byte is read. NOT_FOUND: unknown, another tenant's, draining.
  // FAILED_PRECONDITION: a stale generation.
  absl::StatusOr<PoolPin> Pin(absl::string_view tenant, absl::string_view pool_id,
                              uint64_t generation) const;

  // For the side socket. Deposit: keeps a client's descriptor until RegisterRegion names its
  // ticket. Claim: the descriptor of a server-allocated region, once.
  absl::StatusOr<std::string> DepositFd(absl::string_view session_id, UniqueFd fd);
  absl::StatusOr<UniqueFd> ClaimFd(absl::string_view session_id, absl::string_view ticket);

  MemoryUse use() const;
  absl::Duration lease() const;

 private:
  struct State;
  explicit MemoryRegistry(std::shared_ptr<State> state);
  const std::shared_ptr<State> state_;
};

}  // namespace kvbridge::memory
