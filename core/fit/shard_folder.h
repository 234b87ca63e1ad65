// A folder of shards: which sequences it holds, which of them are held out, which are this
// machine's.
//
// Every file is opened and checked but for its numbers: one pair of models, one tokenizer, no
// sequence twice. Pieces of a sequence share its id and must not overlap in positions.
//
// A sequence's place in the order of hashes of (seed, id) decides: the first round(fraction * n)
// of the folder's n sequences are held out, at least one and not all when 0 < fraction and n > 1.
// Machines that see the same folder and take shard i of n each agree on it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "core/fit/shard.h"

namespace kvbridge::fit {

enum class Split : uint8_t { kFit, kHeldOut };
inline constexpr Split kSplits[] = {Split::kFit, Split::kHeldOut};
constexpr absl::string_view Name(Split s) { return s == Split::kFit ? "fit" : "held_out"; }

struct FolderOptions {
  ShardOptions shard;
  double held_out = 0.2;  // fraction of sequences, [0, 1)
  uint64_t seed = 0;
  // Weight of every row of a domain; 1 where not named. Above 0.
  std::map<std::string, double> domain_weights;
  int32_t shard_index = 0;  // this machine's of `shard_count`: every shard_count-th sequence
  int32_t shard_count = 1;
};

// One file of a sequence.
struct Piece {
  std::filesystem::path path;
  int64_t rows = 0;
  int64_t first_position = 0;
  int64_t last_position = 0;
  std::string digest;  // hex, of its content
};

struct Sequence {
  std::string id;
  std::string domain;
  Split split = Split::kFit;
  double row_weight = 1;
  std::vector<Piece> pieces;  // by first position

  int64_t rows() const;
};

struct ShardFolder {
  SpecPair specs;
  bool keys_stripped = false;       // in the files
  std::vector<Sequence> sequences;  // this machine's, by id
  uint64_t data_bytes = 0;          // of their files
  uint64_t largest_file = 0;

  // Rows and sum of row weights of one split.
  int64_t rows(Split split) const;
  double weight(Split split) const;
};

// Reads headers, positions and token ids of every "*.safetensors" in `dir`. INVALID_ARGUMENT or
// FAILED_PRECONDITION names the file; NOT_FOUND when there is none.
absl::StatusOr<ShardFolder> OpenShardFolder(const std::filesystem::path& dir,
                                            const FolderOptions& options);

}  // namespace kvbridge::fit
