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

// A sweep begins with a single layer and grows, never across a multiple of kLayersPerGroup: the
// first layer is ready early, and the others cost few passes.
kv::LayerRange FirstGroup(bool sweep, int32_t layers) {
  return {0, std::min(sweep ? 1 : device::kLayersPerGroup, layers)};
}
kv::LayerRange GroupAfter(kv::LayerRange group, int32_t layers) {
  const int32_t size = std::min(group.end, device::kLayersPerGroup);
  return {group.end, std::min(group.end + size, layers)};
}

void ReleaseSource(TileWork& work) {
  work.source_owner.reset();
  if (const auto released = std::exchange(work.on_source_released, nullptr)) released();
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
      room_(parts.room),
      positions_(std::move(parts.positions)),
      salt_(std::move(parts.salt)),
      budget_end_(parts.budget_end),
      expected_seconds_(parts.expected_seconds) {}

absl::Status Transfer::CheckWork(const TileWork& work) const {
  const kv::TokenRange tokens = work.tokens;
  if (tokens.begin < 0 || tokens.size() < 1 || tokens.end > covered_tokens() ||
      tokens.size() > room_.tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("work.tokens: expected 1 to ", room_.tokens, " tokens within [0, ",
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
  const absl::Status queued = env_.pool->Submit(
      [self = shared_from_this(), work = std::move(work), now = env_.clock->Now()]() mutable {
        RunWork(std::move(self), std::move(work), now);
      });
  if (!queued.ok()) {
    Cancel(Fallback(Reason::kOverload, queued.message()));
    base::MutexLock lock(&mutex_);
    --works_running_;
  }
  return queued;
}

// The last act of a worker in a work: everything it held is let go before the plane hears of it.
void Transfer::RunWork(std::shared_ptr<Transfer> self, TileWork work, absl::Time queued) {
  self->AddStage(Stage::kQueue, self->Since(queued));
  const absl::Status status = self->MapWork(work);
  if (!status.ok()) self->Cancel(FromDevice(status));
  {
    base::MutexLock lock(&self->mutex_);
    --self->works_running_;
    if (status.ok()) self->done_tokens_ += work.tokens.size();
  }
  const auto on_done = std::move(work.on_done);
  work = TileWork();
  self.reset();
  if (on_done) on_done(status);
}

absl::Status Transfer::MapWork(TileWork& work) {
  absl::Duration busy;
  std::vector<Tile> tiles = Cut(work);
  const int32_t at_start = env_.works_on_device->fetch_add(1) + 1;
  const absl::Status status = Sweep(work, tiles, &busy);
  const int32_t at_end = env_.works_on_device->fetch_sub(1);
  tiles.clear();
  ReleaseSource(work);
  // Short works cost nearly as much as full tiles and say little about the rate. Works that ran
  // side by side shared the device.
  if (status.ok() && 2 * work.tokens.size() >= env_.tile_tokens) {
    env_.rates->Record(artifact_digest(), static_cast<double>(work.tokens.size()),
                       2 * busy / (at_start + at_end), env_.clock->Now());
  }
  return status;
}

std::vector<Transfer::Tile> Transfer::Cut(const TileWork& work) const {
  std::vector<Tile> tiles;
  for (int64_t begin = work.tokens.begin; begin < work.tokens.end; begin += env_.tile_tokens) {
    const kv::TokenRange tokens{begin, std::min(begin + env_.tile_tokens, work.tokens.end)};
    tiles.push_back({tokens, work.target_begin + begin - work.tokens.begin, Pads(tokens), nullptr});
  }
  return tiles;
}

absl::Status Transfer::Sweep(TileWork& work, std::vector<Tile>& tiles, absl::Duration* busy) {
  const bool sweep = tiles.size() > 1;
  if (!sweep) {
    KVB_RETURN_IF_ERROR(PrepareTile(work, tiles.front(), busy));
    ReleaseSource(work);
  }
  for (kv::LayerRange layers = FirstGroup(sweep, work.target.layers); layers.size() > 0;
       layers = GroupAfter(layers, work.target.layers)) {
    bool source_needed = false;
    for (Tile& tile : tiles) {
      if (sweep && layers.begin == 0) KVB_RETURN_IF_ERROR(PrepareTile(work, tile, busy));
      KVB_RETURN_IF_ERROR(MapTile(work, tile, layers, busy));
      source_needed |= tile.prepared != nullptr && tile.prepared->source_layers() > layers.end;
    }
    if (!source_needed) ReleaseSource(work);
    if (publish() && work.on_layers) work.on_layers(layers);
  }
  return absl::OkStatus();
}

absl::Status Transfer::MapTile(const TileWork& work, Tile& tile, kv::LayerRange layers,
                               absl::Duration* busy) {
  if (cancelled()) return Stopped();
  if (layers.begin == 0) MarkDirty(work, tile);
  const absl::Time start = env_.clock->Now();
  const absl::StatusOr<device::TileChecks> checks = MapLayers(work, tile, layers);
  const absl::Time mapped = env_.clock->Now();
  AddStage(Stage::kMap, mapped - start);
  *busy += mapped - start;
  if (!checks.ok()) return checks.status();
  const absl::Status good = CheckLayers(*checks);
  AddStage(Stage::kGuard, Since(mapped));
  return good;
}

absl::Status Transfer::PrepareTile(const TileWork& work, Tile& tile, absl::Duration* busy) {
  if (cancelled()) return Stopped();
  if (tile.pads == tile.tokens.size()) return absl::OkStatus();
  const absl::Time start = env_.clock->Now();
  const kv::TokenRange mapped{tile.tokens.begin + tile.pads, tile.tokens.end};
  const int64_t source_begin = work.source_begin - work.tokens.begin;
  KVB_ASSIGN_OR_RETURN(
      tile.prepared,
      env_.backend->Prepare(
          *pin_.resident,
          {.view = &work.source,
           .tokens = {source_begin + mapped.begin, source_begin + mapped.end},
           .positions = positions_.span(mapped),
           .keys_are_roped = spec_.key_state == guard::KeyState::kRoped,
           .use = work.tokens.size() > env_.tile_tokens ? device::SourceUse::kByLayer
                                                        : device::SourceUse::kAtOnce}));
  const absl::Duration took = Since(start);
  AddStage(Stage::kStripRope, took);
  *busy += took;
  return absl::OkStatus();
}

absl::StatusOr<device::TileChecks> Transfer::MapLayers(const TileWork& work, const Tile& tile,
                                                       kv::LayerRange layers) {
  for (int32_t layer = layers.begin; tile.pads > 0 && layer < layers.end; ++layer) {
    for (const kv::Component c : kv::kComponents) {
      kv::ZeroRows(work.target, layer, c, {tile.target_begin, tile.target_begin + tile.pads});
    }
  }
  if (tile.prepared == nullptr) return device::TileChecks();
  return env_.backend->MapLayers(*pin_.resident, *tile.prepared, layers, work.target,
                                 tile.target_begin + tile.pads, [this] { return cancelled(); });
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

void Transfer::MarkDirty(const TileWork& work, const Tile& tile) {
  const int64_t page_tokens = work.target.tokens_per_page;
  if (page_tokens == 0) return;
  const int64_t first = tile.target_begin / page_tokens;
  const int64_t last = (tile.target_begin + tile.tokens.size() - 1) / page_tokens;
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
