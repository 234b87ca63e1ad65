#include "core/memory/named_shm.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "core/base/status_macros.h"

namespace kvbridge::memory {
namespace {

constexpr size_t kMaxPrefix = 64;
constexpr size_t kMaxName = 255;

bool IsPlain(absl::string_view name) {
  return std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  });
}

bool MayName(const NamedShm& shm, absl::string_view tenant, absl::string_view name) {
  return shm.tenant == tenant && name.size() > shm.prefix.size() &&
         absl::StartsWith(name, shm.prefix);
}

absl::Status NotTheirs() {
  return absl::PermissionDeniedError("shm_name: no segment that the tenant may name");
}

absl::Status Refuse(absl::string_view expected, absl::string_view got) {
  return absl::InvalidArgumentError(absl::StrCat("shm_name: expected ", expected, ", got ", got));
}

absl::Status CheckSegment(const UniqueFd& fd, uint32_t uid) {
  struct stat info {};
  struct statfs system {};
  if (fstat(fd.get(), &info) != 0 || fstatfs(fd.get(), &system) != 0 || !S_ISREG(info.st_mode) ||
      system.f_type != TMPFS_MAGIC) {
    return Refuse("shared memory", "something else");
  }
  // A hard link under a name of the tenant's would open somebody else's.
  if (info.st_nlink != 1) return Refuse("a segment of one name", absl::StrCat(info.st_nlink));
  if (info.st_uid != uid) {
    return Refuse(absl::StrCat("one that user ", uid, " owns"), absl::StrCat(info.st_uid, "'s"));
  }
  // Whoever may write to it may cut it short; whoever may read it has the cache.
  if ((info.st_mode & S_IRWXO) != 0) {
    return Refuse("no access for others (mode 0600 or 0660)",
                  absl::StrFormat("0%o", info.st_mode & 0777));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsShmPrefix(absl::string_view prefix) {
  return !prefix.empty() && prefix.size() <= kMaxPrefix && prefix.front() != '.' && IsPlain(prefix);
}

absl::StatusOr<UniqueFd> OpenNamedShm(std::span<const NamedShm> allowed, absl::string_view tenant,
                                      absl::string_view name, bool writable) {
  if (allowed.empty()) {
    return absl::UnimplementedError(
        "shm_name: this server takes no shared memory by name (memory.named_shm)");
  }
  if (name.size() > kMaxName || !IsPlain(name)) return NotTheirs();
  const auto owner = std::find_if(allowed.begin(), allowed.end(),
                                  [&](const NamedShm& shm) { return MayName(shm, tenant, name); });
  if (owner == allowed.end()) return NotTheirs();
  // O_NONBLOCK: a FIFO in the place of a segment must not hang.
  UniqueFd fd(open(absl::StrCat("/dev/shm/", name).c_str(),
                   (writable ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid() && errno == ENOENT) return NotTheirs();
  if (!fd.valid() && (errno == ELOOP || errno == EISDIR || errno == ENXIO)) {
    return Refuse("shared memory", "something else");
  }
  if (!fd.valid()) {
    return Refuse(writable ? "one that may be read and written" : "one that may be read",
                  std::strerror(errno));
  }
  KVB_RETURN_IF_ERROR(CheckSegment(fd, owner->uid));
  return fd;
}

}  // namespace kvbridge::memory
