#include "core/memory/region.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/memfd.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/base/status_macros.h"
#include "core/base/units.h"
#include "core/memory/host_memory.h"

namespace kvbridge::memory {
namespace {

constexpr uint64_t kHugePage = 2 * base::kMiB;
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

absl::Status NoMemory(uint64_t bytes, absl::string_view call, int error) {
  return absl::ResourceExhaustedError(absl::StrCat("bytes: the host gave no ",
                                                   base::HumanBytes(bytes), " (", call, ": ",
                                                   std::strerror(error), ")"));
}

// What can't be had is refused here: taking it would end some process by the kernel's
// out-of-memory killer, or this one by SIGXFSZ.
absl::Status CheckHostHas(uint64_t bytes) {
  rlimit file_size{};
  const bool limited = getrlimit(RLIMIT_FSIZE, &file_size) == 0 &&
                       file_size.rlim_cur != RLIM_INFINITY && bytes > file_size.rlim_cur;
  if (!limited && bytes <= ReadHostMemory().available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("bytes: the host has no ", base::HumanBytes(bytes), " to give"));
}

absl::StatusOr<UniqueFd> CreateMemfd(uint64_t bytes, bool hugetlb) {
  const unsigned flags =
      MFD_CLOEXEC | MFD_ALLOW_SEALING | (hugetlb ? MFD_HUGETLB | MFD_HUGE_2MB : 0);
  UniqueFd fd(memfd_create("kvbridge-region", flags));
  if (!fd.valid()) return NoMemory(bytes, "memfd_create", errno);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return NoMemory(bytes, "ftruncate", errno);
  }
  return fd;
}

// Prefers the node for every page that is not there yet.
absl::Status PreferNode(std::span<std::byte> memory, int32_t node) {
  const std::string folder = absl::StrCat("/sys/devices/system/node/node", node);
  if (node < 0 || access(folder.c_str(), F_OK) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("numa_node: expected a node of this host, got ", node));
  }
  constexpr int kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(node / kBits + 1);
  mask[node / kBits] |= 1ul << (node % kBits);
  // The kernel takes one bit less than it is told.
  const unsigned long bits = mask.size() * kBits + 1;
  if (syscall(SYS_mbind, memory.data(), memory.size(), MPOL_PREFERRED, mask.data(), bits, 0) == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("numa_node: this host does not let kvbridge prefer node ", node,
                   " (mbind: ", std::strerror(errno), ")"));
}

// posix_fallocate as the last word: where memory is short it fails, and a touch would raise SIGBUS.
// Before it, populating through the mapping takes transparent huge pages, which it never does.
absl::Status MakePresent(const UniqueFd& fd, std::span<std::byte> memory) {
  madvise(memory.data(), memory.size(), MADV_POPULATE_WRITE);
  int error = 0;
  do {
    error = posix_fallocate(fd.get(), 0, static_cast<off_t>(memory.size()));
  } while (error == EINTR);
  return error == 0 ? absl::OkStatus() : NoMemory(memory.size(), "fallocate", error);
}

// Bytes of the mapping at `data` that lie in transparent huge pages, as the kernel says.
uint64_t TransparentHugeBytes(const std::byte* data) {
  std::ifstream smaps("/proc/self/smaps");
  const std::string begin = absl::StrCat(absl::Hex(reinterpret_cast<uintptr_t>(data)), "-");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    if (!inside) {
      inside = absl::StartsWith(line, begin);
    } else if (absl::StartsWith(line, "ShmemPmdMapped:")) {
      const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
      uint64_t kibibytes = 0;
      return absl::SimpleAtoi(words[1], &kibibytes) ? kibibytes * base::kKiB : 0;
    }
  }
  return 0;
}

absl::Status Refuse(absl::string_view expected, absl::string_view got) {
  return absl::InvalidArgumentError(absl::StrCat("descriptor: expected ", expected, ", got ", got));
}

absl::Status CheckClientMemfd(const UniqueFd& fd, uint64_t bytes) {
  struct stat info {};
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return Refuse("a memfd", "something else");
  }
  struct statfs system {};
  if (fstatfs(fd.get(), &system) != 0 || system.f_type == HUGETLBFS_MAGIC) {
    return Refuse("a memfd of plain pages", "one of hugetlbfs");
  }
  if ((seals & kSizeSeals) != kSizeSeals) {
    return Refuse("the seals F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL",
                  absl::StrCat("0x", absl::Hex(seals)));
  }
  if (static_cast<uint64_t>(info.st_size) < bytes) {
    return Refuse(absl::StrCat("at least ", bytes, " bytes"), absl::StrCat(info.st_size));
  }
  return absl::OkStatus();
}

// Bytes of a file; 0 when it can't be asked.
uint64_t SizeOf(const UniqueFd& fd) {
  struct stat info {};
  return fstat(fd.get(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

absl::Status TooManyUnsealed() {
  return absl::ResourceExhaustedError(absl::StrCat(
      "shm_name: expected at most ", Region::kMostUnsealed, " segments mapped by name"));
}

}  // namespace

uint64_t PageSize() {
  static const auto size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return size;
}

absl::StatusOr<Region::Allocated> Region::Allocate(const RegionOptions& options) {
  KVB_RETURN_IF_ERROR(CheckHostHas(options.bytes));
  if (options.huge_pages && options.bytes % kHugePage == 0) {
    absl::StatusOr<Allocated> huge = AllocateAs(options, /*hugetlb=*/true);
    if (huge.ok()) return huge;
  }
  return AllocateAs(options, /*hugetlb=*/false);
}

absl::StatusOr<Region::Allocated> Region::AllocateAs(const RegionOptions& options, bool hugetlb) {
  const uint64_t size = options.bytes;
  KVB_ASSIGN_OR_RETURN(UniqueFd fd, CreateMemfd(size, hugetlb));
  void* const data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return NoMemory(size, "mmap", errno);
  std::unique_ptr<Region> region(
      new Region(static_cast<std::byte*>(data), size, options.writable, /*ours=*/true));
  madvise(data, size, MADV_DONTDUMP);
  const bool advised = !hugetlb && options.huge_pages && madvise(data, size, MADV_HUGEPAGE) == 0;
  if (options.numa_node.has_value()) {
    KVB_RETURN_IF_ERROR(PreferNode(region->bytes(), *options.numa_node));
  }
  KVB_RETURN_IF_ERROR(MakePresent(fd, region->bytes()));
  if (fcntl(fd.get(), F_ADD_SEALS, kSizeSeals) != 0) return NoMemory(size, "fcntl", errno);
  if (!options.writable && mprotect(data, size, PROT_READ) != 0) {
    return NoMemory(size, "mprotect", errno);
  }
  region->huge_bytes_ = hugetlb ? size : advised ? TransparentHugeBytes(region->data_) : 0;
  return Allocated{std::move(region), std::move(fd)};
}

absl::StatusOr<std::unique_ptr<Region>> Region::Import(const UniqueFd& fd, uint64_t bytes,
                                                       bool writable) {
  KVB_RETURN_IF_ERROR(CheckClientMemfd(fd, bytes));
  return MapClients(fd, bytes, writable);
}

absl::StatusOr<std::unique_ptr<Region>> Region::ImportUnsealed(UniqueFd fd, uint64_t bytes,
                                                               bool writable) {
  if (const uint64_t size = SizeOf(fd); size < bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("shm_name: expected at least ", bytes, " bytes, got ", size));
  }
  if (base::BusGuard::InUse() >= kMostUnsealed) return TooManyUnsealed();
  KVB_ASSIGN_OR_RETURN(std::unique_ptr<Region> region, MapClients(fd, bytes, writable));
  region->fd_ = std::move(fd);
  region->guard_.emplace(region->data_, bytes, writable);
  if (!region->guard_->active()) return TooManyUnsealed();
  KVB_RETURN_IF_ERROR(region->CheckWhole());
  return region;
}

absl::StatusOr<std::unique_ptr<Region>> Region::MapClients(const UniqueFd& fd, uint64_t bytes,
                                                           bool writable) {
  const int protection = PROT_READ | (writable ? PROT_WRITE : 0);
  void* const data = mmap(nullptr, bytes, protection, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED && (errno == EPERM || errno == EACCES)) {
    return Refuse(writable ? "a memfd that may be written" : "a memfd that may be read", "another");
  }
  if (data == MAP_FAILED) return NoMemory(bytes, "mmap", errno);
  std::unique_ptr<Region> region(
      new Region(static_cast<std::byte*>(data), bytes, writable, /*ours=*/false));
  madvise(data, bytes, MADV_DONTDUMP);
  // Pages that its owner never touched are taken now, where that can fail without a signal. EINVAL:
  // a kernel before 5.14.
  const int populate = writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  if (madvise(data, bytes, populate) != 0 && errno != EINVAL) {
    return NoMemory(bytes, "madvise", errno);
  }
  return region;
}

absl::Status Region::CheckWhole() const {
  if (!unsealed() || (!guard_->hit() && SizeOf(fd_) >= size_)) return absl::OkStatus();
  return absl::DataLossError("its owner cut the shared memory short");
}

Region::~Region() {
  guard_.reset();
  if (ours_) {
    // Taking the pages out of the file is zeroing that reaches every mapping, and frees the memory
    // even where the client keeps its descriptor.
    const bool open = writable_ || mprotect(data_, size_, PROT_READ | PROT_WRITE) == 0;
    if (open && madvise(data_, size_, MADV_REMOVE) != 0) std::memset(data_, 0, size_);
  }
  munmap(data_, size_);
}

}  // namespace kvbridge::memory
