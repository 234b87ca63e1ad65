// A large file that is written piece by piece beside its final place, and appears there whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvbridge::fit {

// Destroyed without Commit() or Keep(true): the file is removed. Thread contract: one thread.
class PartialFile {
 public:
  // Reserves `bytes` on the disk, so that it is full now or never: RESOURCE_EXHAUSTED. `final` plus
  // ".partial" is replaced when it is there.
  static absl::StatusOr<std::unique_ptr<PartialFile>> Create(const std::filesystem::path& final,
                                                             uint64_t bytes);
  // Goes on with one that was kept. DATA_LOSS when it has not `bytes`.
  static absl::StatusOr<std::unique_ptr<PartialFile>> Reopen(const std::filesystem::path& final,
                                                             uint64_t bytes);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  absl::Status WriteAt(uint64_t offset, std::span<const std::byte> data);
  absl::Status Sync();
  // Syncs and renames to the final place, replacing what is there.
  absl::Status Commit();
  // Leave the file for Reopen, or, the default, do not.
  void Keep(bool keep) { keep_ = keep; }

 private:
  PartialFile(int fd, std::filesystem::path path, std::filesystem::path final)
      : fd_(fd), path_(std::move(path)), final_(std::move(final)) {}

  const int fd_;
  const std::filesystem::path path_;
  const std::filesystem::path final_;
  bool keep_ = false;
  bool committed_ = false;
};

}  // namespace kvbridge::fit
