#include "core/engine/transfer.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
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
        "tile.", name, ": expected ", geometry.layers, " layers x ", geometry.kv_heads, " heads x ",
        geometry.head_dim, " ", tensor::Name(geometry.dtype), ", got ", view.layers, " x ",
        view.kv_heads, " x ", view.head_dim, " ", tensor::Name(view.dtype)));
  }
  if (begin < 0 || begin > view.tokens || count > view.tokens - begin) {
    return absl::InvalidArgumentError(absl::StrCat("tile.", name, "_begin: expected ", count,
                                                   " tokens within ", view.tokens, ", got ",
                                                   begin));
  }
  return absl::OkStatus();
}

absl::Status Stopped() { return absl::CancelledError("transfer: refused or finished"); }

}  // namespace

Transfer::Transfer(const Env& env, Parts parts)
    : env_(env),
      spec_(std::move(parts.spec)),
      policy_(std::move(parts.policy)),
      admissible_(parts.admissible),
      pin_(std::move(parts.pin)),
      reservation_(std::move(parts.reservation)),
      positions_(std::move(parts.positions)),
      salt_(std::move(parts.salt)),
      budget_end_(parts.budget_end),
      expected_seconds_(parts.expected_seconds) {}

absl::Status Transfer::CheckTile(const TileWork& work) const {
  const kv::TokenRange tokens = work.tokens;
  if (tokens.begin < 0 || tokens.size() < 1 || tokens.end > covered_tokens() ||
      tokens.size() > env_.tile_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("tile.tokens: expected 1 to ", env_.tile_tokens, " tokens within [0, ",
                     covered_tokens(), "), got [", tokens.begin, ", ", tokens.end, ")"));
  }
  KVB_RETURN_IF_ERROR(
      CheckView(work.source, spec_.source.geometry, work.source_begin, tokens.size(), "source"));
  return CheckView(work.target, spec_.target.geometry, work.target_begin, tokens.size(), "target");
}

absl::Status Transfer::SubmitTile(TileWork work) {
  KVB_RETURN_IF_ERROR(CheckTile(work));
  {
    base::MutexLock lock(&mutex_);
    if (refusal_.has_value() || finished_) return Stopped();
    if (tiles_running_ >= env_.tiles_in_flight) {
      return absl::FailedPreconditionError(
          absl::StrCat("tile: expected at most ", env_.tiles_in_flight, " in flight"));
    }
    if (submitted_.CountIn(work.tokens) > 0) {
      return absl::InvalidArgumentError(absl::StrCat("tile.tokens: [", work.tokens.begin, ", ",
                                                     work.tokens.end, ") came before"));
    }
    submitted_.Insert(work.tokens);
    ++tiles_running_;
  }
  const absl::Status queued = env_.pool->Submit(
      [self = shared_from_this(), work = std::move(work), now = env_.clock->Now()]() mutable {
        RunTile(std::move(self), std::move(work), now);
      });
  if (!queued.ok()) {
    Cancel(Fallback(Reason::kOverload, queued.message()));
    base::MutexLock lock(&mutex_);
    --tiles_running_;
  }
  return queued;
}

// The last act of a worker in a tile: everything it held is let go before the plane hears of it.
void Transfer::RunTile(std::shared_ptr<Transfer> self, TileWork work, absl::Time queued) {
  self->AddStage(Stage::kQueue, self->Since(queued));
  const absl::Status status = self->MapTile(work);
  if (!status.ok()) self->Cancel(FromDevice(status));
  {
    base::MutexLock lock(&self->mutex_);
    --self->tiles_running_;
    if (status.ok()) self->done_tokens_ += work.tokens.size();
  }
  const auto on_done = std::move(work.on_done);
  work = TileWork();
  self.reset();
  if (on_done) on_done(status);
}

absl::Status Transfer::MapTile(TileWork& work) {
  absl::Duration busy;
  const int32_t at_start = env_.tiles_on_device->fetch_add(1) + 1;
  const absl::StatusOr<Prepared> tile = PrepareTile(work, &busy);
  work.source_owner.reset();
  if (work.on_source_released) work.on_source_released();
  const absl::Status status = tile.ok() ? MapGroups(work, *tile, &busy) : tile.status();
  const int32_t at_end = env_.tiles_on_device->fetch_sub(1);
  // Short tiles cost nearly as much as full ones and say little about the rate. Tiles that ran side
  // by side shared the device.
  if (status.ok() && 2 * work.tokens.size() >= env_.tile_tokens) {
    env_.rates->Record(artifact_digest(), work.tokens.size(), 2 * busy / (at_start + at_end),
                       env_.clock->Now());
  }
  return status;
}

absl::StatusOr<Transfer::Prepared> Transfer::PrepareTile(const TileWork& work,
                                                         absl::Duration* busy) {
  if (cancelled()) return Stopped();
  const int64_t pads = Pads(work.tokens);
  if (pads == work.tokens.size()) return Prepared();
  const absl::Time start = env_.clock->Now();
  const kv::TokenRange mapped{work.tokens.begin + pads, work.tokens.end};
  absl::StatusOr<Prepared> tile = env_.backend->Prepare(
      *pin_.resident, {&work.source,
                       {work.source_begin + pads, work.source_begin + work.tokens.size()},
                       positions_.span(mapped),
                       spec_.key_state == guard::KeyState::kRoped});
  *busy = Since(start);
  AddStage(Stage::kStripRope, *busy);
  return tile;
}

absl::Status Transfer::MapGroups(const TileWork& work, const Prepared& tile, absl::Duration* busy) {
  if (cancelled()) return Stopped();
  MarkDirty(work);
  for (int32_t begin = 0; begin < work.target.layers; begin += kLayersPerGroup) {
    const kv::LayerRange layers{begin, std::min(begin + kLayersPerGroup, work.target.layers)};
    const absl::Time start = env_.clock->Now();
    const absl::StatusOr<device::TileChecks> checks = MapGroup(work, tile, layers);
    const absl::Time mapped = env_.clock->Now();
    AddStage(Stage::kMap, mapped - start);
    *busy += mapped - start;
    if (!checks.ok()) return checks.status();
    const absl::Status good = CheckGroup(*checks);
    AddStage(Stage::kGuard, Since(mapped));
    if (!good.ok()) return good;
    if (publish() && work.on_layers) work.on_layers(layers);
  }
  return absl::OkStatus();
}

absl::StatusOr<device::TileChecks> Transfer::MapGroup(const TileWork& work, const Prepared& tile,
                                                      kv::LayerRange layers) {
  const int64_t pads = Pads(work.tokens);
  for (int32_t layer = layers.begin; pads > 0 && layer < layers.end; ++layer) {
    for (const kv::Component c : kv::kComponents) {
      kv::ZeroRows(work.target, layer, c, {work.target_begin, work.target_begin + pads});
    }
  }
  if (tile == nullptr) return device::TileChecks();
  return env_.backend->MapLayers(*pin_.resident, *tile, layers, work.target,
                                 work.target_begin + pads, [this] { return cancelled(); });
}

absl::Status Transfer::CheckGroup(const device::TileChecks& checks) {
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

void Transfer::MarkDirty(const TileWork& work) {
  const int64_t page_tokens = work.target.tokens_per_page;
  if (page_tokens == 0) return;
  const int64_t first = work.target_begin / page_tokens;
  const int64_t last = (work.target_begin + work.tokens.size() - 1) / page_tokens;
  base::MutexLock lock(&mutex_);
  dirty_pages_.insert(work.target.pages.begin() + first, work.target.pages.begin() + last + 1);
}

bool Transfer::Cancel(Refusal refusal) {
  base::MutexLock lock(&mutex_);
  if (refusal_.has_value() || finished_) return false;
  refusal_ = std::move(refusal);
  stopped_.store(true, std::memory_order_release);
  return true;
}

bool Transfer::cancelled() {
  if (stopped_.load(std::memory_order_acquire)) return true;
  const absl::Time now = env_.clock->Now();
  if (now < stop_at()) return false;
  Cancel(now >= spec_.deadline ? Fallback(Reason::kDeadlineExceeded, "the call's deadline passed")
                               : Fallback(Reason::kLatencyBudget, "the latency budget ran out"));
  return true;
}

std::optional<Refusal> Transfer::WhyIncomplete() const {
  if (refusal_.has_value()) return refusal_;
  if (done_tokens_ < covered_tokens()) {
    const int64_t missing = submitted_.FirstNotIn({0, covered_tokens()});
    if (missing < covered_tokens()) {
      return Fallback(Reason::kShapeMismatch,
                      absl::StrCat("source tokens: expected [0, ", covered_tokens(), "), token ",
                                   missing, " never came"));
    }
    return Fallback(Reason::kInternal,
                    absl::StrCat("finished with ", tiles_running_, " tiles in flight"));
  }
  if (!publish()) return Fallback(Reason::kRouteDisabled, "the route is in shadow");
  return std::nullopt;
}

std::optional<Decision> Transfer::Finish() {
  cancelled();
  base::MutexLock lock(&mutex_);
  if (finished_) return std::nullopt;
  finished_ = true;
  stopped_.store(true, std::memory_order_release);

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
