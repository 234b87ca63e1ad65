// The engine alone, in this process and on the caller's own pages: what a transfer through
// kvbridged is compared with.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/cpp/cache_view.h"
#include "core/base/clock.h"
#include "core/base/worker_pool.h"
#include "core/device/backend.h"
#include "core/engine/transfer_engine.h"

namespace kvbridge::bench {

class LocalEngine {
 public:
  static absl::StatusOr<std::unique_ptr<LocalEngine>> Create(const std::string& artifact);

  // How long it takes to map BF16 pages. FAILED_PRECONDITION says why they were not.
  absl::StatusOr<absl::Duration> Map(const client::SourceView& source,
                                     const client::TargetView& target);

 private:
  LocalEngine() = default;

  const base::SystemClock clock_;
  std::unique_ptr<base::WorkerPool> workers_;
  std::unique_ptr<device::Backend> backend_;
  engine::ArtifactPin pin_;
  std::unique_ptr<engine::TransferEngine> engine_;
};

}  // namespace kvbridge::bench
