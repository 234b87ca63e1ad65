// One mapping of shared memory, which pools lie in. Both sides of a region map the same memfd: its
// size is sealed, so that neither can cut it short under the other (SIGBUS).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/statusor.h"

#include "core/memory/unique_fd.h"

namespace kvbridge::memory {

struct RegionOptions {
  uint64_t bytes = 0;                // a multiple of the page size, above 0
  bool writable = false;             // by this process; the other side decides for itself
  std::optional<int32_t> numa_node;  // preferred: another serves when it is full
  bool huge_pages = true;            // where the host has them
};

// Unmapped when destroyed. Thread contract: immutable; what lies in it is the callers' affair.
class Region {
 public:
  struct Allocated;

  // Memory of our own, every page of it present before anyone touches one. RESOURCE_EXHAUSTED: the
  // host has none. INVALID_ARGUMENT names `numa_node`. When the region is destroyed its bytes are
  // gone for everyone: whoever still has it mapped reads zeros.
  static absl::StatusOr<Allocated> Allocate(const RegionOptions& options);

  // The first `bytes` of a client's memfd. INVALID_ARGUMENT: no memfd, a memfd of hugetlbfs (whose
  // owner can take pages out of it), not sealed by F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
  // smaller than stated, or not to be written although `writable`. RESOURCE_EXHAUSTED: the pages
  // that its owner has not touched yet can't be had.
  static absl::StatusOr<std::unique_ptr<Region>> Import(const UniqueFd& fd, uint64_t bytes,
                                                        bool writable);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  std::span<std::byte> bytes() const { return {data_, size_}; }
  bool writable() const { return writable_; }
  // How much of it huge pages hold: all, some or none of what was asked for.
  uint64_t huge_bytes() const { return huge_bytes_; }

 private:
  Region(std::byte* data, size_t size, bool writable, bool ours)
      : data_(data), size_(size), writable_(writable), ours_(ours) {}
  static absl::StatusOr<Allocated> AllocateAs(const RegionOptions& options, bool hugetlb);

  std::byte* const data_;
  const size_t size_;
  const bool writable_;
  const bool ours_;  // allocated here
  uint64_t huge_bytes_ = 0;
};

struct Region::Allocated {
  std::unique_ptr<Region> region;
  UniqueFd fd;  // for the client: readable and writable. The region does not need it.
};

// Bytes of a page of this host; sizes of regions are multiples of it.
uint64_t PageSize();

}  // namespace kvbridge::memory
