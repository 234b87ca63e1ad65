#include "bench/local_engine.h"

#include <limits>
#include <utility>

#include "absl/time/clock.h"

#include "core/artifact/artifact.h"
#include "core/base/status_macros.h"
#include "core/device/cpu/cpu_backend.h"
#include "core/engine/local_transfer.h"

namespace kvbridge::bench {
namespace {

template <typename Byte>
kv::KvView ToKvView(const client::CacheView<Byte>& view) {
  kv::KvView out{.dtype = tensor::DType::kBf16,
                 .layers = view.shape.layers,
                 .kv_heads = view.shape.kv_heads,
                 .head_dim = view.shape.head_dim,
                 .tokens = view.shape.tokens,
                 .tokens_per_page = view.tokens_per_page,
                 .pages = view.pages,
                 .planes = {}};
  for (Byte* plane : view.planes) {
    out.planes.push_back({.base = const_cast<std::byte*>(plane),
                          .page_stride = view.page_stride,
                          .token_stride = view.token_stride,
                          .head_stride = view.head_stride,
                          .scales = {}});
  }
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalEngine>> LocalEngine::Create(const std::string& artifact) {
  constexpr uint64_t kMaxBytes = uint64_t{2} << 30;
  std::unique_ptr<LocalEngine> local(new LocalEngine());
  KVB_ASSIGN_OR_RETURN(local->workers_, base::WorkerPool::Create({.threads = 0}));
  KVB_ASSIGN_OR_RETURN(
      local->backend_,
      device::CpuBackend::Create({}, local->workers_.get(), kv::BufferPool::Create(kMaxBytes)));
  KVB_ASSIGN_OR_RETURN(auto loaded,
                       artifact::LoadArtifact(artifact, {.pool = local->workers_.get()}));
  KVB_ASSIGN_OR_RETURN(local->pin_.resident,
                       local->backend_->MakeResident(loaded.mapper, device::Precision::kBf16, {}));
  KVB_ASSIGN_OR_RETURN(local->engine_,
                       engine::TransferEngine::Create(
                           {.limits = {.max_inflight_bytes = kMaxBytes}},
                           {local->workers_.get(), local->backend_.get(), &local->clock_}));
  return local;
}

absl::StatusOr<absl::Duration> LocalEngine::Map(const client::SourceView& source,
                                                const client::TargetView& target) {
  guard::TransferSpec spec;
  spec.request_id = "bench";
  spec.source = pin_.resident->mapper().source;
  spec.target = pin_.resident->mapper().target;
  spec.tokens = source.shape.tokens;
  spec.key_state = guard::KeyState::kRoped;
  guard::RoutePolicy policy;
  policy.allow_unproven = true;
  policy.max_abs = std::numeric_limits<float>::max();
  const absl::Time started = absl::Now();
  const engine::Decision decision =
      engine::RunLocal(*engine_, spec, policy, pin_, ToKvView(source), ToKvView(target));
  if (!decision.applied()) return absl::FailedPreconditionError(decision.detail);
  return absl::Now() - started;
}

}  // namespace kvbridge::bench
