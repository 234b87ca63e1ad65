// What of a new configuration a running server takes: routes, tenants, auth and the log's level.
// The rest was given to sockets, threads and buffers when it started, and needs a restart.
#pragma once

#include <string>
#include <vector>

#include "server/config.h"

namespace kvbridge::server {

struct ConfigChange {
  LoadedConfig effective;                 // what the server runs with from now on
  std::vector<std::string> need_restart;  // settings that differ and stay as they were
};

// Thread contract: a pure function.
ConfigChange TakeWhatCanChange(const LoadedConfig& running, const LoadedConfig& next);

}  // namespace kvbridge::server
