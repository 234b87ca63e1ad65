// Descriptors on their way between two processes: each waits for whoever holds its ticket, once,
// and not for long.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "core/memory/unique_fd.h"

namespace kvbridge::memory {

// Which way a descriptor goes. A ticket of one way is unknown in the other.
enum class Way { kToServer, kToClient };

// Thread contract: guarded by its owner's lock. Closing a descriptor may free gigabytes, so those
// that are dropped are handed out, to be closed outside that lock.
class TicketBox {
 public:
  static constexpr size_t kMostOfSession = 16;
  static constexpr size_t kMost = 256;

  // The ticket: 32 hex digits. RESOURCE_EXHAUSTED when too many wait; `fd` stays the caller's then.
  absl::StatusOr<std::string> Put(absl::string_view session_id, Way way, UniqueFd& fd,
                                  absl::Time expires);
  // NOT_FOUND: no such ticket, another session's, expired.
  absl::StatusOr<UniqueFd> Take(absl::string_view session_id, Way way, absl::string_view ticket,
                                absl::Time now);
  std::vector<UniqueFd> DropExpired(absl::Time now);
  std::vector<UniqueFd> DropSession(absl::string_view session_id);
  size_t size() const { return waiting_.size(); }

 private:
  struct Waiting {
    std::string session_id;
    Way way;
    UniqueFd fd;
    absl::Time expires;
  };
  template <typename Predicate>
  std::vector<UniqueFd> DropIf(const Predicate& predicate);

  absl::flat_hash_map<std::string, Waiting> waiting_;  // by ticket
};

}  // namespace kvbridge::memory
