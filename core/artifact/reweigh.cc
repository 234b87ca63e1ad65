#include "core/artifact/reweigh.h"

#include <memory>

#include "absl/strings/str_cat.h"

#include "core/artifact/safetensors.h"
#include "core/artifact/weights.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"

namespace kvbridge::artifact {

absl::StatusOr<std::string> ReweighArtifact(const std::filesystem::path& in,
                                            const std::filesystem::path& weights,
                                            const std::filesystem::path& out,
                                            const ReweighOptions& options) {
  KVB_ASSIGN_OR_RETURN(const Artifact artifact, LoadArtifact(in, {.pool = options.pool}));
  if (artifact.format != Format::kNative) {
    return absl::InvalidArgumentError(
        absl::StrCat(in.string(), ": expected a native artifact, got ", Name(artifact.format)));
  }
  const mapper::Mapper& old = *artifact.mapper;
  KVB_ASSIGN_OR_RETURN(const std::shared_ptr<const base::MappedFile> file,
                       base::MappedFile::Open(weights));
  KVB_ASSIGN_OR_RETURN(const SafeTensors tensors,
                       SafeTensors::Parse(file->bytes(), weights.filename().string()));
  KVB_ASSIGN_OR_RETURN(const StDType dtype, WeightsDType(old.keys.front().bias.dtype));
  KVB_ASSIGN_OR_RETURN(const mapper::Mapper mapper,
                       AssembleMapper(ManifestOf(old, {}), tensors, dtype, file));
  Provenance provenance = artifact.provenance;
  provenance.calibration["refined"] = options.record;
  provenance.evidence.reset();
  const auto unchanged = [&] {
    if (options.stop.stop_requested()) return absl::CancelledError("interrupted");
    return file->CheckUnchanged();
  };
  return SaveArtifact(
      out, mapper, provenance,
      {.pool = options.pool, .overwrite = options.overwrite, .before_commit = unchanged});
}

}  // namespace kvbridge::artifact
