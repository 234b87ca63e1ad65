// The position of every token of a selection: what RoPE rotates by.
//
// A selection may begin with padding slots (a left-padded row of a batch), marked by position -1:
// they are skipped in the map and zeroed in the target. After them positions are 0 or more and
// strictly increasing; gaps are fine (a compressed cache keeps its tokens' original positions).
//
// Takes 8 bytes per token: callers check the token count against their limit first.
// Thread contract: an immutable value.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "core/kv/kv_view.h"

namespace kvbridge::kv {

class Positions {
 public:
  static constexpr int64_t kPad = -1;

  // Positions must be below `max_position`; 0 = no such limit. INVALID_ARGUMENT names the index,
  // what was expected and what came; also when there is no token that is not padding.
  static absl::StatusOr<Positions> Create(std::vector<int64_t> positions, int64_t max_position);
  // start, start + 1, ... `count` of them.
  static absl::StatusOr<Positions> CreateRange(int64_t start, int64_t count, int64_t max_position);

  int64_t size() const { return static_cast<int64_t>(positions_.size()); }  // padding included
  int64_t pads() const { return pads_; }
  // [range.size()]; `range` lies in [0, size()).
  std::span<const int64_t> span(TokenRange range) const {
    return std::span(positions_).subspan(range.begin, range.size());
  }

 private:
  Positions(std::vector<int64_t> positions, int64_t pads)
      : positions_(std::move(positions)), pads_(pads) {}

  std::vector<int64_t> positions_;
  int64_t pads_;
};

}  // namespace kvbridge::kv
