// POSIX shared memory that a client made and that is opened by its name: for clients that can't
// pass a descriptor. A name is no secret, so whose it is counts: a tenant may name what begins with
// a prefix of its own and belongs to the user of its engine, and nothing else.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "core/memory/unique_fd.h"

namespace kvbridge::memory {

// What one tenant may name.
struct NamedShm {
  std::string tenant;
  std::string prefix;  // of file names in /dev/shm; no entry's begins with another's
  uint32_t uid = 0;    // that owns the segments
};

// A prefix that names may begin with: 1 to 64 of [A-Za-z0-9._-], first no dot.
bool IsShmPrefix(absl::string_view prefix);

// Opens the segment for reading, or for both. Thread contract: pure; never waits.
//
//   UNIMPLEMENTED      nobody may name any
//   PERMISSION_DENIED  there is none, or the tenant may not name it: the same answer
//   INVALID_ARGUMENT   what bears a name of the tenant's is a link or no shared memory; has a second
//                      name, another owner, or access for others than its owner and group; or
//                      can't be opened by this process
absl::StatusOr<UniqueFd> OpenNamedShm(std::span<const NamedShm> allowed, absl::string_view tenant,
                                      absl::string_view name, bool writable);

}  // namespace kvbridge::memory
