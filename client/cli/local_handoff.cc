// Mapping in this process.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/cli/handoff.h"
#include "client/cli/local_models.h"
#include "client/cli/progress.h"
#include "core/base/clock.h"
#include "core/base/status_macros.h"
#include "core/device/cpu/cpu_backend.h"
#include "core/engine/local_transfer.h"

namespace kvbridge::cli {
namespace {

// A lone transfer may use what a server would share.
constexpr uint64_t kWorkspaceBytes = uint64_t{4} << 30;

class LocalHandoff final : public Handoff {
 public:
  absl::Status Open(const HandoffFlags& flags, int64_t most_tokens) {
    KVB_ASSIGN_OR_RETURN(pool_, base::WorkerPool::Create({}));
    KVB_ASSIGN_OR_RETURN(backend_, device::CpuBackend::Create(
                                       {}, pool_.get(), kv::BufferPool::Create(kWorkspaceBytes)));
    engine::TransferEngine::Options options;
    options.limits.max_tokens = std::max(options.limits.max_tokens, most_tokens);
    options.limits.max_inflight_bytes = kWorkspaceBytes;
    KVB_ASSIGN_OR_RETURN(
        engine_, engine::TransferEngine::Create(
                     options, {.pool = pool_.get(), .backend = backend_.get(), .clock = &clock_}));
    KVB_ASSIGN_OR_RETURN(loaded_,
                         LoadLocalArtifact(flags.artifact, flags.configs, false, pool_.get()));
    KVB_ASSIGN_OR_RETURN(pin_.resident,
                         backend_->MakeResident(loaded_.mapper, device::Precision::kBf16, {}));
    pin_.proven = loaded_.provenance.verdict() == artifact::Verdict::kPass;
    allow_unproven_ = flags.allow_unproven;
    return absl::OkStatus();
  }

  const model::ModelSpec& source() const override { return loaded_.mapper->source; }
  const model::ModelSpec& target() const override { return loaded_.mapper->target; }
  std::string backend() const override { return backend_->name(); }

  absl::StatusOr<TransferReport> Run(const HandoffRequest& request,
                                     const artifact::CacheFile& source,
                                     const artifact::CacheFile& answer,
                                     const std::stop_token& stop) override {
    const guard::RoutePolicy policy = {.allow_unproven = allow_unproven_,
                                       .max_hops = request.hops + 1};
    const absl::Time started = base::SteadyNow();
    const engine::Decision decision =
        engine::RunLocal(*engine_, SpecOf(request, source), policy, pin_, source.view, answer.view);
    if (stop.stop_requested()) return absl::CancelledError("interrupted");
    return ReportOf(decision, source.view.tokens, base::SteadyNow() - started);
  }

 private:
  guard::TransferSpec SpecOf(const HandoffRequest& request,
                             const artifact::CacheFile& source) const {
    guard::TransferSpec spec;
    spec.request_id = IdOf(request);
    spec.source = source.spec;
    spec.target = target();
    spec.tokens = source.view.tokens;
    spec.position_list = source.positions;
    spec.key_state = guard::KeyState::kRoped;
    spec.prompt_tokens = request.prompt_tokens;
    spec.hops = request.hops;
    spec.native_tail = request.native_tail;
    spec.deadline = base::SteadyNow() + absl::Seconds(request.deadline_seconds);
    if (request.max_latency_seconds) {
      spec.max_latency = absl::Seconds(*request.max_latency_seconds);
    }
    spec.source_buffered = false;
    spec.target_buffered = false;
    return spec;
  }

  const base::SystemClock clock_;
  artifact::Artifact loaded_;
  bool allow_unproven_ = false;
  std::unique_ptr<base::WorkerPool> pool_;
  std::unique_ptr<device::CpuBackend> backend_;
  engine::ArtifactPin pin_;
  std::unique_ptr<engine::TransferEngine> engine_;  // last: it uses the others
};

}  // namespace

absl::StatusOr<std::unique_ptr<Handoff>> OpenLocalHandoff(const HandoffFlags& flags,
                                                          int64_t most_tokens,
                                                          const Output& output) {
  const Progress progress(absl::StrCat("loading ", flags.artifact), output.quiet());
  auto handoff = std::make_unique<LocalHandoff>();
  KVB_RETURN_IF_ERROR(handoff->Open(flags, most_tokens));
  return handoff;
}

}  // namespace kvbridge::cli
