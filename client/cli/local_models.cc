#include "client/cli/local_models.h"

#include "client/cli/flag_file.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"

namespace kvbridge::cli {

absl::StatusOr<std::optional<model::ModelSpec>> ReadConfig(const std::string& path,
                                                           const model::HfConfigOptions& options) {
  constexpr uint64_t kMaxConfigBytes = uint64_t{16} << 20;
  if (path.empty()) return std::nullopt;
  KVB_ASSIGN_OR_RETURN(const std::string text, InFile(path, base::ReadFile(path, kMaxConfigBytes)));
  KVB_ASSIGN_OR_RETURN(model::ModelSpec spec, model::SpecFromHfConfig(text, options, path));
  return spec;
}

absl::StatusOr<artifact::Artifact> LoadLocalArtifact(const std::string& dir,
                                                     const ConfigFlags& configs,
                                                     bool allow_missing_rope,
                                                     base::WorkerPool* pool) {
  artifact::LoadOptions options = {.pool = pool, .allow_missing_rope = allow_missing_rope};
  KVB_ASSIGN_OR_RETURN(options.source, ReadConfig(configs.source));
  KVB_ASSIGN_OR_RETURN(options.target, ReadConfig(configs.target));
  return InFile(dir, artifact::LoadArtifact(dir, options));
}

uint64_t StoredBytes(const mapper::Mapper& mapper) {
  return static_cast<uint64_t>(mapper.parameters()) * tensor::ByteSize(mapper.keys[0].weight.dtype);
}

}  // namespace kvbridge::cli
