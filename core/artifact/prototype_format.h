// The Python KVBridge's artifacts, schema 1: `manifest.json` and `mapper.safetensors`.
//
// The manifest is an object of format "kvbridge", schema_version 1, weights_sha256 (of the whole
// weights file, lower-case hex), {source,target}_signature (fingerprint.h),
// {source,target}_fingerprint (of the signatures), fit_config (top_k, ridge_alpha, content_space,
// ...), selected_layers (one list per target layer, the same for K and V), and optionally
// storage_dtype ("float32", the default, or "bfloat16"), tensor_bytes, selection_scores,
// fit_key_r2, fit_value_r2, created_at, paper. Other keys are refused. Tensors are the native ones
// without key renormalisation; the weights' __metadata__ may be missing, but must agree when it is
// there.
//
// Nothing in this format binds selected_layers to the weights. Fitted artifacts carry the score of
// every source layer, and the lists must be what the fit would have chosen from them: the
// min(top_k, source layers) best, best first, ties to the lower index. Hand-made artifacts have no
// scores; they are accepted when their lists have that length and the best source layer never moves
// backwards as the target layer grows, as in every fitted selection known: depth corresponds to
// depth.
#pragma once

#include <filesystem>

#include "absl/status/status.h"

#include "core/artifact/artifact.h"

namespace kvbridge::artifact {

// Writes `artifact` as a prototype artifact. FAILED_PRECONDITION, naming what the format cannot
// express: head-local maps, different lists for K and V, lists of different lengths, key
// renormalisation, or lists that the rule above refuses. The bytes depend on the artifact only.
absl::Status ExportPrototype(const std::filesystem::path& dir, const Artifact& artifact,
                             const SaveOptions& options);

}  // namespace kvbridge::artifact
