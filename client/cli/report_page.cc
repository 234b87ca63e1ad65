#include "client/cli/report_page.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/cli/report_chart.h"
#include "client/cli/report_sections.h"
#include "client/cli/report_style.h"
#include "client/cli/report_svg.h"
#include "core/base/units.h"
#include "core/evidence/summary.h"

namespace kvbridge::cli {
namespace {

using Cells = std::vector<std::string>;

std::string PairTitle(const ArtifactReport& report) {
  return absl::StrCat(Escape(report.source), " <span class=\"to\">→</span> ",
                      Escape(report.target));
}

std::string Body(const ArtifactReport& report) {
  return absl::StrCat(LeadHtml(report), EvidenceHtml(report), ChecksHtml(report), FitHtml(report),
                      SizeHtml(report), ProvenanceHtml(report));
}

const VariantFigures* Mapped(const ArtifactReport& report, const std::string& domain) {
  const auto it = report.domains.find(domain);
  if (it == report.domains.end()) return nullptr;
  const auto variant = it->second.variants.find(evidence::WithTail("mapped", report.native_tail));
  return variant == it->second.variants.end() ? nullptr : &variant->second;
}

std::set<std::string> Domains(const std::vector<ArtifactReport>& reports) {
  std::set<std::string> names;
  for (const ArtifactReport& report : reports) {
    for (const auto& [name, domain] : report.domains) names.insert(name);
  }
  return names;
}

// One row of the comparison: a name, and a cell of each artifact.
template <typename Cell>
Cells Line(const std::string& name, const std::vector<ArtifactReport>& reports, Cell cell) {
  Cells cells = {name};
  for (const ArtifactReport& report : reports) cells.push_back(cell(report));
  return cells;
}

std::string ComparisonTable(const std::vector<ArtifactReport>& reports) {
  const auto number = [](const std::optional<double>& value, int digits) {
    return value ? Fixed(*value, digits) : std::string("–");
  };
  std::vector<Cells> rows;
  const auto add = [&](const std::string& name, auto cell) {
    rows.push_back(Line(name, reports, cell));
  };
  add("verdict", [](const ArtifactReport& r) { return VerdictChip(r.verdict); });
  add("KL, nats", [&](const ArtifactReport& r) {
    return number(r.evidence ? r.evidence->kl_nats : std::nullopt, 3);
  });
  add("gap recovered", [](const ArtifactReport& r) {
    const auto gap = r.evidence ? r.evidence->gap_recovered : std::nullopt;
    return gap ? Percent(*gap) : std::string("–");
  });
  for (const std::string& domain : Domains(reports)) {
    add(absl::StrCat("KL · ", Escape(domain)), [&](const ArtifactReport& r) {
      const VariantFigures* mapped = Mapped(r, domain);
      return mapped == nullptr ? std::string("–") : WithInterval(mapped->kl, 3);
    });
    add(absl::StrCat("gap · ", Escape(domain)), [&](const ArtifactReport& r) {
      const VariantFigures* mapped = Mapped(r, domain);
      return mapped == nullptr ? std::string("–") : WithPercentInterval(mapped->gap);
    });
  }
  add("R² of keys", [&](const ArtifactReport& r) { return number(MeanR2(r.keys), 3); });
  add("R² of values", [&](const ArtifactReport& r) { return number(MeanR2(r.values), 3); });
  add("weights", [](const ArtifactReport& r) { return base::HumanBytes(r.bytes); });
  add("MFLOP per token",
      [](const ArtifactReport& r) { return absl::StrFormat("%.3g", r.flops_per_token / 1e6); });
  Cells header = Line("", reports, [](const ArtifactReport& r) { return Escape(r.name); });
  return HtmlTable(header, rows);
}

// By text: one dot per artifact, in the artifact's colour.
std::string ComparisonByText(const std::vector<ArtifactReport>& reports) {
  std::vector<std::string> figures;
  for (const std::string& domain : Domains(reports)) {
    std::vector<IntervalRow> rows;
    for (size_t i = 0; i < reports.size(); ++i) {
      const VariantFigures* mapped = Mapped(reports[i], domain);
      if (mapped == nullptr || !mapped->kl) continue;
      rows.push_back({reports[i].name.substr(0, 14), *mapped->kl, static_cast<int>(i)});
    }
    if (rows.empty()) continue;
    figures.push_back(
        Figure(absl::StrCat("KL, ", domain), IntervalChart(absl::StrCat("KL, ", domain), rows)));
  }
  return Row(figures);
}

std::string ComparisonByTail(const std::vector<ArtifactReport>& reports) {
  std::vector<Series> kl;
  std::vector<Series> gap;
  for (size_t i = 0; i < reports.size(); ++i) {
    const ArtifactReport& report = reports[i];
    if (!report.evidence || report.evidence->tails.size() < 2) continue;
    kl.push_back({.label = report.name, .colour = static_cast<int>(i)});
    gap.push_back(kl.back());
    for (const artifact::TailPoint& tail : report.evidence->tails) {
      const auto x = static_cast<double>(tail.native_tail);
      kl.back().points.push_back({x, tail.kl_nats});
      if (tail.gap_recovered) gap.back().points.push_back({x, *tail.gap_recovered});
    }
  }
  const std::string x = "prompt tokens that the target reads itself";
  return Row(
      {Figure("KL against native tail, all texts",
              LineChart("KL by tail", kl, {.x = x, .y = "KL, nats", .log_x = true})),
       Figure("Gap recovered against native tail, all texts",
              LineChart("Gap by tail", gap,
                        {.x = x, .y = "gap, %", .log_x = true, .percent = true, .y_max = 1}))});
}

std::string Comparison(const std::vector<ArtifactReport>& reports) {
  std::string out = absl::StrCat("<p class=\"eyebrow\">Mapper report</p><h1>", reports.size(),
                                 " artifacts compared</h1>", ComparisonTable(reports),
                                 ComparisonByText(reports), ComparisonByTail(reports));
  for (const ArtifactReport& report : reports) {
    absl::StrAppend(&out, "<article><h2>", Escape(report.name), "</h2><p>", PairTitle(report),
                    "</p><p>", VerdictChip(report.verdict), "</p><p class=\"hash\">",
                    Escape(report.digest), "</p>", Body(report), "</article>\n");
  }
  return out;
}

std::string Single(const ArtifactReport& report) {
  return absl::StrCat("<p class=\"eyebrow\">Mapper report · ", Escape(report.name), "</p><h1>",
                      PairTitle(report), "</h1><p>", VerdictChip(report.verdict),
                      "</p><p class=\"hash\">", Escape(report.digest), "</p>", Body(report));
}

}  // namespace

std::string ReportPage(const std::vector<ArtifactReport>& reports) {
  const std::string title =
      reports.size() == 1
          ? absl::StrCat(Escape(reports[0].source), " → ", Escape(reports[0].target))
          : absl::StrCat(reports.size(), " artifacts compared");
  return absl::StrCat(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<link rel=\"icon\" href=\"data:,\"><title>",
      title, " · kvbridge</title><style>", kReportStyle, "</style></head>\n<body><main>\n",
      reports.size() == 1 ? Single(reports[0]) : Comparison(reports),
      "<p class=\"foot\">Made by kvbridge report. The page loads nothing and runs no script.</p>"
      "</main></body></html>\n");
}

}  // namespace kvbridge::cli
