// One self-contained page about one or several artifacts: no script, nothing fetched, light and
// dark by the reader's preference, fit for print.
#pragma once

#include <string>
#include <vector>

#include "client/cli/report_data.h"

namespace kvbridge::cli {

// At least one report. The same reports give the same bytes.
std::string ReportPage(const std::vector<ArtifactReport>& reports);

}  // namespace kvbridge::cli
