// Files: read-only maps that outlive their names, and atomic replacement of whole folders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include <time.h>

#include "core/base/bus_guard.h"

struct stat;

namespace kvbridge::base {

// A whole regular file mapped read-only. The map stays valid after the file is renamed or unlinked.
// Others may write to the file or cut it short meanwhile: what is gone reads as zeros, and whoever
// has read asks CheckUnchanged() before relying on what it read.
// Thread contract: immutable; any thread may read.
class MappedFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED, or INVALID_ARGUMENT when `path` is not a regular file.
  static absl::StatusOr<std::shared_ptr<const MappedFile>> Open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  uint64_t size() const { return size_; }

  // DATA_LOSS when the file was written to or cut short since Open.
  absl::Status CheckUnchanged() const;

 private:
  MappedFile(const std::filesystem::path& path, int fd, const struct stat& opened,
             const std::byte* data);
  const std::string name_;
  const int fd_;
  const timespec modified_;
  const std::byte* const data_;
  const size_t size_;
  const BusGuard guard_;
};

// Reads a file of at most `max_bytes`; RESOURCE_EXHAUSTED above that, before anything is allocated.
absl::StatusOr<std::string> ReadFile(const std::filesystem::path& path, uint64_t max_bytes);

// A folder being written beside its final place. Files go into `dir()`; Commit() fsyncs them and
// the folder and renames it into place. Destroyed without Commit(): everything is removed. With
// `overwrite` an existing folder is swapped out (RENAME_EXCHANGE) and then removed, so a reader
// sees the old one or the new one, whole. Only what the new folder replaces is removed: a target
// that is no folder, or holds a name that the new one lacks, is INVALID_ARGUMENT and stays. Without
// `overwrite`, an existing target is ALREADY_EXISTS at Begin. Thread contract: one thread.
class AtomicDir {
 public:
  static absl::StatusOr<std::unique_ptr<AtomicDir>> Begin(const std::filesystem::path& target,
                                                          bool overwrite);
  ~AtomicDir();
  AtomicDir(const AtomicDir&) = delete;
  AtomicDir& operator=(const AtomicDir&) = delete;

  const std::filesystem::path& dir() const { return temp_; }
  absl::Status Commit();

 private:
  absl::Status CheckReplaceable() const;
  AtomicDir(std::filesystem::path temp, std::filesystem::path target, bool overwrite)
      : temp_(std::move(temp)), target_(std::move(target)), overwrite_(overwrite) {}
  std::filesystem::path temp_;
  std::filesystem::path target_;
  const bool overwrite_;
  bool committed_ = false;
};

// Writes `data`, or the concatenation of `pieces`, beside `path`, fsyncs, renames over it.
// INVALID_ARGUMENT when something other than a regular file is there: a device or a folder is not
// to be replaced by a file.
absl::Status WriteFileAtomic(const std::filesystem::path& path, absl::string_view data);
absl::Status WriteFileAtomic(const std::filesystem::path& path,
                             absl::Span<const absl::string_view> pieces);

}  // namespace kvbridge::base
