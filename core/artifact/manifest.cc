#include "core/artifact/manifest.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

#include "core/artifact/spec_json.h"
#include "core/base/status_macros.h"

namespace kvbridge::artifact {
namespace {

using base::Json;
using Kind = mapper::KeyNorm::Kind;

constexpr absl::string_view kFormat = "kvbridge-mapper";
constexpr int64_t kSchemaVersion = 1;
constexpr int64_t kMaxIndex = 4095;
constexpr int64_t kMaxFileBytes = int64_t{1} << 42;
constexpr int64_t kMaxTokens = int64_t{1} << 32;

constexpr std::pair<absl::string_view, mapper::Support> kSupports[] = {
    {"full", mapper::Support::kFull},
    {"head_local", mapper::Support::kHeadLocal},
    {"mlp", mapper::Support::kMlp}};
constexpr std::pair<absl::string_view, Kind> kKinds[] = {
    {"none", Kind::kNone}, {"k_norm", Kind::kKNorm}, {"scale", Kind::kScale}};
constexpr std::pair<absl::string_view, LambdaConvention> kConventions[] = {
    {"raw_gram", LambdaConvention::kRawGram},
    {"gram_over_rows", LambdaConvention::kGramOverRows},
    {"relative_mean_diagonal", LambdaConvention::kRelativeMeanDiagonal}};
constexpr std::pair<absl::string_view, Verdict> kVerdicts[] = {
    {"UNPROVEN", Verdict::kUnproven}, {"PASS", Verdict::kPass}, {"FAIL", Verdict::kFail}};

template <typename Value, size_t N>
std::string Word(const std::pair<absl::string_view, Value> (&table)[N], Value value) {
  const auto* row = std::find_if(std::begin(table), std::end(table),
                                 [&](const auto& entry) { return entry.second == value; });
  return std::string(row->first);
}

template <typename Value, size_t N>
absl::StatusOr<Value> Parse(const std::pair<absl::string_view, Value> (&table)[N],
                            const Json& object, absl::string_view key, absl::string_view path) {
  KVB_ASSIGN_OR_RETURN(const std::string word, base::GetString(object, key, path));
  std::string known;
  for (const auto& [name, value] : table) {
    if (word == name) return value;
    absl::StrAppend(&known, known.empty() ? "" : ", ", name);
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ".", key, ": expected one of ", known,
                                                 ", got \"", word.substr(0, 40), "\""));
}

absl::StatusOr<std::vector<int32_t>> Integers(const Json& object, absl::string_view key,
                                              absl::string_view path, int64_t least, int64_t most) {
  KVB_ASSIGN_OR_RETURN(const Json* list, base::GetArray(object, key, path));
  std::vector<int32_t> integers;
  for (const Json& item : *list) {
    KVB_ASSIGN_OR_RETURN(const int64_t integer,
                         base::GetInt(Json{{std::string(key), item}}, key, path, least, most));
    integers.push_back(static_cast<int32_t>(integer));
  }
  return integers;
}

absl::StatusOr<std::vector<int32_t>> Indices(const Json& object, absl::string_view key,
                                             absl::string_view path) {
  return Integers(object, key, path, 0, kMaxIndex);
}

Json ListsToJson(const LayerLists& lists) {
  Json json = {{"support", Word(kSupports, lists.support)},
               {"sources", lists.sources},
               {"head_source", lists.head_source}};
  if (!lists.cross_sources.empty()) json["cross_sources"] = lists.cross_sources;
  if (!lists.hidden.empty()) json["hidden"] = lists.hidden;
  return json;
}

absl::StatusOr<std::vector<int32_t>> DistinctLayers(const Json& lists, absl::string_view key,
                                                    absl::string_view path) {
  KVB_ASSIGN_OR_RETURN(std::vector<int32_t> layers, Indices(lists, key, path));
  if (layers.empty() || std::set(layers.begin(), layers.end()).size() != layers.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".", key, ": expected at least one source layer, each once, got ",
                     lists[std::string(key)].dump().substr(0, 80)));
  }
  return layers;
}

// None where there is no network, which "mlp" must have.
absl::StatusOr<std::vector<int32_t>> HiddenWidths(const Json& lists, mapper::Support support,
                                                  absl::string_view path) {
  if (!lists.contains("hidden") && support != mapper::Support::kMlp) return std::vector<int32_t>();
  KVB_ASSIGN_OR_RETURN(std::vector<int32_t> widths,
                       Integers(lists, "hidden", path, 1, mapper::kMaxHiddenWidth));
  if (widths.empty() || static_cast<int64_t>(widths.size()) > mapper::kMaxHiddenLayers) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ".hidden: expected 1 to ", mapper::kMaxHiddenLayers, " widths, got ", widths.size()));
  }
  return widths;
}

absl::StatusOr<LayerLists> ListsFromJson(const Json& layer, absl::string_view component,
                                         absl::string_view layer_path) {
  KVB_ASSIGN_OR_RETURN(const Json* json, base::GetObject(layer, component, layer_path));
  const std::string path = absl::StrCat(layer_path, ".", component);
  KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(
      *json, {"support", "sources", "cross_sources", "head_source", "hidden"}, path));
  LayerLists lists;
  KVB_ASSIGN_OR_RETURN(lists.support, Parse(kSupports, *json, "support", path));
  KVB_ASSIGN_OR_RETURN(lists.head_source, Indices(*json, "head_source", path));
  KVB_ASSIGN_OR_RETURN(lists.hidden, HiddenWidths(*json, lists.support, path));
  if (json->contains("cross_sources")) {
    KVB_ASSIGN_OR_RETURN(lists.cross_sources, DistinctLayers(*json, "cross_sources", path));
    KVB_ASSIGN_OR_RETURN(lists.sources, Indices(*json, "sources", path));
    if (lists.sources.empty()) return lists;
  }
  KVB_ASSIGN_OR_RETURN(lists.sources, DistinctLayers(*json, "sources", path));
  return lists;
}

absl::Status LayersFromJson(const Json& json, Manifest* manifest) {
  KVB_ASSIGN_OR_RETURN(const Json* layers, base::GetArray(json, "layers", "manifest"));
  if (static_cast<int64_t>(layers->size()) != manifest->target.geometry.layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("manifest.layers: expected one per target layer (",
                     manifest->target.geometry.layers, "), got ", layers->size()));
  }
  for (size_t l = 0; l < layers->size(); ++l) {
    const std::string path = absl::StrCat("manifest.layers[", l, "]");
    const Json& layer = (*layers)[l];
    KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(layer, {"key", "value"}, path));
    LayerEntry entry;
    KVB_ASSIGN_OR_RETURN(entry.key, ListsFromJson(layer, "key", path));
    KVB_ASSIGN_OR_RETURN(entry.value, ListsFromJson(layer, "value", path));
    manifest->layers.push_back(std::move(entry));
  }
  return absl::OkStatus();
}

absl::Status KeyNormFromJson(const Json& json, Manifest* manifest) {
  KVB_ASSIGN_OR_RETURN(const Json* norm, base::GetObject(json, "key_norm", "manifest"));
  const absl::string_view path = "manifest.key_norm";
  KVB_ASSIGN_OR_RETURN(manifest->key_norm, Parse(kKinds, *norm, "kind", path));
  if (manifest->key_norm != Kind::kKNorm) return base::RefuseUnknownKeys(*norm, {"kind"}, path);
  KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(*norm, {"kind", "eps"}, path));
  KVB_ASSIGN_OR_RETURN(manifest->key_norm_eps, base::GetFinite(*norm, "eps", path));
  if (manifest->key_norm_eps < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".eps: expected at least 0, got ", manifest->key_norm_eps));
  }
  return absl::OkStatus();
}

absl::Status FitFromJson(const Json& json, Manifest* manifest) {
  KVB_ASSIGN_OR_RETURN(const Json* fit, base::GetObject(json, "fit", "manifest"));
  const absl::string_view path = "manifest.fit";
  KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(*fit, {"lambda", "lambda_convention"}, path));
  Provenance& provenance = manifest->provenance;
  KVB_ASSIGN_OR_RETURN(provenance.lambda, base::GetFinite(*fit, "lambda", path));
  if (provenance.lambda < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".lambda: expected at least 0, got ", provenance.lambda));
  }
  KVB_ASSIGN_OR_RETURN(provenance.lambda_convention,
                       Parse(kConventions, *fit, "lambda_convention", path));
  return absl::OkStatus();
}

Json EvidenceToJson(const std::optional<Evidence>& evidence) {
  if (!evidence) return nullptr;
  Json json = {{"verdict", Word(kVerdicts, evidence->verdict)},
               {"kl_nats", base::NumberOrNull(evidence->kl_nats)},
               {"gap_recovered", base::NumberOrNull(evidence->gap_recovered)},
               {"provenance", evidence->provenance}};
  for (const TailPoint& point : evidence->tails) {
    json["tails"].push_back({{"native_tail", point.native_tail},
                             {"kl_nats", point.kl_nats},
                             {"gap_recovered", base::NumberOrNull(point.gap_recovered)}});
  }
  if (!evidence->details.empty()) json["details"] = evidence->details;
  return json;
}

absl::Status TailsFromJson(const Json& object, Evidence* evidence) {
  if (!object.contains("tails")) return absl::OkStatus();
  KVB_ASSIGN_OR_RETURN(const Json* tails, base::GetArray(object, "tails", "manifest.evidence"));
  for (const Json& tail : *tails) {
    const std::string path = absl::StrCat("manifest.evidence.tails[", evidence->tails.size(), "]");
    const int64_t least = evidence->tails.empty() ? 1 : evidence->tails.back().native_tail + 1;
    if (!tail.is_object()) return absl::InvalidArgumentError(path + ": expected an object");
    KVB_RETURN_IF_ERROR(
        base::RefuseUnknownKeys(tail, {"native_tail", "kl_nats", "gap_recovered"}, path));
    TailPoint point;
    KVB_ASSIGN_OR_RETURN(point.native_tail,
                         base::GetInt(tail, "native_tail", path, least, kMaxTokens));
    KVB_ASSIGN_OR_RETURN(point.kl_nats, base::GetFinite(tail, "kl_nats", path));
    KVB_ASSIGN_OR_RETURN(point.gap_recovered, base::GetFiniteOrNull(tail, "gap_recovered", path));
    evidence->tails.push_back(point);
  }
  return absl::OkStatus();
}

absl::Status EvidenceFromJson(const Json& json, Manifest* manifest) {
  const auto it = json.find("evidence");
  if (it != json.end() && it->is_null()) return absl::OkStatus();
  KVB_ASSIGN_OR_RETURN(const Json* object, base::GetObject(json, "evidence", "manifest"));
  const absl::string_view path = "manifest.evidence";
  KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(
      *object, {"verdict", "kl_nats", "gap_recovered", "provenance", "tails", "details"}, path));
  Evidence evidence;
  KVB_ASSIGN_OR_RETURN(evidence.verdict, Parse(kVerdicts, *object, "verdict", path));
  KVB_ASSIGN_OR_RETURN(evidence.kl_nats, base::GetFiniteOrNull(*object, "kl_nats", path));
  KVB_ASSIGN_OR_RETURN(evidence.gap_recovered,
                       base::GetFiniteOrNull(*object, "gap_recovered", path));
  KVB_ASSIGN_OR_RETURN(evidence.provenance, base::GetString(*object, "provenance", path));
  KVB_RETURN_IF_ERROR(TailsFromJson(*object, &evidence));
  if (object->contains("details")) {
    KVB_ASSIGN_OR_RETURN(const Json* details, base::GetObject(*object, "details", path));
    evidence.details = *details;
  }
  manifest->provenance.evidence = std::move(evidence);
  return absl::OkStatus();
}

Json FileToJson(const FileEntry& file) {
  Json chunks = Json::array();
  for (const crypto::Digest& digest : file.tree.chunks) chunks.push_back(crypto::ToHex(digest));
  return {{"bytes", file.bytes},
          {"chunk_bytes", crypto::kTreeChunkBytes},
          {"chunks", std::move(chunks)},
          {"sha256", crypto::ToHex(file.tree.root)}};
}

absl::StatusOr<crypto::Digest> DigestFrom(const Json& text, absl::string_view path) {
  auto digest = crypto::ParseDigest(text.is_string() ? text.get<std::string>() : text.type_name());
  if (digest.ok()) return digest;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", digest.status().message()));
}

absl::StatusOr<FileEntry> FileFromJson(const Json& json, absl::string_view path) {
  if (!json.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": not an object"));
  KVB_RETURN_IF_ERROR(
      base::RefuseUnknownKeys(json, {"bytes", "chunk_bytes", "chunks", "sha256"}, path));
  const auto chunk_bytes = static_cast<int64_t>(crypto::kTreeChunkBytes);
  KVB_ASSIGN_OR_RETURN(const int64_t bytes, base::GetInt(json, "bytes", path, 0, kMaxFileBytes));
  KVB_RETURN_IF_ERROR(base::GetInt(json, "chunk_bytes", path, chunk_bytes, chunk_bytes).status());
  KVB_ASSIGN_OR_RETURN(const Json* chunks, base::GetArray(json, "chunks", path));
  const int64_t expected = (bytes + chunk_bytes - 1) / chunk_bytes;
  if (static_cast<int64_t>(chunks->size()) != expected) {
    return absl::InvalidArgumentError(absl::StrCat(path, ".chunks: expected ", expected,
                                                   " digests for ", bytes, " bytes, got ",
                                                   chunks->size()));
  }
  FileEntry file{.bytes = static_cast<uint64_t>(bytes)};
  for (const Json& chunk : *chunks) {
    KVB_ASSIGN_OR_RETURN(const crypto::Digest digest,
                         DigestFrom(chunk, absl::StrCat(path, ".chunks")));
    file.tree.chunks.push_back(digest);
  }
  KVB_RETURN_IF_ERROR(base::GetString(json, "sha256", path).status());
  KVB_ASSIGN_OR_RETURN(file.tree.root, DigestFrom(json["sha256"], absl::StrCat(path, ".sha256")));
  KVB_ASSIGN_OR_RETURN(const crypto::Digest root, crypto::TreeRoot(file.tree.chunks));
  if (root != file.tree.root) {
    return absl::DataLossError(absl::StrCat(path, ".sha256: expected the tree root of its chunks, ",
                                            crypto::ToHex(root), ", got ",
                                            crypto::ToHex(file.tree.root)));
  }
  return file;
}

absl::Status FilesFromJson(const Json& json, Manifest* manifest) {
  KVB_ASSIGN_OR_RETURN(const Json* files, base::GetObject(json, "files", "manifest"));
  KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(*files, {kWeightsFile}, "manifest.files"));
  KVB_RETURN_IF_ERROR(base::GetObject(*files, kWeightsFile, "manifest.files").status());
  for (const auto& [name, value] : files->items()) {
    KVB_ASSIGN_OR_RETURN(FileEntry file,
                         FileFromJson(value, absl::StrCat("manifest.files[\"", name, "\"]")));
    manifest->files.emplace(name, std::move(file));
  }
  return absl::OkStatus();
}

absl::Status HeaderFromJson(const Json& json) {
  KVB_ASSIGN_OR_RETURN(const std::string format, base::GetString(json, "format", "manifest"));
  if (format != kFormat) {
    return absl::InvalidArgumentError(absl::StrCat("manifest.format: expected \"", kFormat,
                                                   "\", got \"", format.substr(0, 40), "\""));
  }
  KVB_RETURN_IF_ERROR(
      base::GetInt(json, "schema_version", "manifest", kSchemaVersion, kSchemaVersion).status());
  return base::RefuseUnknownKeys(json,
                                 {"format", "schema_version", "source", "target", "strip_rope",
                                  "layers", "key_norm", "fit", "calibration", "evidence", "files"},
                                 "manifest");
}

}  // namespace

absl::string_view Name(Verdict verdict) { return kVerdicts[static_cast<int>(verdict)].first; }

Quality QualityAt(const Provenance& provenance, int64_t native_tail) {
  if (!provenance.evidence) return {};
  Quality quality{provenance.evidence->kl_nats, provenance.evidence->gap_recovered};
  for (const TailPoint& tail : provenance.evidence->tails) {
    if (tail.native_tail <= native_tail) quality = {tail.kl_nats, tail.gap_recovered};
  }
  return quality;
}

Json ManifestToJson(const Manifest& manifest) {
  Json layers = Json::array();
  for (const LayerEntry& layer : manifest.layers) {
    layers.push_back({{"key", ListsToJson(layer.key)}, {"value", ListsToJson(layer.value)}});
  }
  Json norm = {{"kind", Word(kKinds, manifest.key_norm)}};
  if (manifest.key_norm == Kind::kKNorm) norm["eps"] = manifest.key_norm_eps;
  Json files = Json::object();
  for (const auto& [name, file] : manifest.files) files[name] = FileToJson(file);
  return {{"format", std::string(kFormat)},
          {"schema_version", kSchemaVersion},
          {"source", SpecToJson(manifest.source)},
          {"target", SpecToJson(manifest.target)},
          {"strip_rope", manifest.strip_rope},
          {"layers", std::move(layers)},
          {"key_norm", std::move(norm)},
          {"fit",
           {{"lambda", manifest.provenance.lambda},
            {"lambda_convention", Word(kConventions, manifest.provenance.lambda_convention)}}},
          {"calibration", manifest.provenance.calibration},
          {"evidence", EvidenceToJson(manifest.provenance.evidence)},
          {"files", std::move(files)}};
}

absl::StatusOr<std::map<std::string, std::string>> WeightsMetadata(const Manifest& manifest) {
  Json json = ManifestToJson(manifest);
  json.erase("files");
  KVB_ASSIGN_OR_RETURN(std::string digest, crypto::Sha256Hex(base::CanonicalJson(json)));
  return std::map<std::string, std::string>{{"format", std::string(kFormat)},
                                            {"schema", absl::StrCat(kSchemaVersion)},
                                            {"manifest_sha256", std::move(digest)}};
}

absl::StatusOr<Manifest> ManifestFromJson(const Json& json) {
  KVB_RETURN_IF_ERROR(HeaderFromJson(json));
  Manifest manifest;
  KVB_ASSIGN_OR_RETURN(const Json* source, base::GetObject(json, "source", "manifest"));
  KVB_ASSIGN_OR_RETURN(const Json* target, base::GetObject(json, "target", "manifest"));
  KVB_ASSIGN_OR_RETURN(manifest.source, SpecFromJson(*source, "manifest.source"));
  KVB_ASSIGN_OR_RETURN(manifest.target, SpecFromJson(*target, "manifest.target"));
  KVB_ASSIGN_OR_RETURN(manifest.strip_rope, base::GetBool(json, "strip_rope", "manifest"));
  KVB_RETURN_IF_ERROR(LayersFromJson(json, &manifest));
  KVB_RETURN_IF_ERROR(KeyNormFromJson(json, &manifest));
  KVB_RETURN_IF_ERROR(FitFromJson(json, &manifest));
  KVB_ASSIGN_OR_RETURN(const Json* calibration, base::GetObject(json, "calibration", "manifest"));
  manifest.provenance.calibration = *calibration;
  KVB_RETURN_IF_ERROR(EvidenceFromJson(json, &manifest));
  KVB_RETURN_IF_ERROR(FilesFromJson(json, &manifest));
  return manifest;
}

}  // namespace kvbridge::artifact
