#include "core/engine/sweep.h"

#include <algorithm>
#include <utility>

#include "core/base/status_macros.h"

namespace kvbridge::engine {
namespace {

// A unit's length at the pace of a lone transfer, at most, if that is a layer: what others may have
// to wait. Long enough for the four layers of a head-local tile, which read mostly the same
// features.
constexpr double kUnitSeconds = 0.01;
// A pass reads the weights once, which costs about what mapping so many tokens costs.
constexpr double kPassTokens = 48;

}  // namespace

Sweep::Sweep(std::shared_ptr<Transfer> transfer, TileWork work, int32_t lanes)
    : transfer_(std::move(transfer)),
      work_(std::move(work)),
      refused_(transfer_->stopped_),
      tenant_(transfer_->spec().tenant),
      place_(transfer_->place_),
      tokens_(work_.tokens.size()),
      layers_(work_.target.layers),
      swept_(tokens_ > transfer_->env_.tile_tokens),
      lanes_(lanes),
      unit_layers_(static_cast<int32_t>(std::clamp<double>(
          kUnitSeconds * layers_ /
              (transfer_->seconds_per_token_ *
               static_cast<double>(std::min<int64_t>(tokens_, transfer_->env_.tile_tokens))),
          1, device::kLayersPerGroup))),
      submitted_(transfer_->env_.clock->Now()),
      cancelled_([transfer = transfer_.get()] { return transfer->cancelled(); }) {
  const int64_t step = transfer_->env_.tile_tokens;
  for (int64_t begin = work_.tokens.begin; begin < work_.tokens.end; begin += step) {
    const kv::TokenRange tokens{begin, std::min(begin + step, work_.tokens.end)};
    Tile& tile = tiles_.emplace_back();
    tile.tokens = tokens;
    tile.target_begin = work_.target_begin + begin - work_.tokens.begin;
    tile.pads = transfer_->Pads(tokens);
  }
}

// Groups end at 1, 2 and every multiple of kLayersPerGroup when swept, so that the first layer is
// ready early and the others cost few passes.
kv::LayerRange Sweep::GroupOf(int32_t layer) const {
  if (swept_ && layer < 2) return {layer, std::min(layer + 1, layers_)};
  const int32_t begin = layer / device::kLayersPerGroup * device::kLayersPerGroup;
  return {swept_ ? std::max(begin, 2) : begin, std::min(begin + device::kLayersPerGroup, layers_)};
}

kv::LayerRange Sweep::NextLayers(const Tile& tile) const {
  return {tile.done, std::min(tile.done + unit_layers_, GroupOf(tile.done).end)};
}

int32_t Sweep::Offer(int32_t most) {
  base::MutexLock lock(&mutex_);
  if (finished_ || !status_.ok()) return 0;
  const auto startable =
      static_cast<int32_t>(std::count_if(tiles_.begin(), tiles_.end(), [this](const Tile& tile) {
        return !tile.running && tile.done < layers_;
      }));
  const int32_t more =
      std::clamp(std::min(lanes_ - running_, startable) - queued_, 0, std::max(0, most));
  queued_ += more;
  return more;
}

std::optional<Sweep::Unit> Sweep::Take() {
  bool first = false;
  std::optional<Unit> unit;
  {
    base::MutexLock lock(&mutex_);
    --queued_;
    if (finished_ || !status_.ok()) return std::nullopt;
    Tile* next = nullptr;
    for (Tile& tile : tiles_) {
      if (tile.running || tile.done == layers_) continue;
      if (next == nullptr || tile.done < next->done) next = &tile;
    }
    if (next == nullptr) return std::nullopt;
    next->running = true;
    ++running_;
    first = !std::exchange(started_, true);
    unit = {static_cast<size_t>(next - tiles_.data()), NextLayers(*next), next->tokens.size()};
  }
  if (first) transfer_->AddStage(Stage::kQueue, transfer_->Since(submitted_));
  return unit;
}

absl::StatusOr<std::optional<device::TilePart>> Sweep::Open(const Unit& unit) {
  if (cancelled_()) return Transfer::Stopped();
  Tile& tile = tiles_[unit.tile];
  if (unit.layers.begin == 0) {
    KVB_RETURN_IF_ERROR(Prepare(tile));
    KVB_RETURN_IF_ERROR(CheckMemory());
    transfer_->MarkDirty(work_.target, tile.target_begin, tile.tokens.size());
    if (!swept_) Settle();
  }
  ZeroPads(tile, unit.layers);
  if (tile.prepared == nullptr) return std::nullopt;
  return device::TilePart{.tile = tile.prepared.get(),
                          .target = &work_.target,
                          .target_begin = tile.target_begin + tile.pads,
                          .cancelled = cancelled_};
}

absl::Status Sweep::Prepare(Tile& tile) {
  int32_t source_layers = 0;
  if (tile.pads < tile.tokens.size()) {
    const absl::Time start = transfer_->env_.clock->Now();
    const kv::TokenRange mapped{tile.tokens.begin + tile.pads, tile.tokens.end};
    const int64_t source_begin = work_.source_begin - work_.tokens.begin;
    KVB_ASSIGN_OR_RETURN(
        tile.prepared,
        transfer_->env_.backend->Prepare(
            *transfer_->pin_.resident,
            {.view = &work_.source,
             .tokens = {source_begin + mapped.begin, source_begin + mapped.end},
             .positions = transfer_->positions_.span(mapped),
             .keys_are_roped = transfer_->spec_.key_state == guard::KeyState::kRoped,
             .use = swept_ ? device::SourceUse::kByLayer : device::SourceUse::kAtOnce}));
    source_layers = tile.prepared->source_layers();
    tile.preparing = transfer_->Since(start);
    transfer_->AddStage(Stage::kStripRope, tile.preparing);
  }
  base::MutexLock lock(&mutex_);
  tile.source_layers = source_layers;
  return absl::OkStatus();
}

absl::Status Sweep::CheckMemory() const {
  return work_.check_memory ? work_.check_memory() : absl::OkStatus();
}

void Sweep::ZeroPads(const Tile& tile, kv::LayerRange layers) const {
  if (tile.pads == 0) return;
  for (int32_t layer = layers.begin; layer < layers.end; ++layer) {
    for (const kv::Component c : kv::kComponents) {
      kv::ZeroRows(work_.target, layer, c, {tile.target_begin, tile.target_begin + tile.pads});
    }
  }
}

void Sweep::Close(const Unit& unit, const absl::StatusOr<device::TileChecks>& checks,
                  absl::Duration took, double pace) {
  transfer_->AddStage(Stage::kMap, took);
  absl::Status status = checks.ok() ? CheckMemory() : checks.status();
  if (status.ok()) status = transfer_->CheckLayers(*checks);
  if (!status.ok()) transfer_->Fail(status);
  {
    base::MutexLock lock(&mutex_);
    Tile& tile = tiles_[unit.tile];
    tile.running = false;
    --running_;
    busy_ += (took + std::exchange(tile.preparing, absl::ZeroDuration())) * pace;
    if (status.ok()) {
      tile.done = unit.layers.end;
    } else if (status_.ok()) {
      status_ = status;
    }
  }
  Settle();
}

void Sweep::Abort() {
  {
    base::MutexLock lock(&mutex_);
    if (status_.ok()) status_ = Transfer::Stopped();
  }
  Settle();
}

Sweep::Pass Sweep::NextPass() const {
  if (swept_) return {};
  return {transfer_->pin_.resident.get(), NextLayers(tiles_.front())};
}

double Sweep::SecondsOf(const Unit& unit, size_t others) const {
  const double tokens =
      static_cast<double>(unit.tokens) + kPassTokens / static_cast<double>(1 + others);
  return transfer_->seconds_per_token_ * tokens * unit.layers.size() / layers_;
}

Sweep::Event Sweep::NextEvent() {
  if (finished_) return Event::kNone;
  const bool over = !status_.ok() || published_ == layers_;
  const auto all = [this](auto is) { return std::all_of(tiles_.begin(), tiles_.end(), is); };
  if (!source_released_ && ((over && running_ == 0) || all([](const Tile& tile) {
                              return tile.done >= tile.source_layers;
                            }))) {
    return Event::kSourceReleased;
  }
  if (over) return running_ == 0 ? Event::kDone : Event::kNone;
  const int32_t end = GroupOf(published_).end;
  return all([end](const Tile& tile) { return tile.done >= end; }) ? Event::kLayers : Event::kNone;
}

// One thread at a time is in here; what others do meanwhile it sees when it comes back for the
// lock.
void Sweep::Settle() {
  for (;;) {
    Event event;
    kv::LayerRange layers;
    {
      base::MutexLock lock(&mutex_);
      if (settling_) return;
      event = NextEvent();
      if (event == Event::kNone) return;
      settling_ = true;
      if (event == Event::kSourceReleased) source_released_ = true;
      if (event == Event::kDone) finished_ = true;
      if (event == Event::kLayers) {
        layers = GroupOf(published_);
        published_ = layers.end;
      }
    }
    Call(event, layers);
    base::MutexLock lock(&mutex_);
    settling_ = false;
  }
}

void Sweep::Call(Event event, kv::LayerRange layers) {
  if (event == Event::kSourceReleased) {
    work_.source_owner.reset();
    if (work_.on_source_released) work_.on_source_released();
  } else if (event == Event::kLayers) {
    if (transfer_->publish() && work_.on_layers) work_.on_layers(layers);
  } else {
    Finish();
  }
}

// Everything the work held is let go before the plane hears of it.
void Sweep::Finish() {
  std::vector<Tile> tiles;
  absl::Status status;
  absl::Duration busy;
  {
    base::MutexLock lock(&mutex_);
    tiles.swap(tiles_);
    status = status_;
    busy = busy_;
  }
  tiles.clear();
  const auto on_done = std::move(work_.on_done);
  work_ = TileWork();
  transfer_->WorkDone(tokens_, status, busy);
  transfer_.reset();
  if (on_done) on_done(status);
}

}  // namespace kvbridge::engine
