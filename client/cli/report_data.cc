#include "client/cli/report_data.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "client/cli/local_models.h"
#include "core/base/strict_json.h"
#include "core/evidence/summary.h"

namespace kvbridge::cli {
namespace {

using base::Json;
using evidence::Estimate;

// A member, or null where there is none on the way.
const Json& At(const Json& json, std::initializer_list<const char*> path) {
  static const Json kNull;
  const Json* at = &json;
  for (const char* key : path) {
    const auto it = at->is_object() ? at->find(key) : at->end();
    if (!at->is_object() || it == at->end()) return kNull;
    at = &*it;
  }
  return *at;
}

std::optional<double> Number(const Json& json) {
  if (!json.is_number()) return std::nullopt;
  return json.get<double>();
}

std::string Text(const Json& json) {
  if (json.is_string()) return json.get<std::string>();
  if (json.is_null()) return "";
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<Estimate> Interval(const Json& json) {
  const auto value = Number(At(json, {"value"}));
  const auto low = Number(At(json, {"low"}));
  const auto high = Number(At(json, {"high"}));
  if (!value || !low || !high) return std::nullopt;
  return Estimate{*value, *low, *high};
}

std::vector<std::optional<double>> Numbers(const Json& list) {
  std::vector<std::optional<double>> out;
  if (!list.is_array()) return out;
  for (const Json& item : list) out.push_back(Number(item));
  return out;
}

Matrix Rows(const Json& rows) {
  Matrix out;
  if (!rows.is_array()) return out;
  for (const Json& row : rows) out.push_back(Numbers(row));
  return out;
}

VariantFigures Variant(const Json& json) {
  return {.kl = Interval(At(json, {"kl", "mean"})),
          .kl_p05 = Number(At(json, {"kl", "p05"})),
          .kl_p50 = Number(At(json, {"kl", "p50"})),
          .kl_p95 = Number(At(json, {"kl", "p95", "value"})),
          .kl_max = Number(At(json, {"kl", "max"})),
          .top1 = Interval(At(json, {"top1"})),
          .nll = Interval(At(json, {"nll"})),
          .gap = Interval(At(json, {"gap"})),
          .context = Interval(At(json, {"context"})),
          .nearer_than_none = Interval(At(json, {"nearer_than", "none"}))};
}

DomainFigures Domain(const Json& json) {
  DomainFigures out;
  out.sequences = static_cast<int64_t>(Number(At(json, {"sequences"})).value_or(0));
  for (const auto& [name, variant] : At(json, {"variants"}).items()) {
    out.variants[name] = Variant(variant);
  }
  for (const auto& [name, layers] : At(json, {"layers"}).items()) {
    for (const auto& cosine : Numbers(At(layers, {"cosine"}))) {
      if (cosine) out.cosine[name].push_back(*cosine);
    }
  }
  return out;
}

void CollectEvidence(const Json& details, ArtifactReport* out) {
  out->native_tail = static_cast<int64_t>(Number(At(details, {"native_tail"})).value_or(1));
  for (const auto& [name, domain] : At(details, {"domains"}).items()) {
    out->domains[name] = Domain(domain);
  }
  for (const auto& [name, lengths] : At(details, {"lengths"}).items()) {
    if (!lengths.is_array()) continue;
    for (const Json& point : lengths) {
      const auto prefix = Number(At(point, {"prefix_tokens"}));
      if (!prefix) continue;
      out->domains[name].lengths[static_cast<int64_t>(*prefix)] =
          Variant(At(point, {"variants", "mapped"}));
    }
  }
  const Json& checks = At(details, {"checks"});
  if (!checks.is_array()) return;
  for (const Json& check : checks) {
    out->checks.push_back({.domain = Text(At(check, {"domain"})),
                           .rule = Text(At(check, {"rule"})),
                           .bound = Number(At(check, {"bound"})),
                           .measured = Interval(At(check, {"measured"})),
                           .outcome = Text(At(check, {"outcome"})),
                           .why = Text(At(check, {"why"}))});
  }
}

FitScore Score(const Json& json) {
  return {Number(At(json, {"r2_in_sample"})), Number(At(json, {"r2_held_out"}))};
}

// What the mapper itself says of a layer, with what the fit recorded of it.
LayerFit Layer(const mapper::LayerMap& map, kv::Component c, const Json& fit) {
  return {.support = mapper::Describe(map),
          .sources = map.planes(c),
          .r2 = Score(fit),
          .heads = Numbers(At(fit, {"heads", "r2_held_out"}))};
}

void CollectFit(const mapper::Mapper& mapper, const Json& calibration, ArtifactReport* out) {
  static const Json kNull;
  const Json& layers = At(calibration, {"layers"});
  for (size_t l = 0; l < mapper.keys.size(); ++l) {
    const Json& layer = layers.is_array() && l < layers.size() ? layers[l] : kNull;
    out->keys.push_back(Layer(mapper.keys[l], kv::Component::kKey, At(layer, {"key"})));
    out->values.push_back(Layer(mapper.values[l], kv::Component::kValue, At(layer, {"value"})));
  }
  out->key_probe = Rows(At(calibration, {"probe_scores", "key"}));
  out->value_probe = Rows(At(calibration, {"probe_scores", "value"}));
  out->choice = Text(At(calibration, {"choice", "reason"}));
  const Json& sweep = At(calibration, {"sweep"});
  if (!sweep.is_array()) return;
  for (const Json& point : sweep) {
    out->sweep.push_back({.support = Text(At(point, {"support"})),
                          .k = Number(At(point, {"k"})).value_or(0),
                          .bytes = Number(At(point, {"weight_bytes"})),
                          .key = Score(At(point, {"key"})),
                          .value = Score(At(point, {"value"}))});
  }
}

std::string ModelText(const model::ModelSpec& spec) {
  const model::KvGeometry& g = spec.geometry;
  return absl::StrFormat("%s, revision %s; %d layers, %d KV heads × %d, %s", spec.identity.model_id,
                         spec.identity.revision.empty() ? "not stated" : spec.identity.revision,
                         g.layers, g.kv_heads, g.head_dim, std::string(tensor::Name(g.dtype)));
}

std::string KeyNormText(mapper::KeyNorm::Kind kind) {
  switch (kind) {
    case mapper::KeyNorm::Kind::kNone:
      return "none";
    case mapper::KeyNorm::Kind::kKNorm:
      return "the target's k_norm";
    case mapper::KeyNorm::Kind::kScale:
      return "fitted scales";
  }
  return "";
}

// Members of an object as one line each; what is nested is on one line, as JSON.
void AddMembers(const std::string& prefix, const Json& object, Fields* fields) {
  if (!object.is_object()) return;
  for (const auto& [key, value] : object.items()) {
    fields->emplace_back(absl::StrCat(prefix, " · ", key), Text(value));
  }
}

Fields Provenance(const artifact::Artifact& artifact) {
  const mapper::Mapper& mapper = *artifact.mapper;
  Fields out = {{"artifact", mapper.digest},
                {"source", ModelText(mapper.source)},
                {"target", ModelText(mapper.target)},
                {"tokenizer", mapper.target.identity.tokenizer_sha256},
                {"keys", mapper.strip_rope ? "mapped without their rotation" : "mapped as cached"},
                {"key norm", KeyNormText(mapper.key_norm.kind)},
                {"λ", absl::StrFormat("%g", artifact.provenance.lambda)}};
  const Json& calibration = artifact.provenance.calibration;
  for (const char* member : {"rows", "settings", "moments"}) {
    AddMembers(absl::StrCat("fit · ", member), At(calibration, {member}), &out);
  }
  if (!artifact.provenance.evidence) return out;
  const Json& details = artifact.provenance.evidence->details;
  out.emplace_back("evidence", artifact.provenance.evidence->provenance);
  for (const char* member : {"gate", "gate_sha256", "run_sha256", "measured_artifact"}) {
    if (details.contains(member)) out.emplace_back(member, Text(details[member]));
  }
  for (const auto& [name, domain] : At(details, {"domains"}).items()) {
    out.emplace_back(absl::StrCat("text · ", name), Text(At(domain, {"text_sha256"})));
  }
  AddMembers("run", At(details, {"protocol"}), &out);
  return out;
}

}  // namespace

ArtifactReport CollectReport(const std::string& name, const artifact::Artifact& artifact) {
  const mapper::Mapper& mapper = *artifact.mapper;
  ArtifactReport out{.name = name,
                     .digest = mapper.digest,
                     .source = mapper.source.identity.model_id,
                     .target = mapper.target.identity.model_id,
                     .verdict = artifact.provenance.verdict(),
                     .evidence = artifact.provenance.evidence,
                     .source_layers = mapper.source.geometry.layers,
                     .bytes = StoredBytes(mapper),
                     .dtype = std::string(tensor::Name(mapper.keys[0].weight.dtype)),
                     .parameters = mapper.parameters(),
                     .flops_per_token = mapper.flops_per_token(),
                     .bytes_in_per_token = mapper.source.geometry.token_bytes(),
                     .bytes_out_per_token = mapper.target.geometry.token_bytes(),
                     .provenance = Provenance(artifact)};
  if (out.evidence) CollectEvidence(out.evidence->details, &out);
  CollectFit(mapper, artifact.provenance.calibration, &out);
  return out;
}

}  // namespace kvbridge::cli
