#include "core/artifact/prototype_format.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "core/artifact/fingerprint.h"
#include "core/artifact/formats.h"
#include "core/artifact/integrity.h"
#include "core/artifact/prototype_selection.h"
#include "core/artifact/weights.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"

namespace kvbridge::artifact {
namespace {

using base::Json;

constexpr int64_t kMaxCount = 4096;
constexpr int64_t kMaxInt = int64_t{1} << 53;

struct FitConfig {
  int64_t top_k = 4;
  double ridge_alpha = 0.01;
  bool content_space = true;
};

absl::StatusOr<model::ModelSpec> SignatureSpec(const Json& manifest, absl::string_view role) {
  const std::string key = absl::StrCat(role, "_signature");
  KVB_ASSIGN_OR_RETURN(const Json* signature, base::GetObject(manifest, key, "manifest"));
  const std::string path = absl::StrCat("manifest.", key);
  KVB_ASSIGN_OR_RETURN(const std::string fingerprint, SignatureFingerprint(*signature, path));

  model::ModelSpec spec;
  KVB_ASSIGN_OR_RETURN(spec.identity.model_id, base::GetString(*signature, "model_id", path));
  KVB_ASSIGN_OR_RETURN(spec.identity.revision, base::GetString(*signature, "revision", path));
  KVB_ASSIGN_OR_RETURN(spec.identity.tokenizer_sha256,
                       base::GetString(*signature, "tokenizer_hash", path));
  for (const auto& [field, out] : {std::pair("num_layers", &spec.geometry.layers),
                                   std::pair("num_kv_heads", &spec.geometry.kv_heads),
                                   std::pair("head_dim", &spec.geometry.head_dim)}) {
    KVB_ASSIGN_OR_RETURN(const int64_t count, base::GetInt(*signature, field, path, 1, kMaxCount));
    *out = static_cast<int32_t>(count);
  }
  if (signature->contains("architecture")) {
    KVB_RETURN_IF_ERROR(base::GetString(*signature, "architecture", path).status());
  }
  const Json kind = signature->value("attention_kind", Json("dense"));
  if (kind != "dense") {
    return absl::UnimplementedError(absl::StrCat(path, ".attention_kind: expected \"dense\", got ",
                                                 kind.dump(-1, ' ', true).substr(0, 60)));
  }
  const std::string fingerprint_key = absl::StrCat(role, "_fingerprint");
  KVB_ASSIGN_OR_RETURN(const std::string stated,
                       base::GetString(manifest, fingerprint_key, "manifest"));
  if (stated != fingerprint) {
    return absl::DataLossError(absl::StrCat("manifest.", fingerprint_key, ": expected ",
                                            fingerprint, " for its signature, got \"",
                                            stated.substr(0, 64), "\""));
  }
  return spec;
}

absl::StatusOr<FitConfig> ReadFitConfig(const Json& manifest) {
  const absl::string_view path = "manifest.fit_config";
  KVB_ASSIGN_OR_RETURN(const Json* json, base::GetObject(manifest, "fit_config", "manifest"));
  KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(
      *json,
      {"top_k", "ridge_alpha", "content_space", "selection_alpha", "accumulation_dtype",
       "accumulation_device", "require_matched_kv", "target_layer_block_size",
       "selection_target_layer_block_size", "token_stride"},
      path));
  for (const char* key :
       {"top_k", "target_layer_block_size", "selection_target_layer_block_size", "token_stride"}) {
    if (json->contains(key)) {
      KVB_RETURN_IF_ERROR(base::GetInt(*json, key, path, 1, kMaxInt).status());
    }
  }
  for (const char* key : {"ridge_alpha", "selection_alpha"}) {
    if (!json->contains(key)) continue;
    KVB_ASSIGN_OR_RETURN(const double value, base::GetFinite(*json, key, path));
    if (value < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ".", key, ": expected at least 0, got ", value));
    }
  }
  for (const char* key : {"content_space", "require_matched_kv"}) {
    if (json->contains(key)) KVB_RETURN_IF_ERROR(base::GetBool(*json, key, path).status());
  }
  for (const char* key : {"accumulation_dtype", "accumulation_device"}) {
    if (json->contains(key)) KVB_RETURN_IF_ERROR(base::GetString(*json, key, path).status());
  }
  const FitConfig defaults;
  return FitConfig{.top_k = json->value("top_k", defaults.top_k),
                   .ridge_alpha = json->value("ridge_alpha", defaults.ridge_alpha),
                   .content_space = json->value("content_space", defaults.content_space)};
}

// Finite numbers, one per target layer when there are any.
absl::Status CheckDiagnostics(const Json& manifest, int64_t target_layers) {
  for (const char* key : {"fit_key_r2", "fit_value_r2"}) {
    if (!manifest.contains(key)) continue;
    KVB_ASSIGN_OR_RETURN(const Json* list, base::GetArray(manifest, key, "manifest"));
    const bool numbers = std::all_of(list->begin(), list->end(),
                                     [](const Json& value) { return value.is_number(); });
    if (!numbers || (!list->empty() && static_cast<int64_t>(list->size()) != target_layers)) {
      return absl::InvalidArgumentError(
          absl::StrCat("manifest.", key, ": expected no or ", target_layers, " finite numbers"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::vector<int32_t>>> ReadSelection(const Json& manifest,
                                                                const model::KvGeometry& source,
                                                                const model::KvGeometry& target) {
  KVB_ASSIGN_OR_RETURN(const Json* rows, base::GetArray(manifest, "selected_layers", "manifest"));
  if (static_cast<int64_t>(rows->size()) != target.layers) {
    return absl::InvalidArgumentError(absl::StrCat("manifest.selected_layers: expected ",
                                                   target.layers, " lists, got ", rows->size()));
  }
  std::vector<std::vector<int32_t>> lists;
  for (size_t l = 0; l < rows->size(); ++l) {
    const std::string path = absl::StrCat("manifest.selected_layers[", l, "]");
    const Json& row = (*rows)[l];
    if (!row.is_array()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": expected an array, got ", row.type_name()));
    }
    std::vector<int32_t>& list = lists.emplace_back();
    for (const Json& item : row) {
      KVB_ASSIGN_OR_RETURN(
          const int64_t index,
          base::GetInt(Json{{"source_layer", item}}, "source_layer", path, 0, source.layers - 1));
      list.push_back(static_cast<int32_t>(index));
    }
    if (std::set<int32_t>(list.begin(), list.end()).size() != list.size()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": a source layer appears twice"));
    }
  }
  return lists;
}

absl::StatusOr<StDType> StorageDType(const Json& manifest) {
  if (!manifest.contains("storage_dtype")) return StDType::kF32;
  KVB_ASSIGN_OR_RETURN(const std::string word,
                       base::GetString(manifest, "storage_dtype", "manifest"));
  if (word == "float32") return StDType::kF32;
  if (word == "bfloat16") return StDType::kBf16;
  return absl::InvalidArgumentError(
      absl::StrCat("manifest.storage_dtype: expected \"float32\" or \"bfloat16\", got \"",
                   word.substr(0, 40), "\""));
}

std::map<std::string, std::string> FileMetadata(StDType dtype) {
  return {{"format", "kvbridge"},
          {"schema", "1"},
          {"storage_dtype", dtype == StDType::kF32 ? "float32" : "bfloat16"}};
}

absl::Status CheckContainer(const Json& manifest, const SafeTensors& tensors, StDType dtype) {
  if (!tensors.metadata().empty() && tensors.metadata() != FileMetadata(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat(kWeightsFile, " __metadata__: contradicts the manifest"));
  }
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : tensors.tensors()) bytes += tensor.data.size();
  if (manifest.contains("tensor_bytes")) {
    const auto expected = static_cast<int64_t>(bytes);
    KVB_RETURN_IF_ERROR(
        base::GetInt(manifest, "tensor_bytes", "manifest", expected, expected).status());
  }
  return absl::OkStatus();
}

absl::Status CheckHeader(const Json& manifest) {
  KVB_RETURN_IF_ERROR(base::GetInt(manifest, "schema_version", "manifest", 1, 1).status());
  for (const char* key : {"created_at", "paper"}) {
    if (manifest.contains(key)) {
      KVB_RETURN_IF_ERROR(base::GetString(manifest, key, "manifest").status());
    }
  }
  return base::RefuseUnknownKeys(
      manifest,
      {"format", "schema_version", "created_at", "paper", "weights_sha256", "storage_dtype",
       "tensor_bytes", "source_signature", "target_signature", "source_fingerprint",
       "target_fingerprint", "fit_config", "selected_layers", "selection_scores", "fit_key_r2",
       "fit_value_r2"},
      "manifest");
}

// The part of the manifest that the native form has no other place for.
Json CalibrationOf(const Json& manifest) {
  Json kept = Json::object();
  for (const char* key : {"fit_config", "selection_scores", "fit_key_r2", "fit_value_r2",
                          "source_signature", "target_signature"}) {
    if (manifest.contains(key)) kept[key] = manifest[key];
  }
  return {{"prototype", std::move(kept)}};
}

absl::StatusOr<Manifest> ReadManifest(const Json& json, const LoadOptions& options) {
  KVB_RETURN_IF_ERROR(CheckHeader(json));
  Manifest manifest;
  KVB_ASSIGN_OR_RETURN(manifest.source, SignatureSpec(json, "source"));
  KVB_ASSIGN_OR_RETURN(manifest.target, SignatureSpec(json, "target"));
  if (manifest.source.identity.tokenizer_sha256 != manifest.target.identity.tokenizer_sha256) {
    return absl::InvalidArgumentError(
        absl::StrCat("manifest.target_signature.tokenizer_hash: expected the source's, \"",
                     manifest.source.identity.tokenizer_sha256.substr(0, 64), "\", got \"",
                     manifest.target.identity.tokenizer_sha256.substr(0, 64), "\""));
  }
  KVB_ASSIGN_OR_RETURN(const FitConfig fit, ReadFitConfig(json));
  KVB_ASSIGN_OR_RETURN(const auto lists,
                       ReadSelection(json, manifest.source.geometry, manifest.target.geometry));
  KVB_RETURN_IF_ERROR(
      CheckPrototypeSelection(json, lists, fit.top_k, manifest.source.geometry.layers));
  KVB_RETURN_IF_ERROR(CheckDiagnostics(json, manifest.target.geometry.layers));
  for (const std::vector<int32_t>& list : lists) {
    manifest.layers.push_back({{.sources = list}, {.sources = list}});
  }
  manifest.strip_rope = fit.content_space;
  manifest.provenance = {.lambda = fit.ridge_alpha,
                         .lambda_convention = LambdaConvention::kRawGram,
                         .calibration = CalibrationOf(json)};
  const bool rope_needed = manifest.strip_rope && !options.allow_missing_rope;
  KVB_RETURN_IF_ERROR(
      internal::CompleteSpec("source", options.source, rope_needed, &manifest.source));
  KVB_RETURN_IF_ERROR(
      internal::CompleteSpec("target", options.target, rope_needed, &manifest.target));
  return manifest;
}

}  // namespace

namespace internal {

absl::StatusOr<Artifact> LoadPrototype(const std::filesystem::path& dir, const Json& json,
                                       const LoadOptions& options) {
  KVB_RETURN_IF_ERROR(CheckFolder(dir, {std::string(kManifestFile), std::string(kWeightsFile)}));
  KVB_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(json, options));
  KVB_ASSIGN_OR_RETURN(const StDType dtype, StorageDType(json));
  KVB_ASSIGN_OR_RETURN(const std::string sha256,
                       base::GetString(json, "weights_sha256", "manifest"));
  KVB_ASSIGN_OR_RETURN(const std::shared_ptr<const base::MappedFile> weights,
                       base::MappedFile::Open(dir / std::string(kWeightsFile)));
  KVB_RETURN_IF_ERROR(VerifySha256(*weights, sha256, kWeightsFile));
  KVB_ASSIGN_OR_RETURN(const SafeTensors tensors,
                       SafeTensors::Parse(weights->bytes(), kWeightsFile));
  KVB_RETURN_IF_ERROR(CheckContainer(json, tensors, dtype));
  KVB_ASSIGN_OR_RETURN(mapper::Mapper mapper, AssembleMapper(manifest, tensors, dtype, weights));
  if (options.check_finite) KVB_RETURN_IF_ERROR(CheckFinite(tensors.tensors(), options.pool));
  KVB_ASSIGN_OR_RETURN(mapper.digest, ForeignDigest(json, mapper.source, mapper.target));
  return Artifact{std::make_shared<mapper::Mapper>(std::move(mapper)),
                  std::move(manifest.provenance), Format::kPrototype, weights};
}

}  // namespace internal
}  // namespace kvbridge::artifact
