#include "core/evidence/summary.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace kvbridge::evidence {
namespace {

using base::Json;
using Column = std::vector<double>;  // one number per sequence

double Mean(const Column& column, std::span<const int32_t> indices) {
  double sum = 0;
  for (const int32_t i : indices) sum += column[i];
  return sum / static_cast<double>(indices.size());
}

Spread SpreadOf(const Column& column, const Bootstrap& bootstrap) {
  Column sorted = column;
  std::sort(sorted.begin(), sorted.end());
  const auto p95 = [&column](std::span<const int32_t> indices) {
    Column drawn;
    for (const int32_t i : indices) drawn.push_back(column[i]);
    std::sort(drawn.begin(), drawn.end());
    return Quantile(drawn, 0.95);
  };
  return {.mean = bootstrap.Mean(column),
          .p95 = bootstrap.Interval(p95),
          .p05 = Quantile(sorted, 0.05),
          .p50 = Quantile(sorted, 0.5),
          .max = sorted.back()};
}

// (from - value) / (from - to) of the means; none unless from > to in every draw.
std::optional<Estimate> Share(const Column& from, const Column& value, const Column& to,
                              const Bootstrap& bootstrap) {
  bool defined = true;
  const Estimate share = bootstrap.Interval([&](std::span<const int32_t> indices) {
    const double whole = Mean(from, indices) - Mean(to, indices);
    if (!(whole > 0)) {
      defined = false;
      return 0.0;
    }
    return (Mean(from, indices) - Mean(value, indices)) / whole;
  });
  if (!defined) return std::nullopt;
  return share;
}

// The columns of one variant.
struct Columns {
  Column kl;  // empty where vocabularies differ
  Column top1;
  Column nll;
};

std::map<std::string, Columns> Collect(const std::vector<const SequenceScores*>& sequences) {
  std::map<std::string, Columns> table;
  for (const auto& [name, unused] : sequences.front()->variants) {
    Columns columns;
    for (const SequenceScores* sequence : sequences) {
      const auto it = sequence->variants.find(name);
      if (it == sequence->variants.end()) break;
      columns.nll.push_back(it->second.nll);
      if (!it->second.kl || !it->second.top1) continue;
      columns.kl.push_back(*it->second.kl);
      columns.top1.push_back(*it->second.top1);
    }
    if (columns.nll.size() != sequences.size()) continue;
    if (columns.kl.size() != sequences.size()) columns.kl.clear();
    table.emplace(name, std::move(columns));
  }
  return table;
}

const Columns* Find(const std::map<std::string, Columns>& table, const std::string& name) {
  const auto it = table.find(name);
  return it == table.end() ? nullptr : &it->second;
}

VariantSummary SummarizeVariant(const std::string& name,
                                const std::map<std::string, Columns>& table,
                                const Bootstrap& bootstrap) {
  const Columns& columns = table.at(name);
  const Columns& own = table.at("own");
  VariantSummary out{.nll = bootstrap.Mean(columns.nll)};
  if (!columns.kl.empty()) {
    out.kl = SpreadOf(columns.kl, bootstrap);
    out.top1 = bootstrap.Mean(columns.top1);
  }
  if (const Columns* source = Find(table, "source")) {
    out.gap = Share(source->nll, columns.nll, own.nll, bootstrap);
  }
  const int64_t tail = NativeTail(name);
  if (const Columns* none = Find(table, WithTail("none", tail))) {
    out.context = Share(none->nll, columns.nll, own.nll, bootstrap);
  }
  if (!absl::StartsWith(name, "mapped") || columns.kl.empty()) return out;
  for (const std::string control : {"none", "raw", "random"}) {
    const Columns* other = Find(table, WithTail(control, tail));
    if (other == nullptr || other->kl.empty()) continue;
    const Column nothing(columns.kl.size(), 0.0);
    if (auto nearer = Share(other->kl, columns.kl, nothing, bootstrap)) {
      out.nearer_than[control] = *nearer;
    }
  }
  return out;
}

LayerSummary SummarizeLayers(const std::string& variant,
                             const std::vector<const SequenceScores*>& sequences) {
  std::vector<const std::vector<double>*> rows;
  for (const SequenceScores* sequence : sequences) {
    const auto it = sequence->layer_cosine.find(variant);
    if (it == sequence->layer_cosine.end() || it->second.empty()) continue;
    if (rows.empty() || rows.front()->size() == it->second.size()) rows.push_back(&it->second);
  }
  LayerSummary out{.sequences = static_cast<int64_t>(rows.size())};
  if (rows.empty()) return out;
  const Bootstrap bootstrap(out.sequences);
  for (size_t layer = 0; layer < rows.front()->size(); ++layer) {
    Column column;
    for (const auto* row : rows) column.push_back((*row)[layer]);
    const Estimate cosine = bootstrap.Mean(column);
    if (out.cosine.empty() || cosine.value < out.worst_cosine.value) {
      out.worst = static_cast<int32_t>(layer);
      out.worst_cosine = cosine;
    }
    out.cosine.push_back(cosine.value);
  }
  return out;
}

// "mapped.tail17", ".tail" -> 17; 1 where the name does not state it.
int64_t Stated(absl::string_view variant, absl::string_view what) {
  const size_t at = variant.find(what);
  if (at == absl::string_view::npos) return 1;
  const absl::string_view rest = variant.substr(at + what.size());
  int64_t number = 1;
  return absl::SimpleAtoi(rest.substr(0, rest.find('.')), &number) ? number : 1;
}

Json ToJson(const VariantSummary& variant) {
  Json json = {{"nll", ToJson(variant.nll)}};
  if (variant.kl) {
    json["kl"] = {{"mean", ToJson(variant.kl->mean)},
                  {"p95", ToJson(variant.kl->p95)},
                  {"p05", variant.kl->p05},
                  {"p50", variant.kl->p50},
                  {"max", variant.kl->max}};
  }
  if (variant.top1) json["top1"] = ToJson(*variant.top1);
  if (variant.gap) json["gap"] = ToJson(*variant.gap);
  if (variant.context) json["context"] = ToJson(*variant.context);
  for (const auto& [control, nearer] : variant.nearer_than) {
    json["nearer_than"][control] = ToJson(nearer);
  }
  return json;
}

Json ToJson(const LayerSummary& layers) {
  return {{"sequences", layers.sequences},
          {"cosine", layers.cosine},
          {"worst_layer", layers.worst},
          {"worst_cosine", ToJson(layers.worst_cosine)}};
}

}  // namespace

std::string WithTail(absl::string_view variant, int64_t native_tail) {
  return native_tail <= 1 ? std::string(variant) : absl::StrCat(variant, ".tail", native_tail);
}

int64_t NativeTail(absl::string_view variant) { return Stated(variant, ".tail"); }
int64_t Hops(absl::string_view variant) { return Stated(variant, ".hops"); }

DomainSummary SummarizeSequences(const std::vector<const SequenceScores*>& sequences) {
  DomainSummary out{.sequences = static_cast<int64_t>(sequences.size())};
  const Bootstrap bootstrap(out.sequences);
  const std::map<std::string, Columns> table = Collect(sequences);
  for (const SequenceScores* sequence : sequences) out.tokens += sequence->tokens;
  if (const Columns* source = Find(table, "source")) {
    Column excess = source->nll;
    for (size_t i = 0; i < excess.size(); ++i) excess[i] -= table.at("own").nll[i];
    out.source_excess = bootstrap.Mean(excess);
  }
  for (const auto& [name, columns] : table) {
    out.variants[name] = SummarizeVariant(name, table, bootstrap);
  }
  for (const SequenceScores* sequence : sequences) {
    for (const auto& [name, cosine] : sequence->layer_cosine) {
      if (!cosine.empty() && out.layers.count(name) == 0) {
        out.layers[name] = SummarizeLayers(name, sequences);
      }
    }
  }
  return out;
}

RunSummary Summarize(const EvidenceRun& run) {
  std::map<std::string, std::map<int64_t, std::vector<const SequenceScores*>>> groups;
  for (const SequenceScores& sequence : run.sequences) {
    groups[sequence.domain][sequence.prefix_tokens].push_back(&sequence);
  }
  RunSummary out;
  for (const auto& [domain, lengths] : groups) {
    for (const auto& [prefix, sequences] : lengths) {
      DomainSummary summary = SummarizeSequences(sequences);
      if (prefix == run.prefix_tokens) out.domains[domain] = summary;
      out.lengths[domain][prefix] = std::move(summary);
    }
  }
  return out;
}

Json ToJson(const Estimate& estimate) {
  return {{"value", estimate.value}, {"low", estimate.low}, {"high", estimate.high}};
}

Json ToJson(const DomainSummary& summary) {
  Json json = {{"sequences", summary.sequences}, {"tokens", summary.tokens}};
  if (summary.source_excess) json["source_excess"] = ToJson(*summary.source_excess);
  json["variants"] = Json::object();
  for (const auto& [name, variant] : summary.variants) json["variants"][name] = ToJson(variant);
  json["layers"] = Json::object();
  for (const auto& [name, layers] : summary.layers) json["layers"][name] = ToJson(layers);
  return json;
}

}  // namespace kvbridge::evidence
