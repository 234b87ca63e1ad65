// The parts of a report about one artifact, as HTML.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

#include "client/cli/report_data.h"

namespace kvbridge::cli {

// A drawing under its caption; empty where the drawing is.
std::string Figure(absl::string_view caption, const std::string& drawing);
// Drawings side by side, as many as fit; empty where there is none.
std::string Row(const std::vector<std::string>& figures);
// Cells are HTML. The first column is text, the others are numbers unless `all_text`.
std::string HtmlTable(const std::vector<std::string>& header,
                      const std::vector<std::vector<std::string>>& rows, bool all_text = false);
std::string VerdictChip(artifact::Verdict verdict);
// "0.184 [0.17, 0.20]" as HTML, with the interval in grey; a dash for none.
std::string WithInterval(const std::optional<evidence::Estimate>& estimate, int digits);
std::string WithPercentInterval(const std::optional<evidence::Estimate>& estimate);

// "mapped.tail17" -> "mapped, tail 17".
std::string VariantText(absl::string_view variant);
// Mean over target layers of the held-out (else in-sample) R²; none where not recorded.
std::optional<double> MeanR2(const std::vector<LayerFit>& layers);

std::string LeadHtml(const ArtifactReport& report);  // headline figures and what they say
std::string EvidenceHtml(
    const ArtifactReport& report);                     // by text: controls, tails, lengths, layers
std::string ChecksHtml(const ArtifactReport& report);  // the gate's rules
std::string FitHtml(const ArtifactReport& report);     // sweep, R², selection, heads, worst layers
std::string SizeHtml(const ArtifactReport& report);
std::string ProvenanceHtml(const ArtifactReport& report);

}  // namespace kvbridge::cli
