#include "server/tile_work.h"

#include <algorithm>
#include <utility>

namespace kvbridge::server {

void QueueCovered(std::vector<SourceTile> tiles, int64_t covered, std::deque<SourceTile>* ready) {
  for (SourceTile& tile : tiles) {
    tile.tokens.end = std::min(tile.tokens.end, covered);
    if (tile.tokens.size() <= 0) continue;  // sent, but left to the target to prefill
    if (!ready->empty() && ready->back().owner == tile.owner) {
      ready->back().tokens.end = tile.tokens.end;
    } else {
      ready->push_back(std::move(tile));
    }
  }
}

SourceTile TakeTokens(int64_t most, std::deque<SourceTile>* ready) {
  SourceTile tile = ready->front();
  if (tile.tokens.size() <= most) {
    ready->pop_front();
  } else {
    tile.tokens.end = tile.tokens.begin + most;
    ready->front().tokens.begin += most;
    ready->front().view_begin += most;
  }
  return tile;
}

engine::TileWork MakeWork(SourceTile source, std::shared_ptr<const TargetTile> target) {
  engine::TileWork work;
  work.tokens = source.tokens;
  work.source = std::move(source.view);
  work.source_begin = source.view_begin;
  work.source_owner = std::move(source.owner);
  work.target = target->view();
  work.target_begin = target->view_begin();
  work.check_memory = [check_source = std::move(source.check_memory), target] {
    absl::Status status = check_source ? check_source() : absl::OkStatus();
    return status.ok() ? target->CheckMemory() : status;
  };
  work.target_owner = std::move(target);
  return work;
}

}  // namespace kvbridge::server
