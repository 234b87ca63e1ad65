// The layout of vllm-project/semantic-router pull 4009 (src/training/kv_mapper), schema 1:
// `manifest.json`, `weights.safetensors` and `SHA256SUMS`.
//
// SHA256SUMS has one line "<64 lower-case hex digits>  <name>" for each of the other two files, and
// nothing else: the manifest is covered, too. The manifest is an object of exactly mapper_id,
// compatibility {source_model, source_revision, target_model, target_revision, variant "full_head"
// | "per_head", precision "fp16" | "bf16" | "fp32" (of the caches; aliases float16, half, bfloat16,
// float32), source_tp, target_tp, head_order, num_kv_heads, head_dim (of both models)}, topk,
// ridge_alpha, centered_inputs, rope_stripped_on_keys, source_layers_per_target {"k": {"<target
// layer>": [source layers]}, "v": {...}}, calibration {...}, evaluation_report (string or null),
// schema_version 1. Tensors, F32: target.{l}.{k|v}.W [topk * heads * head_dim, heads * head_dim]
// with rows layer-major, then head, then dim, and target.{l}.{k|v}.b [heads * head_dim]. Weights
// are transposed into our [heads, features, head_dim] on load.
//
// The writer of "per_head" is not public. It is taken to be W [heads, topk * head_dim, head_dim]
// and b [heads, head_dim], target head h reading source head h.
//
// Upstream accepts what we refuse: TP above 1 and head orders other than "contiguous"
// (UNIMPLEMENTED: the shard's layout isn't stated), keys mapped with RoPE on, and other files in
// the folder.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "core/artifact/formats.h"
#include "core/artifact/integrity.h"
#include "core/artifact/safetensors.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"

namespace kvbridge::artifact {
namespace {

using base::Json;

constexpr char kRouterWeights[] = "weights.safetensors";
constexpr char kSums[] = "SHA256SUMS";
constexpr uint64_t kMaxSumsBytes = 4096;
constexpr int64_t kMaxCount = 4096;

// File name -> hex digest.
absl::StatusOr<std::map<std::string, std::string>> ReadSums(const std::filesystem::path& dir) {
  KVB_ASSIGN_OR_RETURN(const std::string text, base::ReadFile(dir / kSums, kMaxSumsBytes));
  std::map<std::string, std::string> sums;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits("  ", 1));
    const bool known = parts.second == kManifestFile || parts.second == kRouterWeights;
    if (!known || !sums.emplace(parts.second, parts.first).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(kSums, ": expected one line for manifest.json and one for ", kRouterWeights,
                       ", got \"", absl::CHexEscape(line.substr(0, 120)), "\""));
    }
  }
  for (const std::string& name : {std::string(kManifestFile), std::string(kRouterWeights)}) {
    if (sums.count(name) == 0) {
      return absl::InvalidArgumentError(absl::StrCat(kSums, ": no line for ", name));
    }
  }
  return sums;
}

absl::StatusOr<tensor::DType> CacheDType(const Json& compat, absl::string_view path) {
  KVB_ASSIGN_OR_RETURN(const std::string word, base::GetString(compat, "precision", path));
  if (word == "fp16" || word == "half") return tensor::DType::kF16;
  if (word == "bf16") return tensor::DType::kBf16;
  if (word == "fp32") return tensor::DType::kF32;
  return tensor::ParseDType(word);
}

absl::Status Unserved(absl::string_view field, absl::string_view expected, absl::string_view got) {
  return absl::UnimplementedError(
      absl::StrCat("manifest.compatibility.", field, ": expected ", expected, ", got ", got));
}

// Identities, geometry without layer counts, and the variant.
absl::StatusOr<mapper::Support> ReadCompatibility(const Json& json, Manifest* manifest) {
  const absl::string_view path = "manifest.compatibility";
  KVB_ASSIGN_OR_RETURN(const Json* compat, base::GetObject(json, "compatibility", "manifest"));
  KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(
      *compat,
      {"source_model", "source_revision", "target_model", "target_revision", "variant", "precision",
       "source_tp", "target_tp", "head_order", "num_kv_heads", "head_dim"},
      path));
  KVB_ASSIGN_OR_RETURN(const int64_t heads,
                       base::GetInt(*compat, "num_kv_heads", path, 1, kMaxCount));
  KVB_ASSIGN_OR_RETURN(const int64_t dim, base::GetInt(*compat, "head_dim", path, 1, kMaxCount));
  KVB_ASSIGN_OR_RETURN(const tensor::DType dtype, CacheDType(*compat, path));
  for (const auto& [role, spec] :
       {std::pair("source", &manifest->source), std::pair("target", &manifest->target)}) {
    spec->geometry.kv_heads = static_cast<int32_t>(heads);
    spec->geometry.head_dim = static_cast<int32_t>(dim);
    spec->geometry.dtype = dtype;
    KVB_ASSIGN_OR_RETURN(spec->identity.model_id,
                         base::GetString(*compat, absl::StrCat(role, "_model"), path));
    KVB_ASSIGN_OR_RETURN(spec->identity.revision,
                         base::GetString(*compat, absl::StrCat(role, "_revision"), path));
    const std::string tp_key = absl::StrCat(role, "_tp");
    KVB_ASSIGN_OR_RETURN(const int64_t tp, base::GetInt(*compat, tp_key, path, 1, kMaxCount));
    if (tp != 1) return Unserved(tp_key, "1", absl::StrCat(tp));
  }
  KVB_ASSIGN_OR_RETURN(const std::string order, base::GetString(*compat, "head_order", path));
  if (order != "contiguous") {
    return Unserved("head_order", "\"contiguous\"", absl::CHexEscape(order.substr(0, 40)));
  }
  KVB_ASSIGN_OR_RETURN(const std::string variant, base::GetString(*compat, "variant", path));
  if (variant == "full_head") return mapper::Support::kFull;
  if (variant == "per_head") return mapper::Support::kHeadLocal;
  return Unserved("variant", "\"full_head\" or \"per_head\"",
                  absl::CHexEscape(variant.substr(0, 40)));
}

absl::StatusOr<std::vector<LayerLists>> ReadLists(const Json& selections, absl::string_view channel,
                                                  int64_t topk, mapper::Support support) {
  const absl::string_view root = "manifest.source_layers_per_target";
  KVB_ASSIGN_OR_RETURN(const Json* rows, base::GetObject(selections, channel, root));
  const std::string path = absl::StrCat(root, ".", channel);
  if (rows->empty() || static_cast<int64_t>(rows->size()) > kMaxCount) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected 1 to ", kMaxCount, " target layers, got ", rows->size()));
  }
  std::vector<LayerLists> lists;
  for (size_t l = 0; l < rows->size(); ++l) {
    KVB_ASSIGN_OR_RETURN(const Json* row, base::GetArray(*rows, absl::StrCat(l), path));
    LayerLists& list = lists.emplace_back(LayerLists{.support = support});
    for (const Json& item : *row) {
      KVB_ASSIGN_OR_RETURN(const int64_t index,
                           base::GetInt(Json{{"source_layer", item}}, "source_layer",
                                        absl::StrCat(path, ".", l), 0, kMaxCount - 1));
      list.sources.push_back(static_cast<int32_t>(index));
    }
    const std::set<int32_t> distinct(list.sources.begin(), list.sources.end());
    if (static_cast<int64_t>(distinct.size()) != topk || distinct.size() != list.sources.size()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ".", l, ": expected ", topk,
                                                     " distinct source layers, got ",
                                                     row->dump().substr(0, 80)));
    }
  }
  return lists;
}

absl::Status ReadSelections(const Json& json, mapper::Support support, Manifest* manifest) {
  KVB_ASSIGN_OR_RETURN(const int64_t topk, base::GetInt(json, "topk", "manifest", 1, kMaxCount));
  KVB_ASSIGN_OR_RETURN(const Json* selections,
                       base::GetObject(json, "source_layers_per_target", "manifest"));
  KVB_RETURN_IF_ERROR(
      base::RefuseUnknownKeys(*selections, {"k", "v"}, "manifest.source_layers_per_target"));
  KVB_ASSIGN_OR_RETURN(const auto keys, ReadLists(*selections, "k", topk, support));
  KVB_ASSIGN_OR_RETURN(const auto values, ReadLists(*selections, "v", topk, support));
  if (keys.size() != values.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "manifest.source_layers_per_target: expected the same target layers in k and v, got ",
        keys.size(), " and ", values.size()));
  }
  int32_t source_layers = 0;
  for (size_t l = 0; l < keys.size(); ++l) {
    manifest->layers.push_back({keys[l], values[l]});
    for (const LayerLists* lists : {&keys[l], &values[l]}) {
      for (const int32_t source : lists->sources) {
        source_layers = std::max(source_layers, source + 1);
      }
    }
  }
  // The format doesn't state the source's layer count; without a config the lists are a lower
  // bound.
  manifest->source.geometry.layers = source_layers;
  manifest->target.geometry.layers = static_cast<int32_t>(keys.size());
  return absl::OkStatus();
}

absl::StatusOr<Manifest> ReadManifest(const Json& json) {
  KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(
      json,
      {"mapper_id", "compatibility", "topk", "ridge_alpha", "centered_inputs",
       "rope_stripped_on_keys", "source_layers_per_target", "calibration", "evaluation_report",
       "schema_version"},
      "manifest"));
  KVB_RETURN_IF_ERROR(base::GetInt(json, "schema_version", "manifest", 1, 1).status());
  Manifest manifest;
  KVB_ASSIGN_OR_RETURN(const std::string mapper_id, base::GetString(json, "mapper_id", "manifest"));
  KVB_ASSIGN_OR_RETURN(const mapper::Support support, ReadCompatibility(json, &manifest));
  KVB_RETURN_IF_ERROR(ReadSelections(json, support, &manifest));
  KVB_ASSIGN_OR_RETURN(manifest.strip_rope,
                       base::GetBool(json, "rope_stripped_on_keys", "manifest"));
  if (!manifest.strip_rope) {
    return absl::UnimplementedError(
        "manifest.rope_stripped_on_keys: expected true, got false: upstream cannot apply it "
        "either");
  }
  KVB_RETURN_IF_ERROR(base::GetBool(json, "centered_inputs", "manifest").status());
  KVB_ASSIGN_OR_RETURN(manifest.provenance.lambda,
                       base::GetFinite(json, "ridge_alpha", "manifest"));
  manifest.provenance.lambda_convention = LambdaConvention::kRawGram;
  KVB_ASSIGN_OR_RETURN(const Json* calibration, base::GetObject(json, "calibration", "manifest"));
  if (const Json report = json.value("evaluation_report", Json()); !report.is_null()) {
    KVB_RETURN_IF_ERROR(base::GetString(json, "evaluation_report", "manifest").status());
  }
  manifest.provenance.calibration = {
      {"router", {{"mapper_id", mapper_id}, {"calibration", *calibration}}}};
  return manifest;
}

// The source's layer count comes from its config, where there is one; its lists must fit into it.
absl::Status CompleteSpecs(const LoadOptions& options, Manifest* manifest) {
  int32_t& layers = manifest->source.geometry.layers;
  if (options.source && options.source->geometry.layers > layers) {
    layers = options.source->geometry.layers;
  }
  const bool needed = !options.allow_missing_rope;
  const tensor::DType dtype = manifest->source.geometry.dtype;
  KVB_RETURN_IF_ERROR(internal::CompleteSpec("source", options.source, needed, &manifest->source));
  KVB_RETURN_IF_ERROR(internal::CompleteSpec("target", options.target, needed, &manifest->target));
  // This format, unlike the others, states the caches' element type.
  manifest->source.geometry.dtype = dtype;
  manifest->target.geometry.dtype = dtype;
  return absl::OkStatus();
}

// What the mapper's tensors point into: biases lie in the file, weights were transposed.
struct Storage {
  std::shared_ptr<const base::MappedFile> file;
  std::vector<std::vector<float>> weights;
};

// in [features][heads][dim] -> out [heads][features][dim].
std::vector<float> HeadMajor(const StTensor& weight, int64_t features, int64_t heads, int64_t dim) {
  std::vector<float> out(static_cast<size_t>(features * heads * dim));
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t f = 0; f < features; ++f) {
      std::memcpy(out.data() + (h * features + f) * dim,
                  weight.data.data() + (f * heads + h) * dim * int64_t{sizeof(float)},
                  static_cast<size_t>(dim) * sizeof(float));
    }
  }
  return out;
}

absl::StatusOr<mapper::LayerMap> TakeLayer(const SafeTensors& tensors, const Manifest& manifest,
                                           const LayerLists& lists, const std::string& prefix,
                                           Storage* storage) {
  const model::KvGeometry& target = manifest.target.geometry;
  const int64_t heads = target.kv_heads;
  const int64_t dim = target.head_dim;
  mapper::LayerMap map{.support = lists.support, .sources = lists.sources};
  const int64_t features = map.features(manifest.source.geometry);
  const bool full = lists.support == mapper::Support::kFull;
  using Shape = std::vector<int64_t>;
  KVB_ASSIGN_OR_RETURN(const StTensor* weight, tensors.Find(prefix + ".W", StDType::kF32,
                                                            full ? Shape{features, heads * dim}
                                                                 : Shape{heads, features, dim}));
  KVB_ASSIGN_OR_RETURN(
      const StTensor* bias,
      tensors.Find(prefix + ".b", StDType::kF32, full ? Shape{heads * dim} : Shape{heads, dim}));
  map.bias = {tensor::DType::kF32, {heads, dim}, bias->data};
  map.weight = {tensor::DType::kF32, {heads, features, dim}, weight->data};
  if (full) {
    map.weight.data = std::as_bytes(
        std::span(storage->weights.emplace_back(HeadMajor(*weight, features, heads, dim))));
  }
  return map;
}

absl::StatusOr<mapper::Mapper> Assemble(const Manifest& manifest, const SafeTensors& tensors,
                                        std::shared_ptr<Storage> storage) {
  mapper::Mapper mapper{.source = manifest.source, .target = manifest.target};
  const size_t expected = 4 * manifest.layers.size();
  if (tensors.tensors().size() != expected) {
    return absl::InvalidArgumentError(absl::StrCat(kRouterWeights, ": expected ", expected,
                                                   " tensors, got ", tensors.tensors().size()));
  }
  for (size_t l = 0; l < manifest.layers.size(); ++l) {
    const LayerEntry& entry = manifest.layers[l];
    KVB_ASSIGN_OR_RETURN(
        mapper::LayerMap key,
        TakeLayer(tensors, manifest, entry.key, absl::StrCat("target.", l, ".k"), storage.get()));
    KVB_ASSIGN_OR_RETURN(
        mapper::LayerMap value,
        TakeLayer(tensors, manifest, entry.value, absl::StrCat("target.", l, ".v"), storage.get()));
    mapper.keys.push_back(std::move(key));
    mapper.values.push_back(std::move(value));
  }
  mapper.storage = std::move(storage);
  KVB_RETURN_IF_ERROR(mapper::Validate(mapper));
  return mapper;
}

}  // namespace

namespace internal {

absl::StatusOr<Artifact> LoadRouter(const std::filesystem::path& dir, const Json& json,
                                    const LoadOptions& options) {
  KVB_RETURN_IF_ERROR(CheckFolder(dir, {std::string(kManifestFile), kRouterWeights, kSums}));
  KVB_ASSIGN_OR_RETURN(const auto sums, ReadSums(dir));
  std::shared_ptr<const base::MappedFile> weights;
  for (const auto& [name, hex] : sums) {
    KVB_ASSIGN_OR_RETURN(const std::shared_ptr<const base::MappedFile> file,
                         base::MappedFile::Open(dir / name));
    KVB_RETURN_IF_ERROR(VerifySha256(*file, hex, name));
    if (name == kRouterWeights) weights = file;
  }
  KVB_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(json));
  KVB_RETURN_IF_ERROR(CompleteSpecs(options, &manifest));
  KVB_ASSIGN_OR_RETURN(const SafeTensors tensors,
                       SafeTensors::Parse(weights->bytes(), kRouterWeights));
  auto storage = std::make_shared<Storage>();
  storage->file = weights;
  storage->weights.reserve(2 * manifest.layers.size());
  KVB_ASSIGN_OR_RETURN(mapper::Mapper mapper, Assemble(manifest, tensors, std::move(storage)));
  if (options.check_finite) KVB_RETURN_IF_ERROR(CheckFinite(tensors.tensors(), options.pool));
  KVB_ASSIGN_OR_RETURN(mapper.digest, ForeignDigest(json, mapper.source, mapper.target));
  return Artifact{std::make_shared<mapper::Mapper>(std::move(mapper)),
                  std::move(manifest.provenance), Format::kRouter, weights};
}

}  // namespace internal
}  // namespace kvbridge::artifact
