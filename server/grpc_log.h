// gRPC's own log: its errors as lines of ours, and its failed TLS handshakes as calls, for it has
// no other way to tell of them. The one place that knows the texts of gRPC 1.51.
#pragma once

#include <functional>

#include "server/log.h"

namespace kvbridge::server {

// From now on, for the whole process, from any thread. `log` is borrowed for ever.
void TakeGrpcLog(Log* log, std::function<void()> on_handshake_failed);

// gRPC's lines go nowhere again.
void DropGrpcLog();

}  // namespace kvbridge::server
