#include "core/artifact/convert.h"

#include "core/artifact/hf_weights.h"
#include "core/base/status_macros.h"

namespace kvbridge::artifact {

absl::Status CheckBeforeCommit(const Artifact& read, const std::stop_token& stop) {
  if (stop.stop_requested()) return absl::CancelledError("conversion: interrupted");
  return read.weights->CheckUnchanged();
}

absl::StatusOr<std::string> ConvertArtifact(const std::filesystem::path& in,
                                            const std::filesystem::path& out,
                                            const ConvertOptions& options) {
  // Saving refuses non-finite values; looking for them here, too, would be a second pass.
  KVB_ASSIGN_OR_RETURN(const Artifact artifact, LoadArtifact(in, {.pool = options.pool,
                                                                  .source = options.source,
                                                                  .target = options.target,
                                                                  .check_finite = false}));
  mapper::Mapper mapper = *artifact.mapper;
  if (options.key_norm_from) {
    const model::KvGeometry& target = mapper.target.geometry;
    KVB_ASSIGN_OR_RETURN(mapper.key_norm,
                         ReadKeyNorm(*options.key_norm_from, target.layers, target.head_dim));
  }
  const auto good = [&] { return CheckBeforeCommit(artifact, options.stop); };
  return SaveArtifact(
      out, mapper, artifact.provenance,
      {.pool = options.pool, .overwrite = options.overwrite, .before_commit = good});
}

}  // namespace kvbridge::artifact
