// The operator's page, /statusz, and the same as JSON. Both are made of a Status alone.
#pragma once

#include <string>

#include "server/status.h"

namespace kvbridge::server {

// A whole page: it loads nothing and runs no script. `refresh`: it asks for itself again every
// five seconds.
std::string StatusHtml(const Status& status, bool refresh);

// "kvbridge.status/v1".
std::string StatusJson(const Status& status);

}  // namespace kvbridge::server
