#include "core/plan/fit_plan.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "core/base/status_macros.h"
#include "core/base/strict_json.h"
#include "core/base/units.h"

namespace kvbridge::plan {
namespace {

using base::Json;

constexpr int64_t kMaxCount = 4096;  // layers, heads, dims: as on the wire
constexpr int64_t kMaxBytes = int64_t{1} << 62;

absl::Status InRange(absl::string_view field, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected ", min, " to ", max, ", got ", value));
}

absl::Status CheckGeometry(absl::string_view side, const model::KvGeometry& g) {
  KVB_RETURN_IF_ERROR(InRange(absl::StrCat(side, ".num_layers"), g.layers, 1, kMaxCount));
  KVB_RETURN_IF_ERROR(InRange(absl::StrCat(side, ".num_kv_heads"), g.kv_heads, 1, kMaxCount));
  return InRange(absl::StrCat(side, ".head_dim"), g.head_dim, 1, kMaxCount);
}

bool FullAttention(const model::KvGeometry& g) {
  return std::all_of(g.attention.begin(), g.attention.end(),
                     [](model::AttentionKind k) { return k == model::AttentionKind::kFull; });
}

absl::Status CheckPair(const FitPlanInput& in) {
  if (in.source_tokenizer != in.target_tokenizer) {
    return absl::FailedPreconditionError(
        "target.tokenizer_hash: expected the source's; token ids must mean the same");
  }
  for (const auto& [side, g] : {std::pair("source", &in.source), std::pair("target", &in.target)}) {
    if (!FullAttention(*g)) {
      return absl::FailedPreconditionError(
          absl::StrCat(side, ".attention_kind: expected full attention in every layer"));
    }
  }
  if (in.require_matched_kv &&
      (in.source.kv_heads != in.target.kv_heads || in.source.head_dim != in.target.head_dim)) {
    return absl::FailedPreconditionError(
        absl::StrCat("target: expected ", in.source.kv_heads, " heads x ", in.source.head_dim,
                     " as the source (require_matched_kv), got ", in.target.kv_heads, " x ",
                     in.target.head_dim));
  }
  return absl::OkStatus();
}

absl::Status CheckNumbers(const FitPlanInput& in) {
  constexpr int64_t kMax32 = std::numeric_limits<int32_t>::max();
  KVB_RETURN_IF_ERROR(CheckGeometry("source", in.source));
  KVB_RETURN_IF_ERROR(CheckGeometry("target", in.target));
  KVB_RETURN_IF_ERROR(InRange("fit.top_k", in.top_k, 1, kMax32));
  if (!(in.ridge_alpha >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("fit.ridge_alpha: expected 0 or more, got ", in.ridge_alpha));
  }
  if (in.accumulator_bytes != 4 && in.accumulator_bytes != 8) {
    return absl::InvalidArgumentError(
        absl::StrCat("fit.accumulation_dtype: expected 4 or 8 bytes, got ", in.accumulator_bytes));
  }
  KVB_RETURN_IF_ERROR(
      InRange("fit.target_layer_block_size", in.target_layer_block_size, 1, kMax32));
  KVB_RETURN_IF_ERROR(InRange("fit.selection_target_layer_block_size",
                              in.selection_target_layer_block_size, 1, kMax32));
  KVB_RETURN_IF_ERROR(InRange("calibration.sequences", in.sequences, 1, kMaxBytes));
  KVB_RETURN_IF_ERROR(InRange("calibration.tokens", in.tokens, 1, kMaxBytes));
  KVB_RETURN_IF_ERROR(InRange("calibration.stride", in.stride, 1, kMaxBytes));
  KVB_RETURN_IF_ERROR(InRange("cache_dtype_bytes", in.cache_dtype_bytes, 1, 8));
  return InRange("artifact_dtype_bytes", in.artifact_dtype_bytes, 1, 8);
}

absl::StatusOr<int64_t> Product(absl::string_view field, std::initializer_list<int64_t> factors) {
  uint64_t product = 1;
  for (const int64_t factor : factors) {
    if (!base::CheckedMul(product, static_cast<uint64_t>(factor), &product) ||
        product > static_cast<uint64_t>(kMaxBytes)) {
      return absl::InvalidArgumentError(absl::StrCat(field, ": too large to plan"));
    }
  }
  return static_cast<int64_t>(product);
}

int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// Numbers kept for one regression from x features to y outputs: X'X, X'Y, both sums, the count.
double Moments(double x, double y) { return x * x + x * y + x + y + 1; }

double Gib(double bytes) { return bytes / static_cast<double>(base::kGiB); }

absl::StatusOr<model::KvGeometry> ParseGeometry(const Json& json, absl::string_view path) {
  KVB_RETURN_IF_ERROR(
      base::RefuseUnknownKeys(json,
                              {"model_id", "revision", "tokenizer_hash", "num_layers",
                               "num_kv_heads", "head_dim", "attention_kind", "architecture"},
                              path));
  model::KvGeometry g;
  KVB_ASSIGN_OR_RETURN(g.layers, base::GetInt(json, "num_layers", path, 1, kMaxCount));
  KVB_ASSIGN_OR_RETURN(g.kv_heads, base::GetInt(json, "num_kv_heads", path, 1, kMaxCount));
  KVB_ASSIGN_OR_RETURN(g.head_dim, base::GetInt(json, "head_dim", path, 1, kMaxCount));
  if (json.contains("attention_kind")) {
    KVB_ASSIGN_OR_RETURN(const std::string kind, base::GetString(json, "attention_kind", path));
    g.attention.assign(
        g.layers, kind == "dense" ? model::AttentionKind::kFull : model::AttentionKind::kUnknown);
  }
  return g;
}

// Sets `value` from an optional member.
template <typename Int>
absl::Status MaybeInt(const Json& json, absl::string_view key, absl::string_view path, Int* value) {
  if (!json.contains(std::string(key))) return absl::OkStatus();
  KVB_ASSIGN_OR_RETURN(*value, base::GetInt(json, key, path, std::numeric_limits<Int>::min(),
                                            std::numeric_limits<Int>::max()));
  return absl::OkStatus();
}

absl::Status ParseFit(const Json& json, FitPlanInput* in) {
  constexpr absl::string_view kPath = "fit";
  KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(
      json,
      {"top_k", "ridge_alpha", "content_space", "selection_alpha", "accumulation_dtype",
       "accumulation_device", "require_matched_kv", "target_layer_block_size",
       "selection_target_layer_block_size", "token_stride"},
      kPath));
  KVB_RETURN_IF_ERROR(MaybeInt(json, "top_k", kPath, &in->top_k));
  KVB_RETURN_IF_ERROR(
      MaybeInt(json, "target_layer_block_size", kPath, &in->target_layer_block_size));
  KVB_RETURN_IF_ERROR(MaybeInt(json, "selection_target_layer_block_size", kPath,
                               &in->selection_target_layer_block_size));
  int64_t token_stride = in->stride;
  KVB_RETURN_IF_ERROR(MaybeInt(json, "token_stride", kPath, &token_stride));
  if (token_stride != in->stride) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fit.token_stride: expected calibration.stride = ", in->stride, ", got ", token_stride));
  }
  if (json.contains("ridge_alpha")) {
    KVB_ASSIGN_OR_RETURN(in->ridge_alpha, base::GetFinite(json, "ridge_alpha", kPath));
  }
  if (json.contains("require_matched_kv")) {
    KVB_ASSIGN_OR_RETURN(in->require_matched_kv, base::GetBool(json, "require_matched_kv", kPath));
  }
  if (json.contains("accumulation_dtype")) {
    KVB_ASSIGN_OR_RETURN(const std::string dtype,
                         base::GetString(json, "accumulation_dtype", kPath));
    if (dtype != "float32" && dtype != "float64") {
      return absl::InvalidArgumentError(
          absl::StrCat("fit.accumulation_dtype: expected float32 or float64, got ", dtype));
    }
    in->accumulator_bytes = dtype == "float32" ? 4 : 8;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<FitPlanInput> ParseFitPlanInput(absl::string_view text) {
  KVB_ASSIGN_OR_RETURN(const Json json, base::ParseStrictJson(text, "experiment"));
  constexpr absl::string_view kRoot = "experiment";
  KVB_RETURN_IF_ERROR(base::RefuseUnknownKeys(json,
                                              {"name", "source", "target", "fit", "calibration",
                                               "cache_dtype_bytes", "artifact_dtype_bytes"},
                                              kRoot));
  FitPlanInput in;
  KVB_ASSIGN_OR_RETURN(in.name, base::GetString(json, "name", kRoot));
  KVB_ASSIGN_OR_RETURN(const Json* source, base::GetObject(json, "source", kRoot));
  KVB_ASSIGN_OR_RETURN(in.source, ParseGeometry(*source, "source"));
  KVB_ASSIGN_OR_RETURN(in.source_tokenizer, base::GetString(*source, "tokenizer_hash", "source"));
  KVB_ASSIGN_OR_RETURN(const Json* target, base::GetObject(json, "target", kRoot));
  KVB_ASSIGN_OR_RETURN(in.target, ParseGeometry(*target, "target"));
  KVB_ASSIGN_OR_RETURN(in.target_tokenizer, base::GetString(*target, "tokenizer_hash", "target"));

  KVB_ASSIGN_OR_RETURN(const Json* calibration, base::GetObject(json, "calibration", kRoot));
  constexpr absl::string_view kCalibration = "calibration";
  KVB_RETURN_IF_ERROR(
      base::RefuseUnknownKeys(*calibration, {"sequences", "tokens", "stride"}, kCalibration));
  KVB_ASSIGN_OR_RETURN(in.sequences,
                       base::GetInt(*calibration, "sequences", kCalibration, 1, kMaxBytes));
  KVB_ASSIGN_OR_RETURN(in.tokens, base::GetInt(*calibration, "tokens", kCalibration, 1, kMaxBytes));
  KVB_RETURN_IF_ERROR(MaybeInt(*calibration, "stride", kCalibration, &in.stride));

  KVB_ASSIGN_OR_RETURN(const Json* fit, base::GetObject(json, "fit", kRoot));
  KVB_RETURN_IF_ERROR(ParseFit(*fit, &in));
  KVB_RETURN_IF_ERROR(MaybeInt(json, "cache_dtype_bytes", kRoot, &in.cache_dtype_bytes));
  KVB_RETURN_IF_ERROR(MaybeInt(json, "artifact_dtype_bytes", kRoot, &in.artifact_dtype_bytes));
  KVB_RETURN_IF_ERROR(CheckNumbers(in));
  return in;
}

absl::StatusOr<FitPlan> MakeFitPlan(const FitPlanInput& in) {
  KVB_RETURN_IF_ERROR(CheckNumbers(in));
  KVB_RETURN_IF_ERROR(CheckPair(in));
  const int64_t features = std::min(in.top_k, in.source.layers) * in.source.row();
  const int64_t outputs = in.target.row();
  const double accumulator = in.accumulator_bytes;

  FitPlan plan;
  plan.name = in.name;
  KVB_ASSIGN_OR_RETURN(plan.observations, Product("calibration.sequences",
                                                  {in.sequences, CeilDiv(in.tokens, in.stride)}));
  KVB_ASSIGN_OR_RETURN(plan.mapper_parameters,
                       Product("target", {2, in.target.layers, outputs, features + 1}));
  KVB_ASSIGN_OR_RETURN(const int64_t mapper_bytes,
                       Product("target", {plan.mapper_parameters, in.artifact_dtype_bytes}));
  KVB_ASSIGN_OR_RETURN(const int64_t source_cache,
                       Product("calibration.tokens", {2, in.source.layers, in.source.row(),
                                                      in.tokens, in.cache_dtype_bytes}));
  KVB_ASSIGN_OR_RETURN(const int64_t target_cache,
                       Product("calibration.tokens",
                               {2, in.target.layers, outputs, in.tokens, in.cache_dtype_bytes}));

  plan.mapper_gib = Gib(mapper_bytes);
  plan.fit_block_working_set_gib =
      Gib(2 * Moments(features, outputs) * accumulator * in.target_layer_block_size);
  // One probe per source layer and head, head-matched, K and V.
  plan.selection_block_working_set_gib = Gib(2.0 * in.source.layers * in.target.kv_heads *
                                             Moments(in.source.head_dim, in.target.head_dim) *
                                             accumulator * in.selection_target_layer_block_size);
  plan.calibration_cache_pair_gib = Gib(static_cast<double>(source_cache) + target_cache);
  plan.calibration_data_passes = CeilDiv(in.target.layers, in.selection_target_layer_block_size) +
                                 CeilDiv(in.target.layers, in.target_layer_block_size);
  plan.mapper_load_ms_pcie25 = mapper_bytes / 25e9 * 1000;
  plan.mapper_load_ms_pcie50 = mapper_bytes / 50e9 * 1000;
  return plan;
}

}  // namespace kvbridge::plan
