// One mapping of shared memory, which pools lie in. Both sides of a region map the same memory: a
// memfd whose size is sealed, so that neither can cut it short under the other (SIGBUS), or a
// client's named segment, which can't be sealed and is guarded instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "core/base/bus_guard.h"
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

  // Segments that are mapped at a time: the rest of the process's guards are for files.
  static constexpr size_t kMostUnsealed = base::BusGuard::kMost / 2;
  // The first `bytes` of a segment that OpenNamedShm gave. Whatever its owner does to it, touching
  // the region ends nobody: see CheckWhole(). INVALID_ARGUMENT: smaller than stated.
  // RESOURCE_EXHAUSTED: as Import, or there are kMostUnsealed.
  static absl::StatusOr<std::unique_ptr<Region>> ImportUnsealed(UniqueFd fd, uint64_t bytes,
                                                                bool writable);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  std::span<std::byte> bytes() const { return {data_, size_}; }
  bool writable() const { return writable_; }
  // Whether its size can change: CheckWhole() has to be asked.
  bool unsealed() const { return guard_.has_value(); }
  // DATA_LOSS once its owner has cut it short, or its memory could not be had: what was read since
  // the last time may be zeros, and what was written lost. To be asked after bytes were touched
  // and before anything is made of them. Any thread.
  absl::Status CheckWhole() const;
  // How much of it huge pages hold: all, some or none of what was asked for.
  uint64_t huge_bytes() const { return huge_bytes_; }

 private:
  Region(std::byte* data, size_t size, bool writable, bool ours)
      : data_(data), size_(size), writable_(writable), ours_(ours) {}
  static absl::StatusOr<Allocated> AllocateAs(const RegionOptions& options, bool hugetlb);
  static absl::StatusOr<std::unique_ptr<Region>> MapClients(const UniqueFd& fd, uint64_t bytes,
                                                            bool writable);

  std::byte* const data_;
  const size_t size_;
  const bool writable_;
  const bool ours_;  // allocated here
  uint64_t huge_bytes_ = 0;
  UniqueFd fd_;  // of an unsealed one
  std::optional<base::BusGuard> guard_;
};

struct Region::Allocated {
  std::unique_ptr<Region> region;
  UniqueFd fd;  // for the client: readable and writable. The region does not need it.
};

// Bytes of a page of this host; sizes of regions are multiples of it.
uint64_t PageSize();

}  // namespace kvbridge::memory
