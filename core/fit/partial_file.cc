#include "core/fit/partial_file.h"

#include <cerrno>
#include <system_error>

#include "absl/strings/str_cat.h"
#include <fcntl.h>
#include <unistd.h>

#include "core/base/units.h"

namespace kvbridge::fit {
namespace {

namespace fs = std::filesystem;

absl::Status Errno(int error, absl::string_view what, const fs::path& path) {
  // A quota or a file size limit is a full disk to whoever writes.
  if (error == EFBIG || error == EDQUOT) error = ENOSPC;
  return absl::ErrnoToStatus(error, absl::StrCat(what, " ", path.filename().string()));
}

fs::path PartialPath(const fs::path& final) { return fs::path(final) += ".partial"; }

absl::Status SyncFolder(const fs::path& file) {
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return Errno(errno, "open", folder);
  const int rc = fsync(fd);
  const int error = errno;
  close(fd);
  return rc == 0 ? absl::OkStatus() : Errno(error, "fsync", folder);
}

}  // namespace

absl::StatusOr<std::unique_ptr<PartialFile>> PartialFile::Create(const fs::path& final,
                                                                 uint64_t bytes) {
  const fs::path path = PartialPath(final);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return Errno(errno, "create", path);
  std::unique_ptr<PartialFile> file(new PartialFile(fd, path, final));
  if (const int error = posix_fallocate(fd, 0, static_cast<off_t>(bytes)); error != 0) {
    return Errno(error, absl::StrCat("reserve ", base::HumanBytes(bytes), " for"), path);
  }
  return file;
}

absl::StatusOr<std::unique_ptr<PartialFile>> PartialFile::Reopen(const fs::path& final,
                                                                 uint64_t bytes) {
  const fs::path path = PartialPath(final);
  std::error_code ec;
  if (fs::file_size(path, ec) != bytes || ec) {
    return absl::DataLossError(absl::StrCat(path.filename().string(), ": expected the ", bytes,
                                            " bytes that the checkpoint belongs to"));
  }
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return Errno(errno, "open", path);
  return std::unique_ptr<PartialFile>(new PartialFile(fd, path, final));
}

PartialFile::~PartialFile() {
  close(fd_);
  if (!keep_ && !committed_) unlink(path_.c_str());
}

absl::Status PartialFile::WriteAt(uint64_t offset, std::span<const std::byte> data) {
  while (!data.empty()) {
    const ssize_t n = pwrite(fd_, data.data(), data.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Errno(errno, "write", path_);
    data = data.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
}

absl::Status PartialFile::Sync() {
  return fdatasync(fd_) == 0 ? absl::OkStatus() : Errno(errno, "fsync", path_);
}

absl::Status PartialFile::Commit() {
  if (fsync(fd_) != 0) return Errno(errno, "fsync", path_);
  if (rename(path_.c_str(), final_.c_str()) != 0) return Errno(errno, "rename", final_);
  committed_ = true;
  return SyncFolder(final_);
}

}  // namespace kvbridge::fit
