#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/cli/commands.h"
#include "client/cli/local_models.h"
#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "core/artifact/convert.h"
#include "core/artifact/prototype_format.h"
#include "core/base/status_macros.h"

namespace kvbridge::cli {
namespace {

// Returns the digest; the prototype's format has none of its own.
absl::StatusOr<std::string> Convert(const ConvertFlags& flags, base::WorkerPool* pool,
                                    const std::stop_token& stop) {
  if (flags.to == "prototype") {
    KVB_ASSIGN_OR_RETURN(const artifact::Artifact loaded,
                         LoadLocalArtifact(flags.in, flags.configs, true, pool));
    const auto good = [&] { return artifact::CheckBeforeCommit(loaded, stop); };
    KVB_RETURN_IF_ERROR(artifact::ExportPrototype(
        flags.out, loaded, {.pool = pool, .overwrite = flags.overwrite, .before_commit = good}));
    return loaded.mapper->digest;
  }
  if (std::error_code none; !std::filesystem::is_directory(flags.in, none)) {
    return absl::NotFoundError(absl::StrCat(flags.in, ": expected an artifact folder, got none"));
  }
  artifact::ConvertOptions options = {.pool = pool, .overwrite = flags.overwrite, .stop = stop};
  KVB_ASSIGN_OR_RETURN(options.source, ReadConfig(flags.configs.source));
  KVB_ASSIGN_OR_RETURN(options.target, ReadConfig(flags.configs.target));
  if (!flags.key_norm_from.empty()) options.key_norm_from = flags.key_norm_from;
  return artifact::ConvertArtifact(flags.in, flags.out, options);
}

}  // namespace

absl::StatusOr<ExitCode> RunArtifactConvert(const ConvertFlags& flags, const Output& output,
                                            const std::stop_token& stop) {
  if (flags.to == "prototype" && !flags.key_norm_from.empty()) {
    return absl::InvalidArgumentError(
        "--key-norm-from: expected with --to native, the prototype's format has no key "
        "renormalisation");
  }
  KVB_ASSIGN_OR_RETURN(auto pool, base::WorkerPool::Create({}));
  std::string digest;
  {
    const Progress progress(absl::StrCat("converting ", flags.in), output.quiet());
    KVB_ASSIGN_OR_RETURN(digest, Convert(flags, pool.get(), stop));
  }
  const base::Json document = {{"schema", "kvbridge.convert/v1"},
                               {"out", flags.out},
                               {"format", flags.to},
                               {"artifact_digest", digest}};
  KVB_RETURN_IF_ERROR(output.Emit(document, [&](bool) {
    return RenderFields({{"out", flags.out}, {"format", flags.to}, {"digest", digest}});
  }));
  return ExitCode::kOk;
}

}  // namespace kvbridge::cli
