#include "core/evidence/sequence_scores.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "core/artifact/safetensors.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"
#include "core/evidence/metrics.h"

namespace kvbridge::evidence {
namespace {

using artifact::SafeTensors;
using artifact::StDType;
using artifact::StTensor;
using base::Json;

constexpr absl::string_view kSchema = "kvbridge-scores/1";
constexpr absl::string_view kLogits = "logits.";
constexpr absl::string_view kKeys = "attention.keys.";
constexpr int64_t kMaxTokens = int64_t{1} << 32;

absl::Status CheckName(absl::string_view name, absl::string_view what) {
  const auto good = [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_' || c == '-' || c == '.';
  };
  if (!name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), good)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": expected 1 to 64 of a-z, 0-9, _, - and ., got ", name.size(), " characters"));
}

// Copied: a tensor in a file need not be aligned.
template <typename T>
std::vector<T> Values(const StTensor& tensor) {
  std::vector<T> out(tensor.data.size() / sizeof(T));
  std::memcpy(out.data(), tensor.data.data(), tensor.data.size());
  return out;
}

absl::Status CheckFinite(std::span<const float> values, absl::string_view name) {
  for (const float value : values) {
    if (!std::isfinite(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": expected finite numbers, got ", value));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> Floats(const SafeTensors& file, const std::string& name,
                                          const std::vector<int64_t>& shape) {
  KVB_ASSIGN_OR_RETURN(const StTensor* tensor, file.Find(name, StDType::kF32, shape));
  std::vector<float> values = Values<float>(*tensor);
  KVB_RETURN_IF_ERROR(CheckFinite(values, name));
  return values;
}

struct Logits {
  std::vector<float> data;
  int64_t vocabulary = 0;
  std::span<const float> row(int64_t token) const {
    return std::span(data).subspan(token * vocabulary, vocabulary);
  }
};

absl::StatusOr<Logits> ReadLogits(const SafeTensors& file, const std::string& name,
                                  std::span<const int64_t> labels) {
  KVB_ASSIGN_OR_RETURN(const StTensor* tensor, file.Find(name));
  const auto tokens = static_cast<int64_t>(labels.size());
  if (tensor->shape.size() != 2 || tensor->shape[0] != tokens || tensor->shape[1] < 1) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": expected shape [", tokens,
                                                   ", vocabulary], got ",
                                                   artifact::ShapeText(tensor->shape)));
  }
  Logits logits{.vocabulary = tensor->shape[1]};
  KVB_ASSIGN_OR_RETURN(logits.data, Floats(file, name, {tokens, logits.vocabulary}));
  for (const int64_t label : labels) {
    if (label < 0 || label >= logits.vocabulary) {
      return absl::InvalidArgumentError(absl::StrCat(
          "labels: expected 0 to ", logits.vocabulary - 1, " (", name, "), got ", label));
    }
  }
  return logits;
}

VariantScores Score(const Logits& own, const Logits& variant, std::span<const int64_t> labels,
                    base::WorkerPool* pool) {
  const auto tokens = static_cast<int64_t>(labels.size());
  const bool comparable = own.vocabulary == variant.vocabulary;
  struct Token {
    double kl = 0;
    double top1 = 0;
    double nll = 0;
  };
  std::vector<Token> scored(tokens);
  pool->ParallelFor(tokens, [&](int64_t i) {
    scored[i].nll = NegativeLogLikelihood(variant.row(i), labels[i]);
    if (!comparable) return;
    scored[i].kl = KlDivergence(own.row(i), variant.row(i));
    scored[i].top1 = Top1(own.row(i)) == Top1(variant.row(i)) ? 1 : 0;
  });
  Token sum;
  for (const Token& token : scored) {
    sum.kl += token.kl;
    sum.top1 += token.top1;
    sum.nll += token.nll;
  }
  const auto n = static_cast<double>(tokens);
  VariantScores out{.nll = sum.nll / n};
  if (comparable) {
    out.kl = sum.kl / n;
    out.top1 = sum.top1 / n;
  }
  return out;
}

// The attention part of a file, layer by layer.
class AttentionFile {
 public:
  static absl::StatusOr<AttentionFile> Open(const SafeTensors& file, int64_t tokens) {
    KVB_ASSIGN_OR_RETURN(const StTensor* queries, file.Find("attention.queries"));
    KVB_ASSIGN_OR_RETURN(const StTensor* keys, file.Find("attention.keys.own"));
    const auto& q = queries->shape;
    const auto& k = keys->shape;
    if (q.size() != 4 || k.size() != 4 || q[0] != k[0] || q[0] < 1 || k[1] < 1 || q[1] < k[1] ||
        q[1] % k[1] != 0 || q[2] != tokens || k[2] < tokens || q[3] != k[3] || q[3] < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("attention.queries: expected [layers, a multiple of the kv heads, ", tokens,
                       ", head_dim] beside keys [layers, kv_heads, tokens, head_dim], got ",
                       artifact::ShapeText(q), " beside ", artifact::ShapeText(k)));
    }
    AttentionFile out(file, q, k);
    KVB_ASSIGN_OR_RETURN(out.queries_, Floats(file, "attention.queries", q));
    return out;
  }

  // Outputs of all layers, [layers, query_heads * tokens * head_dim].
  absl::StatusOr<std::vector<std::vector<float>>> Outputs(const std::string& variant,
                                                          base::WorkerPool* pool) const {
    KVB_ASSIGN_OR_RETURN(const auto keys, Floats(file_, absl::StrCat(kKeys, variant), k_));
    KVB_ASSIGN_OR_RETURN(const auto values,
                         Floats(file_, absl::StrCat("attention.values.", variant), k_));
    const AttentionShape shape{.query_heads = static_cast<int32_t>(q_[1]),
                               .kv_heads = static_cast<int32_t>(k_[1]),
                               .head_dim = static_cast<int32_t>(q_[3]),
                               .queries = q_[2],
                               .keys = k_[2]};
    const int64_t q_size = q_[1] * q_[2] * q_[3];
    const int64_t k_size = k_[1] * k_[2] * k_[3];
    std::vector<std::vector<float>> out(q_[0]);
    pool->ParallelFor(q_[0], [&](int64_t layer) {
      out[layer] =
          AttentionOutput(shape, {.queries = std::span(queries_).subspan(layer * q_size, q_size),
                                  .keys = std::span(keys).subspan(layer * k_size, k_size),
                                  .values = std::span(values).subspan(layer * k_size, k_size),
                                  .causal = true});
    });
    return out;
  }

  int64_t head_dim() const { return q_[3]; }

 private:
  AttentionFile(const SafeTensors& file, std::vector<int64_t> q, std::vector<int64_t> k)
      : file_(file), q_(std::move(q)), k_(std::move(k)) {}

  const SafeTensors& file_;
  std::vector<int64_t> q_;  // shapes of the queries, and of keys and values
  std::vector<int64_t> k_;
  std::vector<float> queries_;
};

absl::Status ScoreAttention(const SafeTensors& file, base::WorkerPool* pool, SequenceScores* out) {
  if (!file.Find("attention.queries").ok()) return absl::OkStatus();
  KVB_ASSIGN_OR_RETURN(const AttentionFile attention, AttentionFile::Open(file, out->tokens));
  KVB_ASSIGN_OR_RETURN(const auto own, attention.Outputs("own", pool));
  for (const auto& [name, tensor] : file.tensors()) {
    if (!absl::StartsWith(name, kKeys) || name == absl::StrCat(kKeys, "own")) continue;
    const std::string variant(absl::StripPrefix(name, kKeys));
    KVB_RETURN_IF_ERROR(CheckName(variant, "variant"));
    KVB_ASSIGN_OR_RETURN(const auto outputs, attention.Outputs(variant, pool));
    std::vector<double>& cosine = out->layer_cosine[variant];
    for (size_t layer = 0; layer < own.size(); ++layer) {
      cosine.push_back(MeanCosine(own[layer], outputs[layer], attention.head_dim()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Stated(const SafeTensors& file, const std::string& key) {
  const auto it = file.metadata().find(key);
  if (it != file.metadata().end()) return it->second;
  return absl::InvalidArgumentError(absl::StrCat("metadata ", key, ": missing"));
}

absl::StatusOr<int64_t> StatedCount(const SafeTensors& file, const std::string& key) {
  KVB_ASSIGN_OR_RETURN(const std::string text, Stated(file, key));
  int64_t count = 0;
  if (absl::SimpleAtoi(text, &count) && count >= 0 && count < kMaxTokens) return count;
  return absl::InvalidArgumentError(
      absl::StrCat("metadata ", key, ": expected a count, got \"", text.substr(0, 40), "\""));
}

absl::StatusOr<SequenceScores> ReadHead(const SafeTensors& file) {
  for (const auto& [key, expected] :
       {std::pair("format", "kvbridge-logits"), std::pair("schema", "1")}) {
    KVB_ASSIGN_OR_RETURN(const std::string got, Stated(file, key));
    if (got != expected) {
      return absl::InvalidArgumentError(absl::StrCat("metadata ", key, ": expected ", expected,
                                                     ", got \"", got.substr(0, 40), "\""));
    }
  }
  SequenceScores head;
  KVB_ASSIGN_OR_RETURN(head.domain, Stated(file, "domain"));
  KVB_RETURN_IF_ERROR(CheckName(head.domain, "metadata domain"));
  KVB_ASSIGN_OR_RETURN(head.sequence, StatedCount(file, "sequence"));
  KVB_ASSIGN_OR_RETURN(head.prefix_tokens, StatedCount(file, "prefix_tokens"));
  return head;
}

absl::Status VariantsFromJson(const Json& json, absl::string_view path, SequenceScores* out) {
  KVB_ASSIGN_OR_RETURN(const Json* variants, base::GetObject(json, "variants", path));
  for (const auto& [name, scores] : variants->items()) {
    const std::string at = absl::StrCat(path, ".variants.", name);
    KVB_RETURN_IF_ERROR(CheckName(name, absl::StrCat(path, ".variants")));
    KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(scores, {"kl", "top1", "nll"}, at));
    VariantScores& variant = out->variants[name];
    KVB_ASSIGN_OR_RETURN(variant.kl, base::GetFiniteOrNull(scores, "kl", at));
    KVB_ASSIGN_OR_RETURN(variant.top1, base::GetFiniteOrNull(scores, "top1", at));
    KVB_ASSIGN_OR_RETURN(variant.nll, base::GetFinite(scores, "nll", at));
  }
  if (out->variants.count("own") != 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ".variants.own: missing"));
}

absl::Status CosinesFromJson(const Json& json, absl::string_view path, SequenceScores* out) {
  KVB_ASSIGN_OR_RETURN(const Json* cosines, base::GetObject(json, "layer_cosine", path));
  for (const auto& [name, layers] : cosines->items()) {
    KVB_RETURN_IF_ERROR(CheckName(name, absl::StrCat(path, ".layer_cosine")));
    KVB_RETURN_IF_ERROR(base::GetArray(*cosines, name, path).status());
    for (const Json& layer : layers) {
      KVB_ASSIGN_OR_RETURN(
          const double cosine,
          base::GetFinite(Json{{name, layer}}, name, absl::StrCat(path, ".layer_cosine")));
      out->layer_cosine[name].push_back(cosine);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SequenceScores> ScoreLogits(const std::filesystem::path& path,
                                           base::WorkerPool* pool) {
  KVB_ASSIGN_OR_RETURN(const auto mapped, base::MappedFile::Open(path));
  KVB_ASSIGN_OR_RETURN(const SafeTensors file,
                       SafeTensors::Parse(mapped->bytes(), path.filename().string()));
  KVB_ASSIGN_OR_RETURN(SequenceScores out, ReadHead(file));
  KVB_ASSIGN_OR_RETURN(const StTensor* labels_tensor, file.Find("labels"));
  KVB_RETURN_IF_ERROR(file.Find("labels", StDType::kI64, {labels_tensor->elements()}).status());
  const std::vector<int64_t> labels = Values<int64_t>(*labels_tensor);
  out.tokens = static_cast<int64_t>(labels.size());
  if (labels.empty()) return absl::InvalidArgumentError("labels: expected at least one");
  KVB_ASSIGN_OR_RETURN(const Logits own, ReadLogits(file, "logits.own", labels));
  for (const auto& [name, tensor] : file.tensors()) {
    if (!absl::StartsWith(name, kLogits)) continue;
    const std::string variant(absl::StripPrefix(name, kLogits));
    KVB_RETURN_IF_ERROR(CheckName(variant, "variant"));
    KVB_ASSIGN_OR_RETURN(const Logits logits, ReadLogits(file, name, labels));
    out.variants[variant] = Score(own, logits, labels, pool);
  }
  KVB_RETURN_IF_ERROR(ScoreAttention(file, pool, &out));
  KVB_RETURN_IF_ERROR(mapped->CheckUnchanged());
  return out;
}

Json ToJson(const SequenceScores& scores) {
  Json variants = Json::object();
  for (const auto& [name, variant] : scores.variants) {
    variants[name] = {{"kl", base::NumberOrNull(variant.kl)},
                      {"top1", base::NumberOrNull(variant.top1)},
                      {"nll", variant.nll}};
  }
  return {{"schema", std::string(kSchema)},
          {"domain", scores.domain},
          {"sequence", scores.sequence},
          {"prefix_tokens", scores.prefix_tokens},
          {"tokens", scores.tokens},
          {"variants", std::move(variants)},
          {"layer_cosine", Json(scores.layer_cosine)}};
}

absl::StatusOr<SequenceScores> SequenceScoresFromJson(const Json& json, absl::string_view path) {
  KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(
      json, {"schema", "domain", "sequence", "prefix_tokens", "tokens", "variants", "layer_cosine"},
      path));
  KVB_ASSIGN_OR_RETURN(const std::string schema, base::GetString(json, "schema", path));
  if (schema != kSchema) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".schema: expected ", kSchema, ", got \"", schema.substr(0, 40), "\""));
  }
  SequenceScores out;
  KVB_ASSIGN_OR_RETURN(out.domain, base::GetString(json, "domain", path));
  KVB_RETURN_IF_ERROR(CheckName(out.domain, absl::StrCat(path, ".domain")));
  KVB_ASSIGN_OR_RETURN(out.sequence, base::GetInt(json, "sequence", path, 0, kMaxTokens));
  KVB_ASSIGN_OR_RETURN(out.prefix_tokens, base::GetInt(json, "prefix_tokens", path, 0, kMaxTokens));
  KVB_ASSIGN_OR_RETURN(out.tokens, base::GetInt(json, "tokens", path, 1, kMaxTokens));
  KVB_RETURN_IF_ERROR(VariantsFromJson(json, path, &out));
  KVB_RETURN_IF_ERROR(CosinesFromJson(json, path, &out));
  return out;
}

}  // namespace kvbridge::evidence
