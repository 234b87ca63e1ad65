#include "client/cpp/shared_region.h"

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace kvbridge::client {
namespace {

// The server maps no memory that could be cut off under its feet.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

absl::Status NoMemory(size_t bytes, int error) {
  return absl::ResourceExhaustedError(
      absl::StrCat("shared memory of ", bytes, " bytes: ", std::strerror(error)));
}

absl::Status Unusable(const std::string& name, int error) {
  return absl::InvalidArgumentError(
      absl::StrCat("shared memory ", name, ": ", std::strerror(error)));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const SharedRegion>> SharedRegion::Create(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (bytes == 0 || bytes > SIZE_MAX - page) {
    return absl::InvalidArgumentError(absl::StrCat("bytes: expected more than 0, got ", bytes));
  }
  bytes = (bytes + page - 1) / page * page;
  const std::shared_ptr<SharedRegion> region(new SharedRegion);
  region->fd_ = memfd_create("kvbridge", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (region->fd_ < 0) return NoMemory(bytes, errno);
  if (const int error = posix_fallocate(region->fd_, 0, static_cast<off_t>(bytes)); error != 0) {
    return NoMemory(bytes, error);
  }
  if (fcntl(region->fd_, F_ADD_SEALS, kSeals) != 0) return NoMemory(bytes, errno);
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd_, 0);
  if (data == MAP_FAILED) return NoMemory(bytes, errno);
  region->bytes_ = {static_cast<std::byte*>(data), bytes};
  return region;
}

absl::StatusOr<std::shared_ptr<const SharedRegion>> SharedRegion::Named(const std::string& name,
                                                                        bool writable) {
  const std::shared_ptr<SharedRegion> region(new SharedRegion);
  region->name_ = std::string(absl::StripPrefix(name, "/"));
  region->writable_ = writable;
  region->fd_ = shm_open(name.c_str(), O_RDWR, 0);
  struct stat info {};
  if (region->fd_ < 0 || fstat(region->fd_, &info) != 0) return Unusable(name, errno);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t bytes = static_cast<size_t>(info.st_size) / page * page;
  if (bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat("shared memory ", name, ": expected at least ",
                                                   page, " bytes, got ", info.st_size));
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd_, 0);
  if (data == MAP_FAILED) return Unusable(name, errno);
  region->bytes_ = {static_cast<std::byte*>(data), bytes};
  return region;
}

SharedRegion::~SharedRegion() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
  if (fd_ >= 0) close(fd_);
}

}  // namespace kvbridge::client
