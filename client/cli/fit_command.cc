// kvbridge fit SHARDS: accumulate and solve.
#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

#include "client/cli/fit_flags.h"
#include "core/base/status_macros.h"
#include "core/fit/moments_file.h"
#include "core/fit/shard_folder.h"

namespace kvbridge::cli {
namespace {

namespace fs = std::filesystem;

bool SamePieces(const fit::Sequence& found, const fit::SequenceRecord& record) {
  return found.id == record.id && found.split == record.split && found.rows() == record.rows &&
         found.row_weight == record.row_weight &&
         std::equal(found.pieces.begin(), found.pieces.end(), record.digests.begin(),
                    record.digests.end(), [](const fit::Piece& piece, const std::string& digest) {
                      return piece.digest == digest;
                    });
}

// Whether `path` holds the moments that accumulating would make: those of a run that ended after
// them.
absl::StatusOr<bool> Accumulated(const fs::path& path, const AccumulateFlags& flags) {
  if (!flags.resume || !fs::exists(path)) return false;
  KVB_ASSIGN_OR_RETURN(const fit::MomentsFile file, fit::ReadMoments(path));
  KVB_ASSIGN_OR_RETURN(const fit::AccumulateOptions options, AccumulateOptionsFrom(flags));
  KVB_ASSIGN_OR_RETURN(const fit::ShardFolder folder,
                       fit::OpenShardFolder(flags.shards, options.folder));
  if (file.header.layout == options.layout && file.header.strip_rope == options.strip_rope &&
      std::equal(folder.sequences.begin(), folder.sequences.end(), file.header.sequences.begin(),
                 file.header.sequences.end(), SamePieces)) {
    return true;
  }
  return absl::AlreadyExistsError(absl::StrCat(
      path.string(), ": expected moments of these shards and settings to resume from, got others"));
}

}  // namespace

absl::StatusOr<ExitCode> RunFit(WholeFitFlags flags, const Output& output,
                                const std::stop_token& stop) {
  if (!flags.solve.overwrite && fs::exists(flags.solve.out)) {
    return absl::AlreadyExistsError(
        absl::StrCat(flags.solve.out, ": expected a new folder, or --overwrite"));
  }
  const fs::path moments = flags.keep_moments.empty() ? fs::path(flags.solve.out).concat(".moments")
                                                      : fs::path(flags.keep_moments);
  flags.accumulate.out = moments.string();
  flags.solve.moments = moments.string();
  flags.solve.memory_bytes = flags.accumulate.memory_bytes;
  KVB_ASSIGN_OR_RETURN(const bool accumulated, Accumulated(moments, flags.accumulate));
  if (!accumulated) KVB_RETURN_IF_ERROR(Accumulate(flags.accumulate, output, stop).status());
  const absl::StatusOr<ExitCode> solved = RunFitSolve(flags.solve, output, stop);
  std::error_code ignored;
  if (!solved.ok()) {
    output.Note(absl::StrCat("the moments stay in ", moments.string(), ": --resume goes on there"));
  } else if (flags.keep_moments.empty()) {
    fs::remove(moments, ignored);
  }
  return solved;
}

}  // namespace kvbridge::cli
