#include "core/engine/local_transfer.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"

#include "core/base/mutex.h"

namespace kvbridge::engine {
namespace {

// Counts the works in flight and lets the caller wait for room, or for the last of them.
class WorkWindow {
 public:
  explicit WorkWindow(int32_t size) : size_(size) {}

  void Enter() {
    base::MutexLock lock(&mutex_);
    while (used_ == size_) left_.Wait(&mutex_);
    ++used_;
  }
  // Under the lock to the end: the one who waits may destroy the window as soon as it has it.
  void Leave() {
    base::MutexLock lock(&mutex_);
    --used_;
    left_.SignalAll();
  }
  void AwaitEmpty() {
    base::MutexLock lock(&mutex_);
    while (used_ > 0) left_.Wait(&mutex_);
  }

 private:
  const int32_t size_;
  base::Mutex mutex_;
  base::CondVar left_;
  int32_t used_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Submits everything and returns, when the last worker has left, how far it came.
int64_t SubmitAll(Transfer& transfer, const kv::KvView& source, const kv::KvView& target) {
  WorkWindow window(transfer.works_in_flight());
  int64_t begin = transfer.spec().first_token;
  while (begin < transfer.covered_tokens() && !transfer.cancelled()) {
    const int64_t end = std::min(begin + transfer.work_tokens(), transfer.covered_tokens());
    TileWork work;
    work.tokens = {begin, end};
    work.source = source;
    work.source_begin = begin;
    work.target = target;
    work.target_begin = begin;
    work.on_done = [&window](const absl::Status&) { window.Leave(); };
    window.Enter();
    if (absl::Status status = transfer.SubmitTile(std::move(work)); !status.ok()) {
      window.Leave();
      // The views are the caller's; whatever else is wrong with a work is our fault.
      transfer.Cancel(guard::Fallback(absl::IsInvalidArgument(status)
                                          ? guard::Reason::kShapeMismatch
                                          : guard::Reason::kInternal,
                                      status.message()));
      break;
    }
    begin = end;
  }
  window.AwaitEmpty();
  return begin;
}

}  // namespace

Decision RunLocal(TransferEngine& engine, guard::TransferSpec spec,
                  const guard::RoutePolicy& policy, ArtifactPin pin, const kv::KvView& source,
                  const kv::KvView& target) {
  spec.source_buffered = false;
  spec.target_buffered = false;
  auto begun = engine.Begin(std::move(spec), policy, std::move(pin));
  if (auto* decision = std::get_if<Decision>(&begun)) return *std::move(decision);
  Transfer& transfer = *std::get<std::shared_ptr<Transfer>>(begun);

  kv::KvView covered = target;
  covered.tokens = std::min(transfer.covered_tokens(), target.tokens);
  kv::ZeroTail(covered);
  const int64_t submitted = SubmitAll(transfer, source, target);
  const Decision decision = transfer.Finish().value();
  if (decision.applied()) return decision;
  for (int32_t layer = 0; layer < target.layers; ++layer) {
    for (const kv::Component c : kv::kComponents) {
      kv::ZeroRows(target, layer, c, {transfer.spec().first_token, submitted});
    }
  }
  return decision;
}

}  // namespace kvbridge::engine
