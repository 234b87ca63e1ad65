#include "server/relay_map.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "proto/kvbridge/v1/crc32c.h"
#include "server/tile_work.h"

namespace kvbridge::server {
namespace {

using engine::WhyOf;
using guard::Fallback;
using guard::Reason;
using guard::Refusal;

}  // namespace

RelayMap::RelayMap(const TransferEnv& env, BegunTransfer begun, std::function<void()> wake)
    : env_(env),
      transfer_(std::move(begun.transfer)),
      source_(std::move(begun.source)),
      target_(std::move(begun.target)),
      wake_(std::move(wake)),
      unsubmitted_(transfer_->covered_tokens() - transfer_->spec().first_token) {
  base::MutexLock lock(&mutex_);
  QueueCovered(std::move(begun.ready), transfer_->covered_tokens(), &ready_);
}

void RelayMap::Describe(v1::TransferHeader* header) const {
  header->set_route(transfer_->spec().route);
  header->set_artifact_digest(transfer_->artifact_digest());
  header->mutable_limits()->set_max_covered_tokens(transfer_->covered_tokens());
  header->mutable_source_selection()->clear_scales();
  header->mutable_source_selection()->mutable_remote()->set_mapped(true);
}

std::optional<Refusal> RelayMap::Open(v1::TransferAccepted* accepted) {
  const int64_t covered = transfer_->covered_tokens();
  if (accepted->covered_tokens() != covered) {
    return Fallback(Reason::kInternal, absl::StrCat("the peer: expected it to write ", covered,
                                                    " tokens, got ", accepted->covered_tokens()));
  }
  DescribeTransfer(env_, *transfer_, accepted);
  return std::nullopt;
}

void RelayMap::SetPeerTile(int64_t tokens) {
  base::MutexLock lock(&mutex_);
  peer_tile_ = tokens;
}

// --- in

RelayMap::Answer RelayMap::Take(const wire::ReceivedChunk& chunk) {
  const absl::Time start = env_.clock->Now();
  Answer answer = TakeTiles(source_->Take(chunk));
  transfer_->AddBytes(static_cast<int64_t>(chunk.bytes), 0);
  transfer_->AddStage(engine::Stage::kIngress, env_.clock->Now() - start);
  return answer;
}

RelayMap::Answer RelayMap::Take(const v1::ReadyUpTo& ready) {
  return TakeTiles(source_->Take(ready));
}

RelayMap::Answer RelayMap::TakeTiles(SourcePlane::Answer answer) {
  if (auto* no = std::get_if<Refusal>(&answer)) return std::move(*no);
  base::MutexLock lock(&mutex_);
  QueueCovered(std::get<std::vector<SourceTile>>(std::move(answer)), transfer_->covered_tokens(),
               &ready_);
  return std::vector<CacheChunk>();
}

std::optional<Refusal> RelayMap::End() const {
  return transfer_->spec().source_buffered ? source_->End() : std::nullopt;
}

bool RelayMap::HasRoom() const {
  base::MutexLock lock(&mutex_);
  return !transfer_->spec().source_buffered ||
         std::cmp_less(ready_.size() + sources_, env_.engine->tiles_in_flight());
}

// --- map

void RelayMap::SubmitTiles() {
  while (!open_.empty() && open_.front()->empty() && open_.front()->handed_out <= left_) {
    open_.pop_front();
  }
  const auto limit = static_cast<size_t>(transfer_->works_in_flight());
  while (peer_tile_ > 0 && !ready_.empty() && open_.size() < limit && !transfer_->cancelled()) {
    Submit(NextTile());
  }
}

// Up to where the peer's next tile begins, at most.
SourceTile RelayMap::NextTile() {
  const int64_t into = (ready_.front().tokens.begin - transfer_->spec().first_token) % peer_tile_;
  return TakeTokens(std::min(transfer_->work_tokens(), peer_tile_ - into), &ready_);
}

void RelayMap::Submit(SourceTile tile) {
  auto target = target_->Open(tile.tokens);
  if (!target.ok()) return Cancel(Fallback(Reason::kOverload, target.status().message()));
  const int64_t tokens = tile.tokens.size();
  const auto open = std::make_shared<OpenTile>();
  engine::TileWork work = MakeWork(std::move(tile), *target);
  work.on_source_released = [self = shared_from_this()] {
    {
      base::MutexLock lock(&self->mutex_);
      --self->sources_;
    }
    self->wake_();
  };
  work.on_layers = [self = shared_from_this(), target = *target, open](kv::LayerRange layers) {
    self->LayersMapped(*target, layers, open);
  };
  work.on_done = [self = shared_from_this(), tokens, open](const absl::Status& status) {
    self->TileMapped(tokens, open, status);
  };
  unsubmitted_ -= tokens;
  ++running_;
  ++sources_;
  open_.push_back(open);
  const absl::Status submitted = transfer_->SubmitTile(std::move(work));
  if (submitted.ok()) return;
  --running_;
  Cancel(Fallback(Reason::kInternal, submitted.message()));
}

void RelayMap::LayersMapped(const TargetTile& target, kv::LayerRange layers, const TilePtr& open) {
  std::vector<CacheChunk> chunks = target.Chunks(layers);
  for (CacheChunk& chunk : chunks) chunk.head.set_crc32c(wire::Crc32c(chunk.payload));
  {
    base::MutexLock lock(&mutex_);
    std::move(chunks.begin(), chunks.end(), std::back_inserter(open->chunks));
  }
  wake_();
}

void RelayMap::TileMapped(int64_t tokens, const TilePtr& open, const absl::Status& status) {
  {
    base::MutexLock lock(&mutex_);
    --running_;
    open->mapped = true;
  }
  const guard::TransferSpec& spec = transfer_->spec();
  if (status.ok() && !spec.source_buffered) {
    transfer_->AddBytes(tokens * static_cast<int64_t>(spec.source.geometry.token_bytes()), 0);
  }
  wake_();
}

// --- out

RelayMap::Answer RelayMap::Next() {
  base::MutexLock lock(&mutex_);
  SubmitTiles();
  std::vector<CacheChunk> next;
  for (const TilePtr& tile : open_) {
    if (tile->empty()) continue;
    if (!tile->chunks.empty()) {
      next.push_back(std::move(tile->chunks.front()));
      tile->chunks.pop_front();
      tile->handed_out = ++handed_out_;
      under_way_.push_back(static_cast<int64_t>(next.front().payload.size()));
    }
    break;
  }
  return next;
}

void RelayMap::Left() {
  base::MutexLock lock(&mutex_);
  ++left_;
  transfer_->AddBytes(0, under_way_.front());
  under_way_.pop_front();
}

bool RelayMap::Complete(bool input_ended) const {
  base::MutexLock lock(&mutex_);
  return (input_ended || !transfer_->spec().source_buffered) && unsubmitted_ == 0 &&
         std::all_of(open_.begin(), open_.end(), [](const TilePtr& t) { return t->empty(); });
}

// --- end

bool RelayMap::idle() const {
  base::MutexLock lock(&mutex_);
  return running_ == 0;
}

std::optional<Refusal> RelayMap::Stopped() {
  base::MutexLock lock(&mutex_);
  if (decision_.has_value() || !transfer_->cancelled()) return std::nullopt;
  Decide();
  return WhyOf(*decision_);
}

std::optional<Refusal> RelayMap::Seal() {
  base::MutexLock lock(&mutex_);
  Decide();
  if (decision_->applied()) return std::nullopt;
  return WhyOf(*decision_);
}

void RelayMap::Decide() {
  if (!decision_.has_value()) decision_ = transfer_->Finish();
}

engine::Decision RelayMap::Conclude(const engine::Decision& peers) {
  if (!peers.applied()) {
    Cancel(WhyOf(peers));
  } else if (!Complete(/*input_ended=*/true)) {
    Cancel(Fallback(Reason::kTransport, "the peer: applied before it had everything"));
  }
  base::MutexLock lock(&mutex_);
  Decide();
  engine::Decision own = *decision_;
  if (own.applied() && !peers.applied()) {
    own.outcome = peers.outcome;
    own.reason = peers.reason;
    own.detail = peers.detail;
    own.covered_tokens = 0;
    own.hops = 0;
    own.approximate = false;
    own.salt.clear();
  }
  own.dirty_pages = peers.dirty_pages;
  return own;
}

}  // namespace kvbridge::server
