// What a client does: memfds of its own, and mapping what it was given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/memory/unique_fd.h"

namespace kvbridge::memory {

inline constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

inline UniqueFd ClientMemfd(uint64_t bytes, int seals = kSizeSeals) {
  UniqueFd fd(memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return UniqueFd();
  if (fcntl(fd.get(), F_ADD_SEALS, seals) != 0) return UniqueFd();
  return fd;
}

// The client's own mapping. Unmapped when destroyed.
class ClientMap {
 public:
  ClientMap(const UniqueFd& fd, uint64_t bytes)
      : data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0)),
        bytes_(bytes) {}
  ~ClientMap() {
    if (ok()) munmap(data_, bytes_);
  }
  ClientMap(const ClientMap&) = delete;
  ClientMap& operator=(const ClientMap&) = delete;

  bool ok() const { return data_ != MAP_FAILED; }
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(data_), bytes_}; }

 private:
  void* const data_;
  const uint64_t bytes_;
};

}  // namespace kvbridge::memory
