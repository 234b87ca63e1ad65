// What a client does that can't pass a descriptor: a named segment of its own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/memory/unique_fd.h"
#include "tests/core/memory/client_memfd.h"

namespace kvbridge::memory {

// What names of this process's segments begin with.
inline std::string ShmPrefix(const std::string& tenant = "") {
  return "kvbridge-test-" + std::to_string(getpid()) + "-" + tenant + "-";
}

// A segment of zeros. Unlinked when destroyed.
class ClientShm {
 public:
  ClientShm(std::string name, uint64_t bytes, mode_t mode = 0600)
      : name_(std::move(name)),
        fd_(shm_open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600)),
        ok_(posix_fallocate(fd_.get(), 0, static_cast<off_t>(bytes)) == 0 &&
            fchmod(fd_.get(), mode) == 0),
        map_(fd_, bytes) {}
  ~ClientShm() { shm_unlink(name_.c_str()); }
  ClientShm(const ClientShm&) = delete;
  ClientShm& operator=(const ClientShm&) = delete;

  bool ok() const { return ok_ && map_.ok(); }
  const std::string& name() const { return name_; }
  const UniqueFd& fd() const { return fd_; }
  std::span<std::byte> bytes() const { return map_.bytes(); }
  bool Cut(uint64_t bytes) const { return ftruncate(fd_.get(), static_cast<off_t>(bytes)) == 0; }

 private:
  const std::string name_;
  const UniqueFd fd_;
  const bool ok_;
  const ClientMap map_;
};

}  // namespace kvbridge::memory
