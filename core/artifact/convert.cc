#include "core/artifact/convert.h"

#include "core/artifact/artifact.h"
#include "core/artifact/hf_weights.h"
#include "core/base/status_macros.h"

namespace kvbridge::artifact {

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
  return SaveArtifact(out, mapper, artifact.provenance,
                      {.pool = options.pool, .overwrite = options.overwrite});
}

}  // namespace kvbridge::artifact
