// The native manifest: what a mapper maps, and the digests that bind it to its weights.
//
// An artifact is a folder of exactly two files. `mapper.safetensors` holds, for each target layer
// l,
//   key_weight.{l}, value_weight.{l}   [target heads, features, target head_dim]  BF16 or F32
//   key_bias.{l}, value_bias.{l}       [target heads, target head_dim]            same type
//   key_hidden.{l}.{i}, value_...      [inputs, width i]                          same type
//   key_hidden_bias.{l}.{i}, value_... [width i]                                  same type
//   key_out.{l}, value_out.{l}         [target heads, last width, target head_dim] same type
//   key_norm.{l}                       [target head_dim]   F32, key_norm.kind "k_norm" only
//   key_scale.{l}, value_scale.{l}     [target heads]      F32, key_norm.kind "scale" only
// and no other tensor; all weights and biases share one type. The weight is left out for support
// "mlp"; hidden, hidden_bias and out are there where the manifest lists hidden widths. The inputs
// of hidden layer 0 are all source heads of all listed layers, of the others the width before.
// `manifest.json` is an object of exactly
//   format          "kvbridge-mapper"
//   schema_version  1
//   source, target  {identity, geometry, rope}: kvbridge.v1.ModelSpec's JSON, proto field names
//   strip_rope      bool; false = fitted on keys as they are cached
//   layers          one per target layer: {"key": M, "value": M} with M = {"support": "full" |
//                   "head_local" | "mlp", "sources": [distinct source layers, in feature order],
//                   "cross_sources": [the same, read for the other component; left out if empty],
//                   "head_source": [source head of each target head; empty = identity],
//                   "hidden": [widths, 1 to 8 of them; left out where there is no network]}
//   key_norm        {"kind": "none"} | {"kind": "k_norm", "eps": number} | {"kind": "scale"}
//   fit             {"lambda": number >= 0, "lambda_convention": "raw_gram" | "gram_over_rows" |
//                   "relative_mean_diagonal"}
//   calibration     object: where the fit came from, free
//   evidence        null (verdict UNPROVEN) or {"verdict": "PASS" | "FAIL" | "UNPROVEN", "kl_nats":
//                   number | null, "gap_recovered": number | null, "provenance": string}, with two
//                   more keys where there is something to say: "tails": [{"native_tail": integer,
//                   "kl_nats": number, "gap_recovered": number | null}], ascending, and "details":
//                   object (docs/evidence.md)
//   files           {"mapper.safetensors": {"bytes": integer, "chunk_bytes": 8388608, "chunks":
//                   [SHA-256 of each chunk, lower-case hex], "sha256": tree root}}; the root is the
//                   SHA-256 over the concatenated raw chunk digests (crypto/sha256.h)
// Unknown or missing keys are refused: that is how versions from before `cross_sources` and
// `hidden` answer a manifest that has them, while one without is the same bytes to all. The
// artifact's digest is the SHA-256 over the manifest's canonical JSON (base::CanonicalJson), so
// lists, specs and weights are bound by one number. The weights' __metadata__ binds the other way:
// format "kvbridge-mapper", schema "1" and manifest_sha256, the SHA-256 over the canonical manifest
// without `files`. Neither file can be changed alone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "core/base/strict_json.h"
#include "core/crypto/sha256.h"
#include "core/mapper/mapper.h"
#include "core/model/model_spec.h"

namespace kvbridge::artifact {

inline constexpr absl::string_view kManifestFile = "manifest.json";
inline constexpr absl::string_view kWeightsFile = "mapper.safetensors";

// Whether held-out measurements say that the mapper may serve.
enum class Verdict : uint8_t { kUnproven, kPass, kFail };
absl::string_view Name(Verdict verdict);  // "UNPROVEN", "PASS", "FAIL"

// What a longer native tail buys: the target prefills the prompt's last tokens itself.
struct TailPoint {
  int64_t native_tail = 1;
  double kl_nats = 0;
  std::optional<double> gap_recovered;

  friend bool operator==(const TailPoint&, const TailPoint&) = default;
};

struct Evidence {
  Verdict verdict = Verdict::kUnproven;
  std::optional<double> kl_nats;              // mean next-token KL on held-out text
  std::optional<double> gap_recovered;        // share of the source-to-target NLL gap
  std::string provenance;                     // data set, protocol, number of sequences
  std::vector<TailPoint> tails;               // by native_tail, each once; empty where not measured
  base::Json details = base::Json::object();  // figures by domain, controls and checks
};

// Which source layers (and heads) feed K or V of one target layer.
struct LayerLists {
  mapper::Support support = mapper::Support::kFull;
  std::vector<int32_t> sources;
  std::vector<int32_t> cross_sources;
  std::vector<int32_t> head_source;
  std::vector<int32_t> hidden;  // widths
};

struct LayerEntry {
  LayerLists key;
  LayerLists value;
};

// What lambda was added to: the Gram matrix, the Gram matrix divided by the rows, or the Gram
// matrix in units of its mean diagonal.
enum class LambdaConvention : uint8_t { kRawGram, kGramOverRows, kRelativeMeanDiagonal };

// Where a fit came from and what is known about it.
struct Provenance {
  double lambda = 0;
  LambdaConvention lambda_convention = LambdaConvention::kRelativeMeanDiagonal;
  base::Json calibration = base::Json::object();
  std::optional<Evidence> evidence;

  Verdict verdict() const { return evidence ? evidence->verdict : Verdict::kUnproven; }
};

// What is known about a transfer whose target prefills the prompt's last `native_tail` tokens: the
// figures of the longest tail that was measured and is not above it.
struct Quality {
  std::optional<double> kl_nats;
  std::optional<double> gap_recovered;
};
Quality QualityAt(const Provenance& provenance, int64_t native_tail);

struct FileEntry {
  uint64_t bytes = 0;
  crypto::TreeDigest tree;
};

struct Manifest {
  model::ModelSpec source;
  model::ModelSpec target;
  bool strip_rope = true;
  std::vector<LayerEntry> layers;  // [target layers]
  mapper::KeyNorm::Kind key_norm = mapper::KeyNorm::Kind::kNone;
  double key_norm_eps = 1e-6;  // kKNorm only
  Provenance provenance;
  std::map<std::string, FileEntry> files;
};

// A valid manifest is read back equal, byte for byte in canonical form.
base::Json ManifestToJson(const Manifest& manifest);
// What the weights' __metadata__ must say.
absl::StatusOr<std::map<std::string, std::string>> WeightsMetadata(const Manifest& manifest);
// INVALID_ARGUMENT names the path, what was expected and what came.
absl::StatusOr<Manifest> ManifestFromJson(const base::Json& json);

}  // namespace kvbridge::artifact
