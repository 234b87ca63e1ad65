#include "core/base/file.h"

#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/base/status_macros.h"

namespace kvbridge::base {
namespace {

namespace fs = std::filesystem;

absl::Status Errno(absl::string_view what, const fs::path& path) {
  const int error = errno;
  const absl::Status status =
      absl::ErrnoToStatus(error, absl::StrCat(what, " ", path.filename().string()));
  // A file that may not grow is a full disk to whoever writes.
  if (error == EFBIG) return absl::ResourceExhaustedError(status.message());
  // "Is a directory" and its like are about the path that was given, not about a state to wait for.
  return absl::IsFailedPrecondition(status) ? absl::InvalidArgumentError(status.message()) : status;
}

absl::Status NotRegular(const fs::path& path) {
  return absl::InvalidArgumentError(
      absl::StrCat(path.filename().string(), ": expected a regular file"));
}

absl::Status SyncPath(const fs::path& path, int flags) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC);
  if (fd < 0) return Errno("open for fsync", path);
  const int rc = fsync(fd);
  const absl::Status status = rc == 0 ? absl::OkStatus() : Errno("fsync", path);
  close(fd);
  return status;
}

fs::path ParentOf(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// Unique among processes and among calls in one process.
fs::path TempSibling(const fs::path& target) {
  static std::atomic<uint64_t> counter{0};
  return ParentOf(target) / absl::StrCat(".", target.filename().string(), ".tmp-", getpid(), "-",
                                         counter.fetch_add(1));
}

absl::Status WriteAll(int fd, absl::string_view data, const fs::path& path) {
  while (!data.empty()) {
    const ssize_t n = write(fd, data.data(), data.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Errno("write", path);
    data.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Open(const fs::path& path) {
  // O_NONBLOCK: opening a FIFO someone left in the place of a file must not hang.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Errno("open", path);
  absl::Cleanup close_fd = [fd] { close(fd); };
  struct stat st;
  if (fstat(fd, &st) != 0) return Errno("stat", path);
  if (!S_ISREG(st.st_mode)) return NotRegular(path);
  void* data = nullptr;
  if (st.st_size > 0) {
    data = mmap(nullptr, static_cast<size_t>(st.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) return Errno("mmap", path);
  }
  std::move(close_fd).Cancel();
  return std::shared_ptr<const MappedFile>(
      new MappedFile(path, fd, st, static_cast<const std::byte*>(data)));
}

MappedFile::MappedFile(const fs::path& path, int fd, const struct stat& opened,
                       const std::byte* data)
    : name_(path.filename().string()),
      fd_(fd),
      modified_(opened.st_mtim),
      data_(data),
      size_(static_cast<size_t>(opened.st_size)),
      guard_(data_, size_) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
  close(fd_);
}

absl::Status MappedFile::CheckUnchanged() const {
  struct stat now;
  if (!guard_.hit() && fstat(fd_, &now) == 0 && static_cast<size_t>(now.st_size) == size_ &&
      now.st_mtim.tv_sec == modified_.tv_sec && now.st_mtim.tv_nsec == modified_.tv_nsec) {
    return absl::OkStatus();
  }
  return absl::DataLossError(absl::StrCat(name_, ": someone wrote to it while it was read"));
}

absl::StatusOr<std::string> ReadFile(const fs::path& path, uint64_t max_bytes) {
  KVB_ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file, MappedFile::Open(path));
  if (file->size() > max_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        path.filename().string(), ": expected at most ", max_bytes, " bytes, got ", file->size()));
  }
  std::string text(reinterpret_cast<const char*>(file->bytes().data()), file->size());
  KVB_RETURN_IF_ERROR(file->CheckUnchanged());
  return text;
}

absl::StatusOr<std::unique_ptr<AtomicDir>> AtomicDir::Begin(const fs::path& target,
                                                            bool overwrite) {
  std::error_code ec;
  if (!overwrite && fs::exists(fs::symlink_status(target, ec))) {
    return absl::AlreadyExistsError(
        absl::StrCat(target.filename().string(), ": exists; pass overwrite to replace it"));
  }
  const fs::path temp = TempSibling(target);
  if (mkdir(temp.c_str(), 0755) != 0) return Errno("mkdir", target);
  return std::unique_ptr<AtomicDir>(new AtomicDir(temp, target, overwrite));
}

AtomicDir::~AtomicDir() {
  if (committed_) return;
  std::error_code ec;
  fs::remove_all(temp_, ec);
}

// `temp_` has the names that the target may have.
absl::Status AtomicDir::CheckReplaceable() const {
  std::error_code ec;
  fs::directory_iterator entries(target_, ec);
  if (ec) {
    return absl::InvalidArgumentError(
        absl::StrCat(target_.filename().string(), ": expected a folder to replace"));
  }
  for (; !ec && entries != fs::directory_iterator(); entries.increment(ec)) {
    const fs::path name = entries->path().filename();
    if (entries->is_regular_file(ec) && fs::exists(temp_ / name, ec)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(target_.filename().string(), ": expected a folder like the new one, got one ",
                     "with ", name.string(), ", which would be lost"));
  }
  return absl::OkStatus();
}

absl::Status AtomicDir::Commit() {
  for (const auto& entry : fs::directory_iterator(temp_)) {
    KVB_RETURN_IF_ERROR(SyncPath(entry.path(), O_RDONLY));
  }
  KVB_RETURN_IF_ERROR(SyncPath(temp_, O_RDONLY | O_DIRECTORY));
  if (renameat2(AT_FDCWD, temp_.c_str(), AT_FDCWD, target_.c_str(), RENAME_NOREPLACE) != 0) {
    if (errno != EEXIST || !overwrite_) return Errno("rename", target_);
    KVB_RETURN_IF_ERROR(CheckReplaceable());
    if (renameat2(AT_FDCWD, temp_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) != 0) {
      return Errno("rename", target_);
    }
    // After the exchange `temp_` names the old folder.
    std::error_code ec;
    fs::remove_all(temp_, ec);
  }
  committed_ = true;
  return SyncPath(ParentOf(target_), O_RDONLY | O_DIRECTORY);
}

absl::Status WriteFileAtomic(const fs::path& path, absl::string_view data) {
  return WriteFileAtomic(path, absl::MakeConstSpan(&data, 1));
}

absl::Status WriteFileAtomic(const fs::path& path, absl::Span<const absl::string_view> pieces) {
  struct stat there;
  if (stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode)) return NotRegular(path);
  const fs::path temp = TempSibling(path);
  const int fd = open(temp.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return Errno("create", path);
  absl::Cleanup discard = [&temp] { unlink(temp.c_str()); };
  absl::Status status;
  for (const absl::string_view piece : pieces) {
    if (status.ok()) status = WriteAll(fd, piece, path);
  }
  if (status.ok() && fsync(fd) != 0) status = Errno("fsync", path);
  if (close(fd) != 0 && status.ok()) status = Errno("close", path);
  KVB_RETURN_IF_ERROR(status);
  if (rename(temp.c_str(), path.c_str()) != 0) return Errno("rename", path);
  std::move(discard).Cancel();
  return SyncPath(ParentOf(path), O_RDONLY | O_DIRECTORY);
}

}  // namespace kvbridge::base
