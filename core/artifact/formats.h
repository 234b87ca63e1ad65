// The three readers behind LoadArtifact. Each gets the folder and its parsed manifest.json, and
// does the whole of its format's verification.
#pragma once

#include <filesystem>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "core/artifact/artifact.h"
#include "core/base/strict_json.h"

namespace kvbridge::artifact::internal {

absl::StatusOr<Artifact> LoadNative(const std::filesystem::path& dir, const base::Json& json,
                                    const LoadOptions& options);
absl::StatusOr<Artifact> LoadPrototype(const std::filesystem::path& dir, const base::Json& json,
                                       const LoadOptions& options);
absl::StatusOr<Artifact> LoadRouter(const std::filesystem::path& dir, const base::Json& json,
                                    const LoadOptions& options);

// Completes `spec`, which a foreign manifest stated, from the model's config: family where
// unstated, element type, attention kinds, RoPE. INVALID_ARGUMENT where counts differ; `role` is
// "source" or "target". Without a config: `spec` as it is when `rope_needed` is false, else
// FAILED_PRECONDITION.
absl::Status CompleteSpec(absl::string_view role, const std::optional<model::ModelSpec>& config,
                          bool rope_needed, model::ModelSpec* spec);

// The digest of an artifact whose manifest is not native.
absl::StatusOr<std::string> ForeignDigest(const base::Json& json, const model::ModelSpec& source,
                                          const model::ModelSpec& target);

}  // namespace kvbridge::artifact::internal
