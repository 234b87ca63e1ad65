#include "core/engine/transfer.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/engine/dispatcher.h"
#include "core/engine/sweep.h"
#include "core/guard/post_check.h"

namespace kvbridge::engine {
namespace {

using guard::Fallback;
using guard::Outcome;
using guard::Reason;
using guard::Refusal;

// Requests were checked before: what the device still finds wrong with its arguments is our bug.
Refusal FromDevice(const absl::Status& error) {
  Reason reason = Reason::kDeviceError;
  if (absl::IsResourceExhausted(error)) reason = Reason::kDeviceOom;
  if (absl::IsDataLoss(error)) reason = Reason::kTransport;
  if (absl::IsInvalidArgument(error) || absl::IsOutOfRange(error) ||
      absl::IsFailedPrecondition(error) || absl::IsCancelled(error)) {
    reason = Reason::kInternal;
  }
  return Fallback(reason, error.message());
}

absl::Status CheckView(const kv::KvView& view, const model::KvGeometry& geometry, int64_t begin,
                       int64_t count, absl::string_view name) {
  if (view.layers != geometry.layers || view.kv_heads != geometry.kv_heads ||
      view.head_dim != geometry.head_dim || view.dtype != geometry.dtype ||
      view.planes.size() != 2 * static_cast<size_t>(geometry.layers)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "work.", name, ": expected ", geometry.layers, " layers x ", geometry.kv_heads, " heads x ",
        geometry.head_dim, " ", tensor::Name(geometry.dtype), ", got ", view.layers, " x ",
        view.kv_heads, " x ", view.head_dim, " ", tensor::Name(view.dtype)));
  }
  if (begin < 0 || begin > view.tokens || count > view.tokens - begin) {
    return absl::InvalidArgumentError(absl::StrCat("work.", name, "_begin: expected ", count,
                                                   " tokens within ", view.tokens, ", got ",
                                                   begin));
  }
  return absl::OkStatus();
}

}  // namespace

Transfer::Transfer(const Env& env, Parts parts)
    : env_(env),
      spec_(std::move(parts.spec)),
      policy_(std::move(parts.policy)),
      admissible_(parts.admissible),
      pin_(std::move(parts.pin)),
      reservation_(std::move(parts.reservation)),
      room_(parts.room),
      positions_(std::move(parts.positions)),
      salt_(std::move(parts.salt)),
      budget_end_(parts.budget_end),
      expected_seconds_(parts.expected_seconds),
      seconds_per_token_(parts.seconds_per_token),
      place_(parts.place) {}

Transfer::~Transfer() { env_.dispatcher->Leave(spec_.tenant); }

absl::Status Transfer::Stopped() { return absl::CancelledError("transfer: refused or finished"); }

absl::Status Transfer::CheckWork(const TileWork& work) const {
  const kv::TokenRange tokens = work.tokens;
  const int64_t first = spec_.first_token;
  if (tokens.begin < first || tokens.size() < 1 || tokens.end > covered_tokens() ||
      tokens.size() > room_.tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("work.tokens: expected 1 to ", room_.tokens, " tokens within [", first, ", ",
                     covered_tokens(), "), got [", tokens.begin, ", ", tokens.end, ")"));
  }
  KVB_RETURN_IF_ERROR(
      CheckView(work.source, spec_.source.geometry, work.source_begin, tokens.size(), "source"));
  return CheckView(work.target, spec_.target.geometry, work.target_begin, tokens.size(), "target");
}

absl::Status Transfer::SubmitTile(TileWork work) {
  KVB_RETURN_IF_ERROR(CheckWork(work));
  {
    base::MutexLock lock(&mutex_);
    if (refusal_.has_value() || finished_) return Stopped();
    if (works_running_ >= room_.works) {
      return absl::FailedPreconditionError(
          absl::StrCat("work: expected at most ", room_.works, " in flight"));
    }
    if (submitted_.CountIn(work.tokens) > 0) {
      return absl::InvalidArgumentError(absl::StrCat("work.tokens: [", work.tokens.begin, ", ",
                                                     work.tokens.end, ") came before"));
    }
    submitted_.Insert(work.tokens);
    ++works_running_;
  }
  const absl::Status queued = env_.dispatcher->Submit(
      std::make_shared<Sweep>(shared_from_this(), std::move(work), env_.tiles_in_flight));
  if (!queued.ok()) {
    Cancel(Fallback(Reason::kOverload, queued.message()));
    base::MutexLock lock(&mutex_);
    --works_running_;
  }
  return queued;
}

void Transfer::Fail(const absl::Status& device_error) { Cancel(FromDevice(device_error)); }

void Transfer::WorkDone(int64_t tokens, const absl::Status& status, absl::Duration busy) {
  {
    base::MutexLock lock(&mutex_);
    --works_running_;
    if (status.ok()) done_tokens_ += tokens;
  }
  // Short works cost nearly as much as full tiles and say little about the rate.
  if (status.ok() && 2 * tokens >= env_.tile_tokens && !pin_.moves) {
    env_.rates->Record(artifact_digest(), static_cast<double>(tokens), busy, env_.clock->Now());
  }
}

absl::Status Transfer::CheckLayers(const device::TileChecks& checks) {
  {
    base::MutexLock lock(&mutex_);
    checks_.Merge(checks);
  }
  if (std::optional<Refusal> no = guard::PostCheck(checks, policy_, spec_.overflow)) {
    Cancel(*std::move(no));
  }
  return cancelled() ? Stopped() : absl::OkStatus();
}

int64_t Transfer::Pads(kv::TokenRange range) const {
  return std::clamp<int64_t>(positions_.pads() - range.begin, 0, range.size());
}

void Transfer::MarkDirty(const kv::KvView& target, int64_t begin, int64_t tokens) {
  if (target.tokens_per_page == 0) return;
  const int64_t first = begin / target.tokens_per_page;
  const int64_t last = (begin + tokens - 1) / target.tokens_per_page;
  base::MutexLock lock(&mutex_);
  dirty_pages_.insert(target.pages.begin() + first, target.pages.begin() + last + 1);
}

bool Transfer::Cancel(Refusal refusal) {
  {
    base::MutexLock lock(&mutex_);
    if (refusal_.has_value() || finished_) return false;
    refusal_ = std::move(refusal);
    stopped_->store(true, std::memory_order_release);
  }
  env_.dispatcher->ExpelRefused();
  return true;
}

bool Transfer::cancelled() {
  if (stopped_->load(std::memory_order_acquire)) return true;
  const absl::Time now = env_.clock->Now();
  if (now < stop_at()) return false;
  Cancel(now >= spec_.deadline ? Fallback(Reason::kDeadlineExceeded, "the call's deadline passed")
                               : Fallback(Reason::kLatencyBudget, "the latency budget ran out"));
  return true;
}

std::optional<Refusal> Transfer::WhyIncomplete() const {
  if (refusal_.has_value()) return refusal_;
  const kv::TokenRange wanted{spec_.first_token, covered_tokens()};
  if (done_tokens_ < wanted.size()) {
    const int64_t missing = submitted_.FirstNotIn(wanted);
    if (missing < wanted.end) {
      return Fallback(Reason::kShapeMismatch,
                      absl::StrCat("source tokens: expected [", wanted.begin, ", ", wanted.end,
                                   "), token ", missing, " never came"));
    }
    return Fallback(Reason::kInternal,
                    absl::StrCat("finished with ", works_running_, " works in flight"));
  }
  if (!publish()) return Fallback(Reason::kRouteDisabled, "the route is in shadow");
  return std::nullopt;
}

std::optional<Decision> Transfer::Finish() {
  cancelled();
  base::MutexLock lock(&mutex_);
  if (finished_) return std::nullopt;
  finished_ = true;
  stopped_->store(true, std::memory_order_release);

  Decision decision;
  if (const std::optional<Refusal> refusal = WhyIncomplete()) {
    decision = Refused(*refusal, spec_);
    decision.dirty_pages.assign(dirty_pages_.begin(), dirty_pages_.end());
  } else {
    decision.outcome = Outcome::kApplied;
    decision.reason = Reason::kNone;
    decision.token_ids_sha256 = spec_.token_ids_sha256;
    decision.route = spec_.route;
    decision.covered_tokens = covered_tokens();
    decision.hops = spec_.hops + 1;
    decision.approximate = true;
    decision.salt = salt_;
  }
  decision.artifact_digest = artifact_digest();
  decision.stages = stages_;
  decision.bytes_in = bytes_in_;
  decision.bytes_out = bytes_out_;
  decision.max_abs = checks_.max_abs;
  decision.saturated_elements = static_cast<int64_t>(checks_.saturated);
  decision.shadow_selected = admissible_.shadow_selected;
  return decision;
}

void Transfer::AddStage(Stage stage, absl::Duration elapsed) {
  base::MutexLock lock(&mutex_);
  stages_[static_cast<size_t>(stage)] += elapsed;
}

void Transfer::AddBytes(int64_t in, int64_t out) {
  base::MutexLock lock(&mutex_);
  bytes_in_ += in;
  bytes_out_ += out;
}

}  // namespace kvbridge::engine
