#include "client/cli/bench_report.h"

#include <algorithm>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "client/cli/table.h"
#include "core/base/file.h"
#include "core/base/nearest_rank.h"
#include "core/base/status_macros.h"
#include "core/base/units.h"

namespace kvbridge::cli {
namespace {

constexpr char kSchema[] = "kvbridge.bench/v1";

std::string ProcessorName() {
  const auto info = base::ReadFile("/proc/cpuinfo", base::kMiB);
  if (!info.ok()) return "";
  for (const absl::string_view line : absl::StrSplit(*info, '\n')) {
    if (!absl::StartsWith(line, "model name")) continue;
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    return std::string(absl::StripAsciiWhitespace(field.second));
  }
  return "";
}

base::Json ToJson(const BenchRow& row) {
  return {{"tokens", row.tokens},
          {"applied", row.applied},
          {"fallbacks", row.fallbacks},
          {"bytes", row.bytes},
          {"p50_seconds", row.p50},
          {"p90_seconds", row.p90},
          {"p99_seconds", row.p99},
          {"bytes_per_second", row.bytes_per_second()},
          {"tokens_per_second", row.tokens_per_second()},
          {"stage_p50_seconds", row.stages_p50}};
}

base::Json ToJson(const BenchComparison& comparison) {
  base::Json ratios = base::Json::array();
  for (const BenchRatio& ratio : comparison.ratios) {
    ratios.push_back({{"tokens", ratio.tokens},
                      {"p50_ratio", ratio.p50},
                      {"p99_ratio", ratio.p99},
                      {"slower", ratio.slower}});
  }
  return {{"file", comparison.file},
          {"tolerance", comparison.tolerance},
          {"slower", comparison.slower()},
          {"differences", comparison.differences},
          {"rows", ratios}};
}

absl::StatusOr<BenchRow> ParseRow(const base::Json& json, const std::string& path) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  BenchRow row;
  KVB_ASSIGN_OR_RETURN(row.tokens, base::GetInt(json, "tokens", path, 1, kMost));
  KVB_ASSIGN_OR_RETURN(row.applied, base::GetInt(json, "applied", path, 0, kMost));
  KVB_ASSIGN_OR_RETURN(row.p50, base::GetFinite(json, "p50_seconds", path));
  KVB_ASSIGN_OR_RETURN(row.p99, base::GetFinite(json, "p99_seconds", path));
  if (row.applied > 0 && (row.p50 <= 0 || row.p99 <= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ".p50_seconds: expected more than 0, got ", std::min(row.p50, row.p99)));
  }
  return row;
}

std::string Milliseconds(double seconds) {
  return seconds == 0 ? "-" : absl::StrFormat("%.2f", seconds * 1e3);
}

std::string FallbackText(const BenchRow& row) {
  return OrDash(absl::StrJoin(row.fallbacks, ", ", absl::PairFormatter(" ")));
}

double Percentile(std::vector<double> values, double share) {
  return base::NearestRank(std::move(values), share).value_or(0);
}

}  // namespace

double BenchRow::bytes_per_second() const {
  return p50 == 0 ? 0 : static_cast<double>(bytes) / p50;
}
double BenchRow::tokens_per_second() const {
  return p50 == 0 ? 0 : static_cast<double>(tokens) / p50;
}

BenchRow Summarize(int64_t tokens, const std::vector<TransferReport>& reports) {
  BenchRow row{.tokens = tokens};
  std::vector<double> seconds;
  std::map<std::string, std::vector<double>> stages;
  for (const TransferReport& report : reports) {
    if (!report.applied()) {
      ++row.fallbacks[report.reason];
      continue;
    }
    ++row.applied;
    row.bytes = report.bytes_in + report.bytes_out;
    seconds.push_back(report.seconds);
    for (const auto& [stage, time] : report.stage_seconds) stages[stage].push_back(time);
  }
  row.p50 = Percentile(seconds, 0.5);
  row.p90 = Percentile(seconds, 0.9);
  row.p99 = Percentile(seconds, 0.99);
  for (auto& [stage, times] : stages) row.stages_p50[stage] = Percentile(std::move(times), 0.5);
  return row;
}

bool BenchComparison::slower() const {
  return std::any_of(ratios.begin(), ratios.end(), [](const BenchRatio& r) { return r.slower; });
}

absl::StatusOr<BenchComparison> Compare(const BenchReport& now, const BenchReport& baseline,
                                        const std::string& file, double tolerance) {
  BenchComparison comparison{.file = file, .tolerance = tolerance};
  for (const BenchRow& row : now.rows) {
    for (const BenchRow& before : baseline.rows) {
      if (before.tokens != row.tokens || before.applied == 0 || row.applied == 0) continue;
      const double ratio = row.p50 / before.p50;
      comparison.ratios.push_back({.tokens = row.tokens,
                                   .baseline_p50 = before.p50,
                                   .p50 = ratio,
                                   .p99 = row.p99 / before.p99,
                                   .slower = ratio > 1 + tolerance});
    }
  }
  if (comparison.ratios.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--baseline: ", file, ": expected a size that was applied in both measurements, got none"));
  }
  const auto differ = [&](const char* what, const std::string& before, const std::string& after) {
    if (before == after) return;
    comparison.differences.push_back(
        absl::StrCat(what, ": ", OrDash(before), ", now ", OrDash(after)));
  };
  differ("subject", baseline.subject, now.subject);
  differ("backend", baseline.backend, now.backend);
  differ("artifact", baseline.artifact_digest.substr(0, 12), now.artifact_digest.substr(0, 12));
  differ("plane", baseline.plane, now.plane);
  return comparison;
}

base::Json ToJson(const BenchReport& report, const std::optional<BenchComparison>& comparison) {
  base::Json rows = base::Json::array();
  for (const BenchRow& row : report.rows) rows.push_back(ToJson(row));
  return {
      {"schema", kSchema},
      {"version", KVBRIDGE_VERSION},
      {"host", {{"processor", ProcessorName()}, {"threads", std::thread::hardware_concurrency()}}},
      {"subject", report.subject},
      {"backend", report.backend},
      {"artifact_digest", report.artifact_digest},
      {"plane", report.plane},
      {"rows", rows},
      {"baseline", comparison ? ToJson(*comparison) : base::Json()}};
}

absl::StatusOr<BenchReport> ParseBenchReport(absl::string_view text, absl::string_view name) {
  KVB_ASSIGN_OR_RETURN(const base::Json json, base::ParseStrictJson(text, name));
  KVB_ASSIGN_OR_RETURN(const std::string schema, base::GetString(json, "schema", name));
  if (schema != kSchema) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ".schema: expected ", kSchema, ", got ", schema));
  }
  BenchReport report;
  KVB_ASSIGN_OR_RETURN(report.subject, base::GetString(json, "subject", name));
  KVB_ASSIGN_OR_RETURN(report.backend, base::GetString(json, "backend", name));
  KVB_ASSIGN_OR_RETURN(report.artifact_digest, base::GetString(json, "artifact_digest", name));
  KVB_ASSIGN_OR_RETURN(report.plane, base::GetString(json, "plane", name));
  KVB_ASSIGN_OR_RETURN(const base::Json* rows, base::GetArray(json, "rows", name));
  for (size_t i = 0; i < rows->size(); ++i) {
    KVB_ASSIGN_OR_RETURN(report.rows.emplace_back(),
                         ParseRow((*rows)[i], absl::StrCat(name, ".rows[", i, "]")));
  }
  return report;
}

std::string ToText(const BenchReport& report, const std::optional<BenchComparison>& comparison,
                   bool color) {
  std::vector<std::string> header = {"TOKENS", "P50 MS",   "P90 MS",  "P99 MS",
                                     "GB/S",   "TOKENS/S", "APPLIED", "FALLBACKS"};
  if (comparison) header.insert(header.end(), {"BASELINE MS", "RATIO", "VERDICT"});
  Table table(header);
  for (const BenchRow& row : report.rows) {
    std::vector<std::string> cells = {absl::StrCat(row.tokens),
                                      Milliseconds(row.p50),
                                      Milliseconds(row.p90),
                                      Milliseconds(row.p99),
                                      absl::StrFormat("%.2f", row.bytes_per_second() / 1e9),
                                      absl::StrFormat("%.0f", row.tokens_per_second()),
                                      absl::StrCat(row.applied),
                                      FallbackText(row)};
    if (comparison) {
      const auto& ratios = comparison->ratios;
      const auto found = std::find_if(ratios.begin(), ratios.end(), [&row](const BenchRatio& r) {
        return r.tokens == row.tokens;
      });
      const bool known = found != ratios.end();
      cells.push_back(known ? Milliseconds(found->baseline_p50) : "-");
      cells.push_back(known ? absl::StrFormat("%.2f", found->p50) : "-");
      cells.push_back(!known ? "-" : found->slower ? "slower" : "ok");
    }
    table.AddRow(std::move(cells));
  }
  return absl::StrCat(RenderFields({{"subject", report.subject},
                                    {"backend", report.backend},
                                    {"plane", report.plane},
                                    {"artifact", report.artifact_digest.substr(0, 12)}}),
                      "\n", table.Render(color));
}

}  // namespace kvbridge::cli
