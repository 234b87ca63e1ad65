#include "core/fit/record.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "core/base/units.h"

namespace kvbridge::fit {
namespace {

using base::Json;
using kv::Component;

constexpr size_t kMaxFlaws = 1000;

// Six digits; null where nothing was measured.
Json Number(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(absl::StrFormat("%.6g", value).c_str(), nullptr);
}

Json Numbers(const std::vector<double>& values) {
  Json out = Json::array();
  for (double value : values) out.push_back(Number(value));
  return out;
}

Json Matrix2(const std::vector<std::vector<double>>& rows) {
  Json out = Json::array();
  for (const auto& row : rows) out.push_back(Numbers(row));
  return out;
}

template <typename Name>
Json Text(Name name) {
  return std::string(name);
}

absl::string_view ConventionName(artifact::LambdaConvention convention) {
  switch (convention) {
    case artifact::LambdaConvention::kRawGram:
      return "raw_gram";
    case artifact::LambdaConvention::kGramOverRows:
      return "gram_over_rows";
    case artifact::LambdaConvention::kRelativeMeanDiagonal:
      return "relative_mean_diagonal";
  }
  return "unknown";
}

std::string ChoiceName(const SolveOptions& options) {
  switch (options.choice) {
    case ChoiceRule::kBest:
      return "best";
    case ChoiceRule::kFixed:
      return absl::StrCat("k=", options.k);
    case ChoiceRule::kSweep:
      return "sweep";
    case ChoiceRule::kBudget:
      return "budget";
  }
  return "unknown";
}

const char* SupportName(SupportRule rule) {
  return rule == SupportRule::kAuto ? "auto" : rule == SupportRule::kFull ? "full" : "head_local";
}

Json Settings(const SolveOptions& o) {
  return {{"order", o.order == Order::kForward ? "forward" : "probe"},
          {"lists", o.joint_lists ? "joint" : "separate"},
          {"cross", o.cross},
          {"support", SupportName(o.support)},
          {"choice", ChoiceName(o)},
          {"lambda", o.lambda ? Json(o.lambda->value) : Json(nullptr)},
          {"lambda_convention", Text(ConventionName(o.lambda.value_or(Lambda{}).convention))},
          {"max_k", o.max_k},
          {"budget_bytes", o.choice == ChoiceRule::kBudget ? Json(o.budget_bytes) : Json(nullptr)},
          {"key_weight", o.component_weight[0]},
          {"value_weight", o.component_weight[1]},
          {"refit", o.refit},
          {"dtype", Text(tensor::Name(o.dtype))}};
}

int64_t Bytes(const SolveRecord& record, int64_t parameters) {
  return parameters * static_cast<int64_t>(tensor::ByteSize(record.options->dtype));
}

Json PointJson(const SolveRecord& record, const CurvePoint& point) {
  return {{"support", Text(mapper::Name(point.support))},
          {"sources", point.sources.size()},
          {"weight_bytes", Bytes(record, point.parameters)},
          {"r2_in_sample", Number(point.judged.in_sample)},
          {"r2_held_out", Number(point.judged.held_out)},
          {"error", Number(point.judged.error)},
          {"lambda", Number(point.lambda.value)}};
}

Json LayerJson(const SolveRecord& record, const SolvedLayer& layer, const Curve* curve) {
  Json points = Json::array();
  if (curve != nullptr) {
    for (const CurvePoint& point : curve->points) points.push_back(PointJson(record, point));
  }
  Json own = Json::array(), cross = Json::array();
  const int32_t layers = record.moments->source.geometry.layers;
  for (int32_t source : layer.point.sources) {
    if (source < layers) {
      own.push_back(source);
    } else {
      cross.push_back(source - layers);
    }
  }
  Json rounding = nullptr;
  if (layer.rounding) {
    rounding = {{"plain", Number(layer.rounding->plain)},
                {"feedback", Number(layer.rounding->feedback)},
                {"used", layer.rounding->feedback_used ? "feedback" : "plain"}};
  }
  return {{"support", Text(mapper::Name(layer.point.support))},
          {"sources", std::move(own)},
          {"cross_sources", std::move(cross)},
          {"lambda", Number(layer.point.lambda.value)},
          {"r2_in_sample", Number(layer.point.judged.in_sample)},
          {"r2_held_out", Number(layer.point.judged.held_out)},
          {"heads",
           {{"r2_in_sample", Numbers(layer.head_in_sample)},
            {"r2_held_out", Numbers(layer.head_held_out)}}},
          {"curve", std::move(points)},
          {"condition", Number(layer.accuracy.condition)},
          {"residual", Number(layer.accuracy.residual)},
          {"escalations", layer.escalations},
          {"rounding", std::move(rounding)}};
}

Json Layers(const SolveRecord& record) {
  Json layers = Json::array();
  for (size_t l = 0; l < record.keys.size(); ++l) {
    const auto curve = [&](size_t c) {
      return record.curves.empty() ? nullptr : &record.curves[2 * l + c];
    };
    layers.push_back({{"key", LayerJson(record, record.keys[l], curve(0))},
                      {"value", LayerJson(record, record.values[l], curve(1))}});
  }
  return layers;
}

// What every curve has at the same support and number of sources.
Json Sweep(const SolveRecord& record) {
  struct Sums {
    double in_sample[2] = {0, 0};
    double held_out[2] = {0, 0};
    int64_t parameters = 0;
    size_t curves = 0;
  };
  std::map<std::pair<mapper::Support, size_t>, Sums> sums;
  for (const Curve& curve : record.curves) {
    const auto c = static_cast<size_t>(curve.component);
    for (const CurvePoint& point : curve.points) {
      Sums& at = sums[{point.support, point.sources.size()}];
      at.in_sample[c] += point.judged.in_sample;
      at.held_out[c] += point.judged.held_out;
      at.parameters += point.parameters;
      ++at.curves;
    }
  }
  Json sweep = Json::array();
  const double layers = static_cast<double>(record.keys.size());
  for (const auto& [point, at] : sums) {
    if (at.curves != record.curves.size()) continue;
    Json entry = {{"support", Text(mapper::Name(point.first))},
                  {"k", point.second},
                  {"weight_bytes", Bytes(record, at.parameters)}};
    for (Component c : kv::kComponents) {
      const auto i = static_cast<size_t>(c);
      entry[std::string(kv::Name(c))] = {{"r2_in_sample", Number(at.in_sample[i] / layers)},
                                         {"r2_held_out", Number(at.held_out[i] / layers)}};
    }
    sweep.push_back(std::move(entry));
  }
  return sweep;
}

// The number of sources, where it is the same everywhere.
Json CommonK(const SolveRecord& record) {
  const size_t k = record.keys.front().point.sources.size();
  for (const auto& layers : {record.keys, record.values}) {
    for (const SolvedLayer& layer : layers) {
      if (layer.point.sources.size() != k) return nullptr;
    }
  }
  return k;
}

double MeanHeldOut(std::span<const SolvedLayer> layers) {
  double sum = 0;
  for (const SolvedLayer& layer : layers) sum += layer.point.judged.held_out;
  return sum / static_cast<double>(layers.size());
}

std::string Reason(const SolveRecord& record) {
  const SolveOptions& o = *record.options;
  const char* judge = record.criterion == Criterion::kHeldOut
                          ? "held-out residual"
                          : "residual by generalised cross-validation (nothing was held out)";
  switch (o.choice) {
    case ChoiceRule::kBest:
      return absl::StrCat("each layer and component has the map of least ", judge);
    case ChoiceRule::kSweep:
      return absl::StrCat("one number of source layers for all, of least mean ", judge);
    case ChoiceRule::kBudget:
      return absl::StrCat(base::HumanBytes(static_cast<uint64_t>(o.budget_bytes)),
                          " spent where they lower the ", judge, " most");
    case ChoiceRule::kFixed:
      break;
  }
  if (o.support == SupportRule::kAuto) {
    return absl::StrCat("the bytes of full-head k = ", o.k, ", spent where they lower the ", judge,
                        " most");
  }
  return absl::StrCat("k = ", o.k, " as asked");
}

Json Chosen(const SolveRecord& record) {
  int64_t parameters = 0;
  for (const auto& layers : {record.keys, record.values}) {
    for (const SolvedLayer& layer : layers) parameters += layer.point.parameters;
  }
  return {
      {"k", CommonK(record)},
      {"weight_bytes", Bytes(record, parameters)},
      {"r2_held_out",
       {{"key", Number(MeanHeldOut(record.keys))}, {"value", Number(MeanHeldOut(record.values))}}},
      {"reason", Reason(record)}};
}

Json Columns(const ColumnAudit& audit) {
  Json list = Json::array();
  for (size_t i = 0; i < std::min(audit.flaws.size(), kMaxFlaws); ++i) {
    const ColumnFlaw& flaw = audit.flaws[i];
    list.push_back({{"component", Text(kv::Name(flaw.component))},
                    {"layer", flaw.layer},
                    {"head", flaw.head},
                    {"dim", flaw.dim},
                    {"flaw", Text(Name(flaw.flaw))}});
  }
  return {{"total", audit.flaws.size()}, {"list", std::move(list)}};
}

}  // namespace

Json ToCalibration(const SolveRecord& record) {
  const MomentGroup& group = record.moments->groups.front();
  const bool merged = record.options->refit;
  return {{"schema", "kvbridge-fit/1"},
          {"layout", Text(Name(record.moments->layout))},
          {"rows",
           {{"fit", group.fit.rows},
            {"held_out", group.held_out.rows},
            {"final", group.fit.rows + (merged ? group.held_out.rows : 0)}}},
          {"moments", record.options->moments_record},
          {"criterion", Text(Name(record.criterion))},
          {"settings", Settings(*record.options)},
          {"choice", Chosen(record)},
          {"probe_scores",
           {{"key", Matrix2((*record.scores)[0])}, {"value", Matrix2((*record.scores)[1])}}},
          {"sweep", Sweep(record)},
          {"layers", Layers(record)},
          {"columns", Columns(*record.audit)}};
}

}  // namespace kvbridge::fit
