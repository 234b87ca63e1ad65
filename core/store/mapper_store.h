// The mappers in use: one resident mapper per pair of models, replaced while transfers run.
//
// Load reads and verifies the artifact, packs it onto the device, warms it up and self-tests it
// beside the one in use, then switches with one pointer. A bad artifact changes nothing but the
// pair's last error. The old mapper is released when the last pin on it drops.
//
// Thread contract: every method may be called from any thread. Load blocks for seconds and must not
// be called from a job of the worker pool; loads of one pair run one after the other, of different
// pairs side by side. Pin, List and Unload only copy pointers and never wait for a load.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "core/artifact/artifact.h"
#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/worker_pool.h"
#include "core/device/backend.h"
#include "core/model/model_spec.h"

namespace kvbridge::store {

// A resident mapper with what is known about it. Immutable.
struct LoadedMapper {
  std::shared_ptr<const device::ResidentMapper> resident;
  artifact::Provenance provenance;
  artifact::Format format = artifact::Format::kNative;
  absl::Duration load_time;  // read, verify, pack, self-test

  const mapper::Mapper& mapper() const { return resident->mapper(); }
};

// Holding one keeps the mapper resident. Cheap to copy.
using PinnedMapper = std::shared_ptr<const LoadedMapper>;

struct LoadRequest {
  std::filesystem::path dir;
  // From the models' config.json, for formats without RoPE (artifact::LoadOptions).
  std::optional<model::ModelSpec> source;
  std::optional<model::ModelSpec> target;
  device::Precision precision = device::Precision::kBf16;
};

struct PairStatus {
  std::string pair;
  PinnedMapper loaded;      // null: none in use
  absl::Status last_error;  // of the last load; OK when it succeeded or there was none
};

class MapperStore {
 public:
  // All three outlive the store and every pin.
  MapperStore(device::Backend* backend, base::WorkerPool* pool, const base::Clock* clock)
      : backend_(backend), pool_(pool), clock_(clock) {}
  MapperStore(const MapperStore&) = delete;
  MapperStore& operator=(const MapperStore&) = delete;

  // The mapper now in use for `pair`; the old one stays in use on any error: LoadArtifact's,
  // MakeResident's or SelfTest's.
  absl::StatusOr<PinnedMapper> Load(const std::string& pair, const LoadRequest& request);

  // NOT_FOUND: nothing is in use, and the last load, if there was one, could not get at an
  // artifact. FAILED_PRECONDITION: nothing is in use because the last load found the artifact
  // damaged or contradictory (DATA_LOSS, INVALID_ARGUMENT, UNIMPLEMENTED). The message holds the
  // last error.
  absl::StatusOr<PinnedMapper> Pin(absl::string_view pair) const;

  // Takes the pair's mapper out of use; pins keep it alive. A load that runs meanwhile still
  // switches its mapper in. NOT_FOUND when none is in use.
  absl::Status Unload(absl::string_view pair);

  // Every pair that was ever loaded, in alphabetical order.
  std::vector<PairStatus> List() const;

 private:
  struct Pair {
    base::Mutex loading;  // held through a whole load; taken before mutex_
    PinnedMapper loaded;
    absl::Status last_error;
  };

  absl::StatusOr<PinnedMapper> Prepare(const LoadRequest& request) const;
  std::shared_ptr<Pair> GetOrAdd(const std::string& pair) ABSL_LOCKS_EXCLUDED(mutex_);

  device::Backend* const backend_;
  base::WorkerPool* const pool_;
  const base::Clock* const clock_;

  mutable base::Mutex mutex_;
  // Pairs are never erased; `loaded` and `last_error` of each are guarded by mutex_, too.
  std::map<std::string, std::shared_ptr<Pair>, std::less<>> pairs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvbridge::store
