#include "client/cli/report_sections.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

#include "client/cli/plane_name.h"
#include "client/cli/report_chart.h"
#include "client/cli/report_svg.h"
#include "core/base/units.h"
#include "core/evidence/summary.h"

namespace kvbridge::cli {
namespace {

using evidence::Estimate;
using evidence::WithTail;

constexpr char kDash[] = "–";

std::string Tile(absl::string_view name, const std::string& value, const std::string& note) {
  return absl::StrCat("<div class=\"tile\"><span class=\"name\">", Escape(name),
                      "</span><span class=\"big\">", value, "</span><span class=\"note\">", note,
                      "</span></div>");
}

std::string Optional(const std::optional<double>& value, int digits) {
  return value ? Fixed(*value, digits) : kDash;
}

// "1.07 G".
std::string Scaled(double value) {
  for (const auto& [unit, size] : {std::pair("T", 1e12), {"G", 1e9}, {"M", 1e6}, {"k", 1e3}}) {
    if (value >= size) return absl::StrCat(absl::StrFormat("%.3g", value / size), " ", unit);
  }
  return absl::StrFormat("%.3g ", value);
}

const VariantFigures* Find(const DomainFigures& domain, const std::string& variant) {
  const auto it = domain.variants.find(variant);
  return it == domain.variants.end() ? nullptr : &it->second;
}

int64_t Sequences(const ArtifactReport& report) {
  int64_t sequences = 0;
  for (const auto& [name, domain] : report.domains) sequences += domain.sequences;
  return sequences;
}

// KL of what was mapped and of its controls, with the verdict's native tail.
std::string ControlsChart(const std::string& name, const DomainFigures& domain, int64_t tail) {
  struct Wanted {
    std::string variant;
    std::string label;
    int colour;
    bool sets_scale;
  };
  std::vector<IntervalRow> rows;
  for (const Wanted& wanted : {Wanted{"identity", "own cache", -1, true},
                               {WithTail("mapped", tail), "mapped", 0, true},
                               {"mapped.hops3", "3 handoffs", 0, true},
                               {WithTail("none", tail), "no prefix", -1, true},
                               {WithTail("raw", tail), "raw cache", -1, true},
                               {"source", "source alone", -1, false},
                               {WithTail("random", tail), "random map", -1, false}}) {
    const VariantFigures* figures = Find(domain, wanted.variant);
    if (figures == nullptr || !figures->kl) continue;
    rows.push_back({wanted.label, *figures->kl, wanted.colour, wanted.sets_scale});
  }
  return rows.empty() ? "" : IntervalChart(absl::StrCat("KL by variant, ", name), rows);
}

std::string VariantsTable(const DomainFigures& domain) {
  std::vector<std::vector<std::string>> rows;
  for (const auto& [name, v] : domain.variants) {
    const bool shown = v.kl && name != "own";
    rows.push_back({Escape(VariantText(name)), shown ? WithInterval(v.kl, 3) : kDash,
                    shown ? Optional(v.kl_p50, 3) : kDash, shown ? Optional(v.kl_p95, 3) : kDash,
                    shown ? Optional(v.kl_max, 3) : kDash, WithPercentInterval(v.top1),
                    v.nll ? Fixed(v.nll->value, 3) : kDash,
                    v.nll ? Fixed(std::exp(v.nll->value), 1) : kDash, WithPercentInterval(v.gap),
                    WithPercentInterval(v.context)});
  }
  return HtmlTable({"variant", "KL, nats", "p50", "p95", "max", "top-1", "NLL", "perplexity",
                    "gap recovered", "prefix’s worth kept"},
                   rows);
}

// One line per text: `figure` of the variants "mapped", "mapped.tail17", ...
using Pick = std::optional<Estimate> VariantFigures::*;
std::vector<Series> ByTail(const ArtifactReport& report, Pick pick) {
  std::vector<Series> out;
  for (const auto& [name, domain] : report.domains) {
    Series line{.label = name, .colour = static_cast<int>(out.size())};
    std::map<int64_t, Estimate> points;
    for (const auto& [variant, figures] : domain.variants) {
      const int64_t tail = evidence::NativeTail(variant);
      if (variant == WithTail("mapped", tail) && figures.*pick) points[tail] = *(figures.*pick);
    }
    for (const auto& [tail, e] : points) {
      line.points.push_back({static_cast<double>(tail), e.value, std::pair(e.low, e.high)});
    }
    out.push_back(std::move(line));
  }
  return out;
}

std::vector<Series> ByLength(const ArtifactReport& report, Pick pick) {
  std::vector<Series> out;
  for (const auto& [name, domain] : report.domains) {
    Series line{.label = name, .colour = static_cast<int>(out.size())};
    for (const auto& [prefix, figures] : domain.lengths) {
      if (!(figures.*pick)) continue;
      const Estimate& e = *(figures.*pick);
      line.points.push_back({static_cast<double>(prefix), e.value, std::pair(e.low, e.high)});
    }
    out.push_back(std::move(line));
  }
  return out;
}

bool SeveralPoints(const std::vector<Series>& series) {
  return std::any_of(series.begin(), series.end(),
                     [](const Series& line) { return line.points.size() > 1; });
}

std::string Curve(absl::string_view caption, const std::string& title,
                  const std::vector<Series>& series, const Axes& axes) {
  return SeveralPoints(series) ? Figure(caption, LineChart(title, series, axes)) : "";
}

std::string CosineChart(const ArtifactReport& report) {
  std::vector<Series> series;
  for (const auto& [name, domain] : report.domains) {
    Series line{.label = name, .colour = static_cast<int>(series.size())};
    const auto it = domain.cosine.find("mapped");
    if (it != domain.cosine.end()) {
      for (size_t layer = 0; layer < it->second.size(); ++layer) {
        line.points.push_back({static_cast<double>(layer), it->second[layer]});
      }
    }
    series.push_back(std::move(line));
  }
  return LineChart("Cosine of attention outputs by layer", series,
                   {.x = "target layer", .y = "cosine", .from_zero = false, .y_max = 1});
}

// Held-out against in-sample R² of K or V, along the source layers used everywhere.
std::string SweepChart(const std::string& title, const std::vector<SweepPoint>& sweep,
                       FitScore SweepPoint::*component) {
  std::map<std::string, std::pair<Series, Series>> lines;  // by support: held out, in sample
  for (const SweepPoint& point : sweep) {
    const bool local = point.support == "head_local";
    auto& [held_out, in_sample] = lines[point.support];
    held_out.label = local ? "head-local" : "full";
    in_sample.label = "in-sample";
    held_out.colour = in_sample.colour = local ? 1 : 0;
    in_sample.dashed = true;
    const FitScore& score = point.*component;
    if (score.held_out) held_out.points.push_back({point.k, *score.held_out});
    if (score.in_sample) in_sample.points.push_back({point.k, *score.in_sample});
  }
  std::vector<Series> series;
  for (auto& [support, pair] : lines) {
    series.push_back(std::move(pair.first));
    series.push_back(std::move(pair.second));
  }
  return LineChart(
      title, series,
      {.x = "source layers per target layer", .y = "R²", .from_zero = false, .y_max = 1});
}

std::string LayerChart(const std::string& title, const std::vector<LayerFit>& layers) {
  Series held_out{.label = "held-out"};
  Series in_sample{.label = "in-sample", .dashed = true};
  for (size_t l = 0; l < layers.size(); ++l) {
    const auto x = static_cast<double>(l);
    if (layers[l].r2.held_out) held_out.points.push_back({x, *layers[l].r2.held_out});
    if (layers[l].r2.in_sample) in_sample.points.push_back({x, *layers[l].r2.in_sample});
  }
  return LineChart(title, {held_out, in_sample}, {.x = "target layer", .y = "R²", .y_max = 1});
}

// Source layers of the same component side by side, then, where a map reads any, those of the
// other.
std::vector<std::string> ColumnNames(int columns, int32_t source_layers, kv::Component own) {
  std::vector<std::string> names;
  const bool own_is_key = own == kv::Component::kKey;
  const kv::Component other = own_is_key ? kv::Component::kValue : kv::Component::kKey;
  for (int32_t c = 0; c < columns; ++c) {
    names.push_back(c < source_layers ? PlaneName({c, own}, own)
                                      : PlaneName({c - source_layers, other}, own));
  }
  return names;
}

// Probe scores with what was chosen marked; without scores, what was chosen alone.
std::string SelectionMap(const std::string& title, kv::Component own, const Matrix& probe,
                         const std::vector<LayerFit>& layers, int32_t source_layers) {
  HeatMapOptions options{.rows = "target layer", .columns = "source layer"};
  const bool scored = probe.size() == layers.size() && !probe.empty();
  size_t columns = scored ? probe[0].size() : 0;
  for (size_t l = 0; l < layers.size(); ++l) {
    for (size_t i = 0; i < layers[l].sources.size(); ++i) {
      const mapper::SourcePlane& source = layers[l].sources[i];
      const int32_t column = source.layer + (source.component == own ? 0 : source_layers);
      options.marks[{static_cast<int>(l), column}] = static_cast<int>(i);
      columns =
          std::max<size_t>(columns, source.component == own ? source_layers : 2 * source_layers);
    }
  }
  Matrix values = scored ? probe : Matrix(layers.size());
  for (auto& row : values) row.resize(columns, scored ? std::nullopt : std::optional(0.0));
  if (!scored) {
    for (const auto& [cell, rank] : options.marks) values[cell.first][cell.second] = 1.0;
  }
  options.column_names = ColumnNames(static_cast<int>(columns), source_layers, own);
  return HeatMap(title, values, options);
}

std::string HeadMap(const std::string& title, const std::vector<LayerFit>& layers) {
  Matrix values;
  for (const LayerFit& layer : layers) values.push_back(layer.heads);
  return HeatMap(title, values, {.rows = "target layer", .columns = "target head"});
}

std::string WorstLayers(const ArtifactReport& report) {
  struct Entry {
    kv::Component component;
    size_t layer;
    const LayerFit* fit;
  };
  std::vector<Entry> entries;
  for (const auto& [component, layers] : {std::pair(kv::Component::kKey, &report.keys),
                                          std::pair(kv::Component::kValue, &report.values)}) {
    for (size_t l = 0; l < layers->size(); ++l) {
      if ((*layers)[l].r2.held_out) entries.push_back({component, l, &(*layers)[l]});
    }
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return *a.fit->r2.held_out < *b.fit->r2.held_out;
  });
  if (entries.size() > 6) entries.resize(6);
  std::vector<std::vector<std::string>> rows;
  for (const Entry& entry : entries) {
    std::vector<std::string> planes;
    for (const auto& plane : entry.fit->sources)
      planes.push_back(PlaneName(plane, entry.component));
    std::vector<std::string> row = {
        absl::StrCat(entry.component == kv::Component::kKey ? "K" : "V", " of layer ", entry.layer),
        Optional(entry.fit->r2.held_out, 3), Optional(entry.fit->r2.in_sample, 3),
        Escape(absl::StrReplaceAll(entry.fit->support, {{"_", "-"}})), absl::StrJoin(planes, ", ")};
    rows.push_back(std::move(row));
  }
  if (rows.empty()) return "";
  return absl::StrCat(
      "<h4>Worst layers</h4>",
      HtmlTable({"", "R² held-out", "in-sample", "support", "source layers"}, rows));
}

void AddNew(const std::string& name, std::vector<std::string>* names) {
  if (std::find(names->begin(), names->end(), name) == names->end()) names->push_back(name);
}

// A rule of a gate file in words; its name where it is a new one.
std::string RuleText(const std::string& rule) {
  constexpr std::pair<absl::string_view, absl::string_view> kTexts[] = {
      {"domain", "text"},
      {"sequences", "sequences"},
      {"identity_kl_max", "own cache fed again, KL"},
      {"mapped", "mapped"},
      {"kl_mean_max", "KL, mean"},
      {"kl_p95_max", "KL, 95th percentile"},
      {"top1_min", "top-1 agreement"},
      {"gap_min", "gap recovered"},
      {"context_min", "prefix’s worth kept"},
      {"worst_layer_cosine_min", "worst layer’s cosine"},
      {"nearer_than.none", "KL saved against no prefix"},
      {"nearer_than.raw", "KL saved against raw cache"},
      {"nearer_than.random", "KL saved against random map"}};
  for (const auto& [name, text] : kTexts) {
    if (rule == name) return std::string(text);
  }
  return rule;
}

// "✓ 0.386 ≤ 1".
std::string CheckCell(const CheckFigures& check) {
  const bool held = check.outcome == "held";
  const bool broken = check.outcome == "broken";
  const int digits = check.rule == "sequences" ? 0 : 3;
  const std::string bound = check.bound
                                ? absl::StrCat(absl::EndsWith(check.rule, "_max") ? "≤ " : "≥ ",
                                               absl::StrFormat("%g", *check.bound))
                                : "";
  return absl::StrCat("<b class=\"",
                      held     ? "held\">✓"
                      : broken ? "broken\">✕"
                               : "open\">?",
                      "</b> ", check.measured ? Fixed(check.measured->value, digits) : kDash,
                      " <i>", bound, "</i>");
}

}  // namespace

std::string Figure(absl::string_view caption, const std::string& drawing) {
  if (drawing.empty()) return "";
  return absl::StrCat("<figure><figcaption>", Escape(caption), "</figcaption>", drawing,
                      "</figure>");
}

std::string Row(const std::vector<std::string>& figures) {
  const auto there = std::count_if(figures.begin(), figures.end(),
                                   [](const std::string& figure) { return !figure.empty(); });
  if (there == 0) return "";
  // Two and four fill rows of two, others rows of three.
  return absl::StrCat("<div class=\"row", there == 2 || there == 4 ? " two" : "", "\">",
                      absl::StrJoin(figures, ""), "</div>\n");
}

std::string HtmlTable(const std::vector<std::string>& header,
                      const std::vector<std::vector<std::string>>& rows, bool all_text) {
  const auto line = [](const std::vector<std::string>& cells, const char* tag) {
    std::string out = "<tr>";
    for (const std::string& cell : cells) {
      absl::StrAppend(&out, "<", tag, ">", cell, "</", tag, ">");
    }
    return out + "</tr>";
  };
  std::string body;
  for (const auto& row : rows) absl::StrAppend(&body, line(row, "td"), "\n");
  return absl::StrCat("<div class=\"scroll\" tabindex=\"0\"><table",
                      all_text ? " class=\"text\"" : "", "><thead>", line(header, "th"),
                      "</thead><tbody>", body, "</tbody></table></div>\n");
}

std::string VerdictChip(artifact::Verdict verdict) {
  constexpr absl::string_view kKinds[] = {"open", "held", "broken"};
  constexpr absl::string_view kGlyphs[] = {"?", "✓", "✕"};
  const int i = static_cast<int>(verdict);
  return absl::StrCat("<span class=\"chip ", kKinds[i], "\"><b>", kGlyphs[i], "</b> ",
                      std::string(artifact::Name(verdict)), "</span>");
}

std::string WithInterval(const std::optional<Estimate>& estimate, int digits) {
  if (!estimate) return kDash;
  return absl::StrCat(Fixed(estimate->value, digits), " <i>[", Fixed(estimate->low, digits), ", ",
                      Fixed(estimate->high, digits), "]</i>");
}

std::string WithPercentInterval(const std::optional<Estimate>& estimate) {
  if (!estimate) return kDash;
  return absl::StrCat(Percent(estimate->value), " <i>[", Fixed(estimate->low * 100, 1), ", ",
                      Fixed(estimate->high * 100, 1), "]</i>");
}

std::string VariantText(absl::string_view variant) {
  const std::string base(variant.substr(0, variant.find('.')));
  constexpr std::pair<absl::string_view, absl::string_view> kNames[] = {
      {"own", "own cache"},        {"identity", "own cache, fed again"},
      {"raw", "raw source cache"}, {"random", "random map"},
      {"none", "no prefix"},       {"source", "source alone"}};
  std::string text = base;
  for (const auto& [name, words] : kNames) {
    if (base == name) text = std::string(words);
  }
  if (absl::StrContains(variant, ".tail")) {
    absl::StrAppend(&text, ", tail ", evidence::NativeTail(variant));
  }
  if (absl::StrContains(variant, ".hops")) {
    absl::StrAppend(&text, ", ", evidence::Hops(variant), " handoffs");
  }
  return text;
}

std::optional<double> MeanR2(const std::vector<LayerFit>& layers) {
  double sum = 0;
  for (const LayerFit& layer : layers) {
    const auto& score = layer.r2.held_out ? layer.r2.held_out : layer.r2.in_sample;
    if (!score) return std::nullopt;
    sum += *score;
  }
  return layers.empty() ? std::nullopt : std::optional(sum / static_cast<double>(layers.size()));
}

std::string LeadHtml(const ArtifactReport& report) {
  std::string lead;
  std::string tiles;
  if (!report.evidence || !report.evidence->kl_nats) {
    lead =
        "No measurement on held-out text is recorded: nothing says what this artifact is worth, "
        "and no route applies it past its shadow stage.";
  } else {
    lead = absl::StrCat("Over ", Sequences(report),
                        " held-out sequences the target, going on from a mapped cache, "
                        "is ",
                        Fixed(*report.evidence->kl_nats, 3),
                        " nats per token from what it says on its own");
    const auto& gap = report.evidence->gap_recovered;
    if (gap)
      absl::StrAppend(&lead, "; ", Percent(*gap),
                      " of what it knows better than the source is kept");
    absl::StrAppend(&lead, ". The target reads the last ",
                    report.native_tail == 1 ? "token" : absl::StrCat(report.native_tail, " tokens"),
                    " of each prompt itself.");
    tiles = absl::StrCat(
        Tile("KL to its own cache", Fixed(*report.evidence->kl_nats, 3), "nats per token"),
        gap ? Tile("gap recovered", Percent(*gap), "from source to target") : "");
  }
  const auto key = MeanR2(report.keys);
  const auto value = MeanR2(report.values);
  if (key && value) {
    absl::StrAppend(&tiles,
                    Tile("R², K and V", absl::StrCat(Fixed(*key, 2), " · ", Fixed(*value, 2)),
                         "mean over layers"));
  }
  absl::StrAppend(
      &tiles, Tile("weights", base::HumanBytes(report.bytes), Escape(report.dtype)),
      Tile("per token", absl::StrCat(Scaled(report.flops_per_token), "FLOP"), "to map"));
  return absl::StrCat("<p class=\"lead\">", lead, "</p><div class=\"tiles\">", tiles, "</div>\n");
}

std::string EvidenceHtml(const ArtifactReport& report) {
  if (report.domains.empty()) return "";
  std::vector<std::string> controls;
  std::string tables;
  for (const auto& [name, domain] : report.domains) {
    const std::string caption = absl::StrCat(name, ", ", domain.sequences, " sequences");
    controls.push_back(Figure(caption, ControlsChart(name, domain, report.native_tail)));
    absl::StrAppend(&tables, "<details><summary>All figures: ", Escape(caption), "</summary>",
                    VariantsTable(domain), "</details>\n");
  }
  return absl::StrCat(
      "<h3>Evidence</h3><p>KL of the next token, in nats, from the target on its own cache, with "
      "95 % "
      "bootstrap intervals over sequences. An arrow points beyond the axis.</p>",
      Row(controls),
      Row({Curve(
               "KL against native tail", "KL against native tail",
               ByTail(report, &VariantFigures::kl),
               {.x = "prompt tokens that the target reads itself", .y = "KL, nats", .log_x = true}),
           Curve("Gap recovered against native tail", "Gap against native tail",
                 ByTail(report, &VariantFigures::gap),
                 {.x = "prompt tokens that the target reads itself",
                  .y = "gap, %",
                  .log_x = true,
                  .percent = true,
                  .y_max = 1}),
           Curve("KL saved against no prefix, by native tail", "KL saved against no prefix",
                 ByTail(report, &VariantFigures::nearer_than_none),
                 {.x = "prompt tokens that the target reads itself",
                  .y = "KL saved, %",
                  .log_x = true,
                  .percent = true,
                  .y_max = 1}),
           Curve("KL against length of the prefix", "KL against prefix",
                 ByLength(report, &VariantFigures::kl),
                 {.x = "mapped tokens", .y = "KL, nats", .log_x = true}),
           Figure("Attention outputs, cosine with own", CosineChart(report))}),
      tables);
}

std::string ChecksHtml(const ArtifactReport& report) {
  if (report.checks.empty()) return "";
  std::vector<std::string> domains;
  std::vector<std::string> rules;
  std::map<std::pair<std::string, std::string>, const CheckFigures*> checks;
  std::string notes;
  for (const CheckFigures& check : report.checks) {
    AddNew(check.domain, &domains);
    AddNew(check.rule, &rules);
    checks[{check.rule, check.domain}] = &check;
    if (check.why.empty()) continue;
    absl::StrAppend(&notes, "<li>", Escape(check.domain), ", ", Escape(RuleText(check.rule)), ": ",
                    Escape(check.why), "</li>");
  }
  std::vector<std::string> header = {"rule"};
  for (const std::string& domain : domains) header.push_back(Escape(domain));
  std::vector<std::vector<std::string>> rows;
  for (const std::string& rule : rules) {
    rows.push_back({Escape(RuleText(rule))});
    for (const std::string& domain : domains) {
      const auto it = checks.find({rule, domain});
      rows.back().push_back(it == checks.end() ? "" : CheckCell(*it->second));
    }
  }
  return absl::StrCat(
      "<h3>Gate</h3><p>Bounds that were set before the run. One is held (<b class=\"held\">✓</b>) "
      "when the whole 95 % interval keeps it, broken (<b class=\"broken\">✕</b>) when none of it "
      "does, open (<b class=\"open\">?</b>) otherwise.</p>",
      HtmlTable(header, rows, true), notes.empty() ? "" : absl::StrCat("<ul>", notes, "</ul>"));
}

std::string FitHtml(const ArtifactReport& report) {
  const auto swept = [&report](const char* caption, FitScore SweepPoint::*component) {
    return report.sweep.size() < 2 ? ""
                                   : Figure(caption, SweepChart(caption, report.sweep, component));
  };
  const std::string choice =
      report.choice.empty() ? "" : absl::StrCat("<p>Choice: ", Escape(report.choice), ".</p>");
  const std::string heads =
      Row({Figure("Keys: R² by head", HeadMap("R² of keys by layer and head", report.keys)),
           Figure("Values: R² by head", HeadMap("R² of values by layer and head", report.values))});
  return absl::StrCat(
      "<h3>Fit</h3>", choice,
      Row({swept("Keys: R² by source layers", &SweepPoint::key),
           swept("Values: R² by source layers", &SweepPoint::value),
           Figure("Keys: R² by layer", LayerChart("R² of keys by layer", report.keys)),
           Figure("Values: R² by layer", LayerChart("R² of values by layer", report.values))}),
      "<h4>Which source layers feed which</h4><p>Marked cells were chosen; shade is how well the "
      "source layer alone predicts the target layer (R²), where that was recorded.</p>",
      Row({Figure("Keys", SelectionMap("Source layers of keys", kv::Component::kKey,
                                       report.key_probe, report.keys, report.source_layers)),
           Figure("Values",
                  SelectionMap("Source layers of values", kv::Component::kValue, report.value_probe,
                               report.values, report.source_layers))}),
      heads.empty() ? "" : absl::StrCat("<h4>By head</h4>", heads), WorstLayers(report));
}

std::string SizeHtml(const ArtifactReport& report) {
  const auto amount = [](double value) { return absl::StrCat(Scaled(value)); };
  return absl::StrCat(
      "<h3>Size and speed</h3>",
      HtmlTable({"", "all", "per token"},
                {{"weights and biases",
                  absl::StrCat(base::HumanBytes(report.bytes), ", ", Escape(report.dtype)), kDash},
                 {"parameters", amount(static_cast<double>(report.parameters)), kDash},
                 {"arithmetic of the map", kDash, amount(report.flops_per_token) + "FLOP"},
                 {"cache that comes in", kDash,
                  base::HumanBytes(static_cast<uint64_t>(report.bytes_in_per_token))},
                 {"cache that goes out", kDash,
                  base::HumanBytes(static_cast<uint64_t>(report.bytes_out_per_token))}}),
      "<p class=\"small\">Sizes are exact. What a transfer takes on a machine, <code>kvbridge "
      "plan</code> "
      "says from that machine’s measured rates.</p>");
}

std::string ProvenanceHtml(const ArtifactReport& report) {
  std::string list;
  for (const auto& [name, text] : report.provenance) {
    if (text.empty()) continue;
    absl::StrAppend(&list, "<dt>", Escape(name), "</dt><dd>", Escape(text), "</dd>\n");
  }
  return absl::StrCat("<h3>Provenance</h3><dl>", list, "</dl>\n");
}

}  // namespace kvbridge::cli
