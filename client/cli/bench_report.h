// What `kvbridge bench` has measured, beside what it measured before.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/transfer_report.h"
#include "core/base/strict_json.h"

namespace kvbridge::cli {

// Transfers of caches of one size. Times and rates are of those that were applied, in seconds.
struct BenchRow {
  int64_t tokens = 0;
  int64_t applied = 0;
  std::map<std::string, int64_t> fallbacks;  // by reason
  int64_t bytes = 0;                         // both ways
  double p50 = 0;                            // all 0 where none was applied
  double p90 = 0;
  double p99 = 0;
  std::map<std::string, double> stages_p50;  // as the server or the engine saw them

  double bytes_per_second() const;
  double tokens_per_second() const;
};
BenchRow Summarize(int64_t tokens, const std::vector<TransferReport>& reports);

struct BenchReport {
  std::string subject;  // a route or an artifact folder
  std::string backend;
  std::string artifact_digest;
  std::string plane;
  std::vector<BenchRow> rows;
};

// A row against that of the baseline with as many tokens. Ratios above 1 are slower.
struct BenchRatio {
  int64_t tokens = 0;
  double baseline_p50 = 0;
  double p50 = 0;
  double p99 = 0;
  bool slower = false;  // p50 by more than the tolerance
};
struct BenchComparison {
  std::string file;
  double tolerance = 0;  // 0.1 is 10 %
  std::vector<BenchRatio> ratios;
  std::vector<std::string> differences;  // in what both measured: "backend: cpu-amx, now cpu-avx2"

  bool slower() const;
};
// INVALID_ARGUMENT when they have no size in common that was applied in both.
absl::StatusOr<BenchComparison> Compare(const BenchReport& now, const BenchReport& baseline,
                                        const std::string& file, double tolerance);

// "kvbridge.bench/v1". ParseBenchReport reads what is compared; its errors name the field.
base::Json ToJson(const BenchReport& report, const std::optional<BenchComparison>& comparison);
absl::StatusOr<BenchReport> ParseBenchReport(absl::string_view text, absl::string_view name);
std::string ToText(const BenchReport& report, const std::optional<BenchComparison>& comparison,
                   bool color);

}  // namespace kvbridge::cli
