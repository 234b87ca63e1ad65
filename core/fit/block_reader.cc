#include "core/fit/block_reader.h"

#include <algorithm>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include <fcntl.h>
#include <unistd.h>

#include "core/base/status_macros.h"

namespace kvbridge::fit {

std::vector<Block> BlockReader::BlocksOf(Split split) const {
  std::vector<Block> blocks;
  int64_t room = 0;
  for (const Sequence& sequence : folder_.sequences) {
    if (sequence.split != split) continue;
    for (const Piece& piece : sequence.pieces) {
      for (int64_t begin = 0; begin < piece.rows;) {
        if (room == 0) {
          blocks.emplace_back();
          room = kBlockRows;
        }
        const int64_t end = std::min(piece.rows, begin + room);
        blocks.back().push_back({&piece, static_cast<float>(sequence.row_weight), begin, end});
        room -= end - begin;
        begin = end;
      }
    }
  }
  return blocks;
}

absl::Status BlockReader::ReadSlice(const Slice& slice, int64_t at, const Sweep& sweep,
                                    const std::vector<ColumnTile>& columns, SweepSums* sums) const {
  KVB_ASSIGN_OR_RETURN(const Shard shard, Shard::Open(slice.piece->path, options_));
  if (crypto::ToHex(shard.content().digest) != slice.piece->digest ||
      shard.rows() != slice.piece->rows) {
    return absl::DataLossError(
        absl::StrCat(shard.name(), ": someone replaced it while it was accumulated"));
  }
  struct Job {
    size_t column_tile;
    size_t head;
  };
  std::vector<Job> jobs;
  for (size_t i = 0; i < sweep.columns.size(); ++i) {
    for (size_t h = 0; h < columns[sweep.columns[i]].heads.size(); ++h) jobs.push_back({i, h});
  }
  pool_->ParallelFor(static_cast<int64_t>(jobs.size()), [&](int64_t j) {
    const ColumnTile& tile = columns[sweep.columns[jobs[j].column_tile]];
    const HeadColumns& head = tile.heads[jobs[j].head];
    const auto width = tile.width / static_cast<int64_t>(tile.heads.size());
    float* out = sums->row(at, jobs[j].column_tile) + static_cast<int64_t>(jobs[j].head) * width;
    shard.ReadHead(tile.role, head.component, head.layer, head.head, slice.begin, slice.end, strip_,
                   out, sums->stride());
  });
  return shard.CheckUnchanged();
}

absl::StatusOr<std::vector<float>> BlockReader::Read(const Block& block, const Sweep& sweep,
                                                     const std::vector<ColumnTile>& columns,
                                                     SweepSums* sums) const {
  std::vector<float> weights;
  for (const Slice& slice : block) {
    const auto at = static_cast<int64_t>(weights.size());
    KVB_RETURN_IF_ERROR(ReadSlice(slice, at, sweep, columns, sums));
    weights.resize(weights.size() + static_cast<size_t>(slice.end - slice.begin), slice.weight);
  }
  return weights;
}

void BlockReader::Prefetch(const Block& block) const {
  for (const Slice& slice : block) {
    const int fd = open(slice.piece->path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) continue;
    posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED);
    close(fd);
  }
}

absl::Status BlockReader::Describe(const Block& block, const Sweep& sweep,
                                   const std::vector<ColumnTile>& columns,
                                   const SweepSums::NotFinite& found) const {
  int64_t row = found.row;
  auto slice = block.begin();
  for (; row >= slice->end - slice->begin; ++slice) row -= slice->end - slice->begin;
  const ColumnTile& tile = columns[sweep.columns[found.column_tile]];
  const auto width = tile.width / static_cast<int64_t>(tile.heads.size());
  const HeadColumns& head = tile.heads[static_cast<size_t>(found.column / width)];
  return absl::InvalidArgumentError(absl::StrCat(
      slice->piece->path.filename().string(), ": ", Name(tile.role), ".", Name(head.component),
      "s: expected finite numbers, got NaN or infinity in layer ", head.layer, ", head ", head.head,
      ", row ", slice->begin + row, ", dim ", found.column % width));
}

}  // namespace kvbridge::fit
