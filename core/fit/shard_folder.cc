#include "core/fit/shard_folder.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "core/base/exact.h"
#include "core/base/status_macros.h"
#include "core/model/compat.h"

namespace kvbridge::fit {
namespace {

namespace fs = std::filesystem;

absl::Status CheckOptions(const FolderOptions& o) {
  const auto bad = [](absl::string_view field, absl::string_view expected, const auto& got) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": expected ", expected, ", got ", base::Exact(got)));
  };
  if (!(o.held_out >= 0 && o.held_out < 1)) return bad("held_out", "[0, 1)", o.held_out);
  if (o.shard.token_stride < 1) return bad("token_stride", "at least 1", o.shard.token_stride);
  if (o.shard_count < 1) return bad("shard count", "at least 1", o.shard_count);
  if (o.shard_index < 0 || o.shard_index >= o.shard_count) {
    return bad("shard index", absl::StrCat("0 to ", o.shard_count - 1), o.shard_index);
  }
  for (const auto& [domain, weight] : o.domain_weights) {
    if (!(weight > 0 && std::isfinite(weight))) {
      return bad(absl::StrCat("weight of domain ", domain), "a number above 0", weight);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<fs::path>> FilesOf(const fs::path& dir) {
  std::error_code ec;
  std::vector<fs::path> files;
  for (fs::directory_iterator it(dir, ec), end; !ec && it != end; it.increment(ec)) {
    const fs::path& path = it->path();
    const bool hidden = path.filename().string().front() == '.';
    if (!hidden && path.extension() == ".safetensors") files.push_back(path);
  }
  if (ec) {
    return absl::NotFoundError(
        absl::StrCat(dir.string(), ": expected a folder of shards: ", ec.message()));
  }
  if (files.empty()) {
    return absl::NotFoundError(
        absl::StrCat(dir.filename().string(), ": expected *.safetensors shards, found none"));
  }
  std::sort(files.begin(), files.end());
  return files;
}

// The same two models throughout.
absl::Status CheckSame(const SpecPair& expected, const Shard& shard, const std::string& first) {
  const SpecPair& got = shard.content().specs;
  if (expected == got) return absl::OkStatus();
  for (const Role role : kRoles) {
    if (const auto m = model::FindMismatch(expected.of(role), got.of(role), Name(role))) {
      return absl::FailedPreconditionError(
          absl::StrCat(shard.name(), ": another model than in ", first, ": ", m->ToString()));
    }
  }
  return absl::OkStatus();
}

absl::Status AddPiece(const Shard& shard, const fs::path& path, const FolderOptions& options,
                      std::map<std::string, Sequence>* sequences) {
  const ShardContent& content = shard.content();
  Sequence& sequence = (*sequences)[content.sequence_id];
  if (sequence.pieces.empty()) {
    sequence.id = content.sequence_id;
    sequence.domain = content.domain;
    const auto weight = options.domain_weights.find(content.domain);
    if (weight != options.domain_weights.end()) sequence.row_weight = weight->second;
  } else if (sequence.domain != content.domain) {
    return absl::InvalidArgumentError(absl::StrCat(
        shard.name(), ": domain of sequence ", absl::CEscape(sequence.id), ": expected ",
        absl::CEscape(sequence.domain), ", got ", absl::CEscape(content.domain)));
  }
  const auto [low, high] = std::minmax_element(content.positions.begin(), content.positions.end());
  sequence.pieces.push_back({path, shard.rows(), *low, *high, crypto::ToHex(content.digest)});
  return absl::OkStatus();
}

std::string FileName(const Piece& piece) { return piece.path.filename().string(); }

absl::Status CheckDuplicates(std::map<std::string, Sequence>* sequences) {
  std::map<std::string, std::string> seen;  // digest -> file
  for (auto& [id, sequence] : *sequences) {
    std::vector<Piece>& pieces = sequence.pieces;
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.first_position < b.first_position; });
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i > 0 && pieces[i].first_position <= pieces[i - 1].last_position) {
        return absl::InvalidArgumentError(
            absl::StrCat("duplicate sequence ", absl::CEscape(id), ": ", FileName(pieces[i - 1]),
                         " and ", FileName(pieces[i]), " hold the same positions of it"));
      }
      const auto [it, fresh] = seen.emplace(pieces[i].digest, FileName(pieces[i]));
      if (!fresh) {
        return absl::InvalidArgumentError(absl::StrCat("duplicate sequence: ", it->second, " and ",
                                                       FileName(pieces[i]),
                                                       " hold the same tokens"));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDomains(const FolderOptions& options,
                          const std::map<std::string, Sequence>& sequences) {
  std::set<std::string> domains;
  for (const auto& [id, sequence] : sequences) domains.insert(sequence.domain);
  for (const auto& [domain, weight] : options.domain_weights) {
    if (!domains.contains(domain)) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight of domain ", domain, ": no sequence has it"));
    }
  }
  return absl::OkStatus();
}

absl::Status HoldOut(const FolderOptions& options, std::map<std::string, Sequence>* sequences) {
  std::vector<std::pair<std::string, Sequence*>> order;
  for (auto& [id, sequence] : *sequences) {
    KVB_ASSIGN_OR_RETURN(std::string hash, crypto::Sha256Hex(absl::StrCat(options.seed, ":", id)));
    order.emplace_back(std::move(hash), &sequence);
  }
  std::sort(order.begin(), order.end());
  const auto n = static_cast<int64_t>(order.size());
  int64_t held_out = std::llround(options.held_out * static_cast<double>(n));
  if (options.held_out > 0 && n > 1) held_out = std::clamp<int64_t>(held_out, 1, n - 1);
  for (int64_t i = 0; i < held_out && n > 1; ++i) {
    order[static_cast<size_t>(i)].second->split = Split::kHeldOut;
  }
  return absl::OkStatus();
}

}  // namespace

int64_t Sequence::rows() const {
  int64_t rows = 0;
  for (const Piece& piece : pieces) rows += piece.rows;
  return rows;
}

int64_t ShardFolder::rows(Split split) const {
  int64_t rows = 0;
  for (const Sequence& sequence : sequences) rows += sequence.split == split ? sequence.rows() : 0;
  return rows;
}

double ShardFolder::weight(Split split) const {
  double weight = 0;
  for (const Sequence& sequence : sequences) {
    if (sequence.split != split) continue;
    weight += sequence.row_weight * static_cast<double>(sequence.rows());
  }
  return weight;
}

absl::StatusOr<ShardFolder> OpenShardFolder(const fs::path& dir, const FolderOptions& options) {
  KVB_RETURN_IF_ERROR(CheckOptions(options));
  KVB_ASSIGN_OR_RETURN(const std::vector<fs::path> files, FilesOf(dir));
  ShardFolder folder;
  // Unstrided: prototype shards that declare nothing tell their rotation by their first two rows.
  ShardOptions shard_options = options.shard;
  {
    shard_options.token_stride = 1;
    KVB_ASSIGN_OR_RETURN(const Shard first, Shard::Open(files.front(), shard_options));
    folder.specs = first.content().specs;
    folder.keys_stripped = first.content().source.keys_stripped;
    shard_options = {folder.specs, options.shard.token_stride};
  }
  std::map<std::string, Sequence> sequences;
  std::map<fs::path, uint64_t> bytes;
  for (const fs::path& path : files) {
    KVB_ASSIGN_OR_RETURN(const Shard shard, Shard::Open(path, shard_options));
    KVB_RETURN_IF_ERROR(CheckSame(folder.specs, shard, files.front().filename().string()));
    for (const Role role : kRoles) {
      if (shard.content().of(role).keys_stripped != folder.keys_stripped) {
        return absl::InvalidArgumentError(
            absl::StrCat(shard.name(), ": ", Name(role), " keys: expected ",
                         folder.keys_stripped ? "stripped" : "roped", " ones as in ",
                         files.front().filename().string(), ", got the other"));
      }
    }
    KVB_RETURN_IF_ERROR(AddPiece(shard, path, options, &sequences));
    bytes[path] = shard.file_bytes();
  }
  KVB_RETURN_IF_ERROR(CheckDuplicates(&sequences));
  KVB_RETURN_IF_ERROR(CheckDomains(options, sequences));
  KVB_RETURN_IF_ERROR(HoldOut(options, &sequences));
  int64_t index = 0;
  for (auto& [id, sequence] : sequences) {
    if (index++ % options.shard_count != options.shard_index) continue;
    for (const Piece& piece : sequence.pieces) {
      folder.data_bytes += bytes[piece.path];
      folder.largest_file = std::max(folder.largest_file, bytes[piece.path]);
    }
    folder.sequences.push_back(std::move(sequence));
  }
  if (folder.sequences.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("shard ", options.shard_index, "/",
                                                   options.shard_count, ": the folder has only ",
                                                   sequences.size(), " sequences"));
  }
  return folder;
}

}  // namespace kvbridge::fit
