#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "core/artifact/fingerprint.h"
#include "core/artifact/integrity.h"
#include "core/artifact/prototype_format.h"
#include "core/artifact/prototype_selection.h"
#include "core/artifact/safetensors_writer.h"
#include "core/artifact/weights.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/crypto/sha256.h"

namespace kvbridge::artifact {
namespace {

using base::Json;

absl::Status CannotExpress(absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat("the prototype's format cannot express ", what));
}

absl::Status CheckExpressible(const mapper::Mapper& mapper) {
  if (mapper.key_norm.kind != mapper::KeyNorm::Kind::kNone) {
    return CannotExpress("key renormalisation");
  }
  std::set<size_t> lengths;
  std::set<tensor::DType> dtypes;
  for (size_t l = 0; l < mapper.keys.size(); ++l) {
    const mapper::LayerMap& key = mapper.keys[l];
    const mapper::LayerMap& value = mapper.values[l];
    if (!key.hidden.empty() || !value.hidden.empty()) {
      return CannotExpress(absl::StrCat("the network of layer ", l));
    }
    if (key.support != mapper::Support::kFull || value.support != mapper::Support::kFull) {
      return CannotExpress(absl::StrCat("the head-local map of layer ", l));
    }
    if (!key.cross_sources.empty() || !value.cross_sources.empty()) {
      return CannotExpress(absl::StrCat("cross sources of layer ", l));
    }
    if (key.sources != value.sources) {
      return CannotExpress(absl::StrCat("different source lists for K and V of layer ", l));
    }
    lengths.insert(key.sources.size());
    dtypes.insert({key.weight.dtype, key.bias.dtype, value.weight.dtype, value.bias.dtype});
  }
  if (lengths.size() != 1) return CannotExpress("source lists of different lengths");
  if (dtypes.size() != 1) return CannotExpress("weights of different types");
  return absl::OkStatus();
}

Json SignatureOf(const model::ModelSpec& spec, const Json& recorded) {
  if (recorded.is_object()) return recorded;
  return {{"model_id", spec.identity.model_id},
          {"revision", spec.identity.revision},
          {"tokenizer_hash", spec.identity.tokenizer_sha256},
          {"num_layers", spec.geometry.layers},
          {"num_kv_heads", spec.geometry.kv_heads},
          {"head_dim", spec.geometry.head_dim},
          {"attention_kind", "dense"},
          {"architecture", spec.identity.family.empty() ? "unknown" : spec.identity.family}};
}

Json FitConfigOf(const Artifact& artifact, const Json& recorded) {
  if (recorded.is_object()) return recorded;
  const mapper::Mapper& mapper = *artifact.mapper;
  return {{"top_k", mapper.keys[0].sources.size()},
          {"ridge_alpha", artifact.provenance.lambda},
          {"content_space", mapper.strip_rope},
          {"require_matched_kv", mapper.source.geometry.row() == mapper.target.geometry.row()}};
}

// Everything but the weights' digest and size.
absl::StatusOr<Json> ManifestFor(const Artifact& artifact) {
  const mapper::Mapper& mapper = *artifact.mapper;
  const Json recorded = artifact.provenance.calibration.value("prototype", Json::object());
  Json json = {{"format", "kvbridge"},
               {"schema_version", 1},
               {"fit_config", FitConfigOf(artifact, recorded.value("fit_config", Json()))},
               {"selection_scores", recorded.value("selection_scores", Json::array())},
               {"fit_key_r2", recorded.value("fit_key_r2", Json::array())},
               {"fit_value_r2", recorded.value("fit_value_r2", Json::array())}};
  std::vector<std::vector<int32_t>> lists;
  for (const mapper::LayerMap& map : mapper.keys) lists.push_back(map.sources);
  json["selected_layers"] = lists;
  const auto top_k = static_cast<int64_t>(lists[0].size());
  if (const absl::Status status =
          CheckPrototypeSelection(json, lists, top_k, mapper.source.geometry.layers);
      !status.ok()) {
    return CannotExpress(status.message());
  }
  for (const auto& [role, spec] :
       {std::pair("source", &mapper.source), std::pair("target", &mapper.target)}) {
    const std::string key = absl::StrCat(role, "_signature");
    json[key] = SignatureOf(*spec, recorded.value(key, Json()));
    KVB_ASSIGN_OR_RETURN(json[absl::StrCat(role, "_fingerprint")], SignatureFingerprint(json[key]));
  }
  return json;
}

}  // namespace

absl::Status ExportPrototype(const std::filesystem::path& dir, const Artifact& artifact,
                             const SaveOptions& options) {
  KVB_RETURN_IF_ERROR(CheckExpressible(*artifact.mapper));
  KVB_ASSIGN_OR_RETURN(Json json, ManifestFor(artifact));
  KVB_ASSIGN_OR_RETURN(const auto tensors, WeightTensors(*artifact.mapper));
  KVB_RETURN_IF_ERROR(CheckFinite(tensors, options.pool));
  uint64_t tensor_bytes = 0;
  for (const auto& [name, tensor] : tensors) tensor_bytes += tensor.data.size();
  const bool is_f32 = tensors.begin()->second.dtype == StDType::kF32;
  const std::string storage = is_f32 ? "float32" : "bfloat16";

  KVB_ASSIGN_OR_RETURN(const std::unique_ptr<base::AtomicDir> out,
                       base::AtomicDir::Begin(dir, options.overwrite));
  const std::filesystem::path weights_path = out->dir() / std::string(kWeightsFile);
  KVB_RETURN_IF_ERROR(
      WriteSafeTensors(weights_path, tensors,
                       {{"format", "kvbridge"}, {"schema", "1"}, {"storage_dtype", storage}}));
  KVB_ASSIGN_OR_RETURN(const std::shared_ptr<const base::MappedFile> written,
                       base::MappedFile::Open(weights_path));
  KVB_ASSIGN_OR_RETURN(const crypto::Digest digest, crypto::Sha256Of(written->bytes()));
  json["weights_sha256"] = crypto::ToHex(digest);
  json["storage_dtype"] = storage;
  json["tensor_bytes"] = tensor_bytes;
  KVB_RETURN_IF_ERROR(base::WriteFileAtomic(out->dir() / std::string(kManifestFile),
                                            json.dump(2, ' ', /*ensure_ascii=*/true) + "\n"));
  if (options.before_commit) KVB_RETURN_IF_ERROR(options.before_commit());
  return out->Commit();
}

}  // namespace kvbridge::artifact
