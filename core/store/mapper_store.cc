#include "core/store/mapper_store.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/store/self_test.h"

namespace kvbridge::store {
namespace {

// Whether the artifact itself is at fault, rather than its absence or the machine's state.
bool IsIntegrityFailure(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsInvalidArgument(status) ||
         absl::IsUnimplemented(status);
}

std::string_view View(absl::string_view text) { return {text.data(), text.size()}; }

absl::Status NothingInUse(absl::string_view pair, const absl::Status& last_error) {
  const std::string message =
      absl::StrCat("pair \"", pair, "\": no mapper is in use",
                   last_error.ok() ? "" : absl::StrCat(": ", last_error.message()));
  return IsIntegrityFailure(last_error) ? absl::FailedPreconditionError(message)
                                        : absl::NotFoundError(message);
}

}  // namespace

absl::StatusOr<PinnedMapper> MapperStore::Prepare(const LoadRequest& request) const {
  const absl::Time begin = clock_->Now();
  // MakeResident reads every weight: hashing them and looking for NaN and infinity happens there.
  KVB_ASSIGN_OR_RETURN(artifact::Artifact artifact,
                       artifact::LoadArtifact(request.dir, {.pool = pool_,
                                                            .source = request.source,
                                                            .target = request.target,
                                                            .check_finite = false,
                                                            .verify_later = true}));
  KVB_ASSIGN_OR_RETURN(std::unique_ptr<device::ResidentMapper> resident,
                       backend_->MakeResident(artifact.mapper, request.precision, artifact.verify));
  KVB_RETURN_IF_ERROR(artifact.weights->CheckUnchanged());
  KVB_RETURN_IF_ERROR(SelfTest(backend_, *resident));
  return std::make_shared<const LoadedMapper>(
      LoadedMapper{.resident = std::move(resident),
                   .provenance = std::move(artifact.provenance),
                   .format = artifact.format,
                   .load_time = clock_->Now() - begin});
}

std::shared_ptr<MapperStore::Pair> MapperStore::GetOrAdd(const std::string& pair) {
  const base::MutexLock lock(&mutex_);
  std::shared_ptr<Pair>& entry = pairs_[pair];
  if (entry == nullptr) entry = std::make_shared<Pair>();
  return entry;
}

absl::StatusOr<PinnedMapper> MapperStore::Load(const std::string& pair,
                                               const LoadRequest& request) {
  const std::shared_ptr<Pair> entry = GetOrAdd(pair);
  const base::MutexLock one_at_a_time(&entry->loading);
  absl::StatusOr<PinnedMapper> loaded = Prepare(request);
  PinnedMapper replaced;  // released after the lock: freeing gigabytes takes a while
  const base::MutexLock lock(&mutex_);
  entry->last_error = loaded.status();
  if (loaded.ok()) replaced = std::exchange(entry->loaded, *loaded);
  return loaded;
}

absl::StatusOr<PinnedMapper> MapperStore::Pin(absl::string_view pair) const {
  const base::MutexLock lock(&mutex_);
  const auto it = pairs_.find(View(pair));
  if (it == pairs_.end()) return NothingInUse(pair, absl::OkStatus());
  if (it->second->loaded == nullptr) return NothingInUse(pair, it->second->last_error);
  return it->second->loaded;
}

absl::Status MapperStore::Unload(absl::string_view pair) {
  PinnedMapper released;
  const base::MutexLock lock(&mutex_);
  const auto it = pairs_.find(View(pair));
  if (it == pairs_.end() || it->second->loaded == nullptr) {
    return NothingInUse(pair, absl::OkStatus());
  }
  released = std::exchange(it->second->loaded, nullptr);
  it->second->last_error = absl::OkStatus();
  return absl::OkStatus();
}

std::vector<PairStatus> MapperStore::List() const {
  const base::MutexLock lock(&mutex_);
  std::vector<PairStatus> list;
  for (const auto& [pair, entry] : pairs_) {
    list.push_back({pair, entry->loaded, entry->last_error});
  }
  return list;
}

}  // namespace kvbridge::store
