#include "server/file_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

#include "core/base/file.h"
#include "core/base/units.h"
#include "core/crypto/sha256.h"

namespace kvbridge::server {
namespace {

constexpr uint64_t kMaxFileBytes = base::kMiB;

// Secrets may be among the files, so digests are kept, not bytes.
std::string Fingerprint(const std::vector<std::string>& files) {
  std::string prints;
  for (const std::string& file : files) {
    const auto text = base::ReadFile(file, kMaxFileBytes);
    const auto digest = text.ok() ? crypto::Sha256Hex(*text) : absl::StatusOr<std::string>("");
    absl::StrAppend(&prints, file, "\n", text.ok() ? *digest : text.status().ToString(), "\n");
  }
  return prints;
}

absl::Duration Now() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace

FileWatch::FileWatch(std::vector<Watched> watched) {
  for (Watched& files : watched) {
    std::string seen = Fingerprint(files.files());
    const absl::Duration due = Now() + files.interval;
    entries_.push_back({std::move(files), std::move(seen), due});
  }
  thread_ = std::thread([this] { Main(); });
}

FileWatch::~FileWatch() {
  {
    base::MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.Signal();
  }
  thread_.join();
}

void FileWatch::Kick() {
  base::MutexLock lock(&mutex_);
  kicked_ = true;
  wake_.Signal();
}

bool FileWatch::Sleep(bool* kicked) {
  absl::Duration next = absl::InfiniteDuration();
  for (const Entry& entry : entries_) next = std::min(next, entry.due);
  base::MutexLock lock(&mutex_);
  while (!stopping_ && !kicked_ && Now() < next) {
    if (next == absl::InfiniteDuration()) {
      wake_.Wait(&mutex_);
    } else {
      wake_.WaitFor(&mutex_, next - Now());
    }
  }
  *kicked = std::exchange(kicked_, false);
  return !stopping_;
}

void FileWatch::Look(bool kicked, absl::Duration now) {
  for (Entry& entry : entries_) {
    if (!kicked && now < entry.due) continue;
    entry.due = now + entry.watched.interval;
    std::string seen = Fingerprint(entry.watched.files());
    if (!kicked && seen == entry.seen) continue;
    entry.seen = std::move(seen);
    entry.watched.on_change();
  }
}

void FileWatch::Main() {
  bool kicked = false;
  while (Sleep(&kicked)) Look(kicked, Now());
}

}  // namespace kvbridge::server
