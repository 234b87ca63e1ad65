// The source of a relayed transfer that is mapped here, because the target's cache is the smaller
// one: what travels is what the map makes of it.
//
//   chunk, or pool's pages -> source plane -> engine (worker) -> tile's buffer -> chunk -> peer
//
// Tiles leave one after the other, each inside one of the peer's, however many are mapped at once:
// the peer never has more than two of them open. A tile counts as in flight until its last chunk
// has left, which bounds memory as the reservation says.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

#include "core/base/mutex.h"
#include "core/engine/transfer_engine.h"
#include "server/begin_transfer.h"
#include "server/relay_source.h"

namespace kvbridge::server {

// Thread contract: as RelaySource's for its methods; every other may be called from any thread.
// Always owned by a shared_ptr, which its workers hold too.
class RelayMap final : public RelaySource, public std::enable_shared_from_this<RelayMap> {
 public:
  // `begun` has an inline target. `wake` is called from workers, under no lock, when chunks are
  // ready or a worker has left; none comes before SetPeerTile.
  RelayMap(const TransferEnv& env, BegunTransfer begun, std::function<void()> wake);

  // What the peer is asked to write.
  void Describe(v1::TransferHeader* header) const;
  // What the peer has accepted, in its words, and then in ours. Refused when it would write other
  // tokens.
  std::optional<guard::Refusal> Open(v1::TransferAccepted* accepted);

  void SetPeerTile(int64_t tokens) override;  // the map begins
  Answer Take(const wire::ReceivedChunk& chunk) override;
  Answer Take(const v1::ReadyUpTo& ready) override;
  Answer Next() override;
  bool Complete(bool input_ended) const override;

  // No more messages will come: what is missing.
  std::optional<guard::Refusal> End() const;
  // Whether another message may be taken.
  bool HasRoom() const;
  // The oldest chunk that Next() gave has left.
  void Left();

  // Why it came to an end before its time; none while it goes on, and once it is sealed.
  std::optional<guard::Refusal> Stopped();
  absl::Time stop_at() const { return transfer_->stop_at(); }
  // Whether no worker is in the caller's pages or will be.
  bool idle() const;
  void Cancel(guard::Refusal refusal) { transfer_->Cancel(std::move(refusal)); }
  // Everything has left: from now on it is the peer's to fail. Answers what kept it from being
  // applied.
  std::optional<guard::Refusal> Seal();
  // The decision, once the peer has made its own.
  engine::Decision Conclude(const engine::Decision& peers);

 private:
  // A tile from its submission until its last chunk has left.
  struct OpenTile {
    std::deque<CacheChunk> chunks;  // done, and not handed out
    int64_t handed_out = 0;         // chunks of the transfer, up to this tile's last
    bool mapped = false;            // no more chunks will come

    bool empty() const { return mapped && chunks.empty(); }
  };
  using TilePtr = std::shared_ptr<OpenTile>;

  Answer TakeTiles(SourcePlane::Answer answer);
  void SubmitTiles() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  SourceTile NextTile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Submit(SourceTile tile) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LayersMapped(const TargetTile& target, kv::LayerRange layers, const TilePtr& open);
  void TileMapped(int64_t tokens, const TilePtr& open, const absl::Status& status);
  void Decide() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const TransferEnv env_;
  const std::shared_ptr<engine::Transfer> transfer_;
  const std::shared_ptr<SourcePlane> source_;
  const std::shared_ptr<TargetPlane> target_;
  const std::function<void()> wake_;

  mutable base::Mutex mutex_;
  int64_t peer_tile_ ABSL_GUARDED_BY(mutex_) = 0;         // tokens; 0: not known
  std::deque<SourceTile> ready_ ABSL_GUARDED_BY(mutex_);  // not submitted
  int64_t unsubmitted_ ABSL_GUARDED_BY(mutex_);           // covered tokens that no tile had yet
  int running_ ABSL_GUARDED_BY(mutex_) = 0;               // submitted, a worker may be inside
  size_t sources_ ABSL_GUARDED_BY(mutex_) = 0;            // submitted, source memory in use
  std::deque<TilePtr> open_ ABSL_GUARDED_BY(mutex_);      // in order of submission
  int64_t handed_out_ ABSL_GUARDED_BY(mutex_) = 0;        // chunks
  int64_t left_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<int64_t> under_way_ ABSL_GUARDED_BY(mutex_);  // bytes of chunks handed out, not left
  std::optional<engine::Decision> decision_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvbridge::server
