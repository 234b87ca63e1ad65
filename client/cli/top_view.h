// One picture of `kvbridge top`, for people and for programs.
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"

#include "client/cli/server_load.h"
#include "client/cli/top_window.h"
#include "core/base/strict_json.h"
#include "kvbridge/v1/transfer.pb.h"

namespace kvbridge::cli {

struct TopFrame {
  absl::Time time;
  v1::HealthResponse health;
  TopWindow::Reading reading;
  std::optional<ServerLoad> load;  // where the admin HTTP was asked
};

// "kvbridge.top/v1". What is not known is null.
base::Json TopDocument(const TopFrame& frame);

// Lines, the last one ended as well. `bold_header` as for tables.
std::string TopText(const TopFrame& frame, bool bold_header);

}  // namespace kvbridge::cli
