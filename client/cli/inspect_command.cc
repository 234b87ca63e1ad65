// kvbridge inspect: what an artifact maps, and whether its bytes are what it says.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "client/cli/commands.h"
#include "client/cli/local_models.h"
#include "client/cli/plane_name.h"
#include "client/cli/progress.h"
#include "client/cli/table.h"
#include "core/artifact/spec_json.h"
#include "core/base/status_macros.h"
#include "core/base/units.h"

namespace kvbridge::cli {
namespace {

absl::string_view KeyNormName(mapper::KeyNorm::Kind kind) {
  switch (kind) {
    case mapper::KeyNorm::Kind::kNone:
      return "none";
    case mapper::KeyNorm::Kind::kKNorm:
      return "k_norm";
    case mapper::KeyNorm::Kind::kScale:
      return "scale";
  }
  return "";
}

std::string OrNotStated(const std::string& text) { return text.empty() ? "not stated" : text; }

std::string ModelText(const model::ModelSpec& spec) {
  const model::KvGeometry& g = spec.geometry;
  return absl::StrFormat("%s %s: %d layers, %d heads x %d, %s", OrNotStated(spec.identity.model_id),
                         absl::StrCat("(", OrNotStated(spec.identity.family), ")"), g.layers,
                         g.kv_heads, g.head_dim, std::string(tensor::Name(g.dtype)));
}

// Formats without RoPE leave it to the configs.
std::string RopeText(const model::RopeSpec& rope, artifact::Format format) {
  if (rope.params.rotary_dim == 0) {
    return format == artifact::Format::kNative ? "none" : "not stated";
  }
  return absl::StrFormat("%d dims, %s, factor %g", rope.params.rotary_dim,
                         std::string(model::Name(rope.params.pairing)),
                         rope.params.attention_factor);
}

// "3 2 1 V3": layers of the same component, then those of the other.
std::string SourcesText(const mapper::LayerMap& map, kv::Component own) {
  return absl::StrJoin(map.planes(own), " ",
                       [own](std::string* out, const mapper::SourcePlane& plane) {
                         out->append(PlaneName(plane, own));
                       });
}

base::Json LayerJson(const mapper::LayerMap& layer) {
  base::Json hidden = base::Json::array();
  for (const mapper::HiddenLayer& one : layer.hidden) hidden.push_back(one.width());
  return {{"support", std::string(mapper::Name(layer.support))},
          {"sources", layer.sources},
          {"cross_sources", layer.cross_sources},
          {"head_source", layer.head_source},
          {"hidden", hidden}};
}

base::Json ArtifactJson(const artifact::Artifact& artifact) {
  const mapper::Mapper& mapper = *artifact.mapper;
  base::Json layers = base::Json::array();
  for (size_t i = 0; i < mapper.keys.size(); ++i) {
    layers.push_back({{"key", LayerJson(mapper.keys[i])}, {"value", LayerJson(mapper.values[i])}});
  }
  return {{"schema", "kvbridge.inspect/v1"},
          {"format", std::string(artifact::Name(artifact.format))},
          {"artifact_digest", mapper.digest},
          {"verified", true},
          {"source", artifact::SpecToJson(mapper.source)},
          {"target", artifact::SpecToJson(mapper.target)},
          {"strip_rope", mapper.strip_rope},
          {"layers", layers},
          {"key_norm", std::string(KeyNormName(mapper.key_norm.kind))},
          {"dtype", std::string(tensor::Name(mapper.keys[0].weight.dtype))},
          {"bytes", StoredBytes(mapper)},
          {"parameters", mapper.parameters()},
          {"flops_per_token", mapper.flops_per_token()},
          {"lambda", artifact.provenance.lambda},
          {"calibration", artifact.provenance.calibration},
          {"verdict", std::string(artifact::Name(artifact.provenance.verdict()))}};
}

std::string EvidenceText(const artifact::Provenance& provenance) {
  std::string text(artifact::Name(provenance.verdict()));
  if (!provenance.evidence) return text;
  if (provenance.evidence->kl_nats) {
    absl::StrAppend(&text, absl::StrFormat(", KL %.4f nats", *provenance.evidence->kl_nats));
  }
  if (provenance.evidence->gap_recovered) {
    absl::StrAppend(&text, absl::StrFormat(", %.0f %% of the gap recovered",
                                           *provenance.evidence->gap_recovered * 100));
  }
  return text;
}

std::string ArtifactText(const artifact::Artifact& artifact, bool color) {
  const mapper::Mapper& mapper = *artifact.mapper;
  const std::string fields = RenderFields(
      {{"format", std::string(artifact::Name(artifact.format))},
       {"digest", absl::StrCat(mapper.digest, " (every file verified)")},
       {"source", ModelText(mapper.source)},
       {"target", ModelText(mapper.target)},
       {"source rope", RopeText(mapper.source.rope, artifact.format)},
       {"target rope", RopeText(mapper.target.rope, artifact.format)},
       {"tokenizer", OrNotStated(mapper.target.identity.tokenizer_sha256.substr(0, 12))},
       {"key norm", std::string(KeyNormName(mapper.key_norm.kind))},
       {"storage", absl::StrCat(std::string(tensor::Name(mapper.keys[0].weight.dtype)), ", ",
                                base::HumanBytes(StoredBytes(mapper)))},
       {"evidence", EvidenceText(artifact.provenance)}});
  Table table({"TARGET LAYER", "KEYS FROM", "VALUES FROM", "SUPPORT"});
  for (size_t i = 0; i < mapper.keys.size(); ++i) {
    const mapper::LayerMap& key = mapper.keys[i];
    const mapper::LayerMap& value = mapper.values[i];
    const std::string key_support = mapper::Describe(key);
    const std::string value_support = mapper::Describe(value);
    table.AddRow({absl::StrCat(i), SourcesText(key, kv::Component::kKey),
                  SourcesText(value, kv::Component::kValue),
                  key_support == value_support ? key_support
                                               : absl::StrCat(key_support, "/", value_support)});
  }
  return absl::StrCat(fields, "\n", table.Render(color));
}

absl::StatusOr<ExitCode> InspectConfig(const InspectFlags& flags, const Output& output) {
  model::HfConfigOptions options;
  if (flags.pairing == "half") options.pairing = model::Pairing::kHalf;
  if (flags.pairing == "interleaved") options.pairing = model::Pairing::kInterleaved;
  if (flags.longrope == "short") options.longrope_list = model::LongRopeList::kShort;
  if (flags.longrope == "long") options.longrope_list = model::LongRopeList::kLong;
  KVB_ASSIGN_OR_RETURN(const auto spec, ReadConfig(flags.config, options));
  const base::Json model = artifact::SpecToJson(*spec);
  // As text it is the message itself, ready to be pasted into a request.
  KVB_RETURN_IF_ERROR(output.Emit({{"schema", "kvbridge.model/v1"}, {"model", model}},
                                  [&](bool) { return model.dump(2) + "\n"; }));
  return ExitCode::kOk;
}

}  // namespace

absl::StatusOr<ExitCode> RunInspect(const InspectFlags& flags, const Output& output) {
  if (!flags.config.empty()) return InspectConfig(flags, output);
  KVB_ASSIGN_OR_RETURN(auto pool, base::WorkerPool::Create({}));
  artifact::Artifact loaded;
  {
    const Progress progress(absl::StrCat("verifying ", flags.artifact), output.quiet());
    KVB_ASSIGN_OR_RETURN(loaded,
                         LoadLocalArtifact(flags.artifact, flags.configs, true, pool.get()));
  }
  KVB_RETURN_IF_ERROR(
      output.Emit(ArtifactJson(loaded), [&](bool color) { return ArtifactText(loaded, color); }));
  return ExitCode::kOk;
}

}  // namespace kvbridge::cli
