// From tokens that may be read to work for the engine: what every session that maps does alike.
//
// Thread contract: pure functions.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/engine/transfer.h"
#include "server/source_plane.h"
#include "server/target_plane.h"

namespace kvbridge::server {

// Appends what is covered of `tiles`. Tokens of a pool that became ready one after the other are
// mapped together.
void QueueCovered(std::vector<SourceTile> tiles, int64_t covered, std::deque<SourceTile>* ready);

// The next tokens of `ready`, which is not empty: `most` of its first tile, at most.
SourceTile TakeTokens(int64_t most, std::deque<SourceTile>* ready);

// The work, but for what is to be called. It holds both tiles' memory.
engine::TileWork MakeWork(SourceTile source, std::shared_ptr<const TargetTile> target);

}  // namespace kvbridge::server
