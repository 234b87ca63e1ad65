// Gathers what /statusz shows from what the server keeps anyway.
#pragma once

#include <string>

#include "absl/time/time.h"

#include "core/base/clock.h"
#include "core/engine/transfer_engine.h"
#include "core/memory/memory_registry.h"
#include "server/activity.h"
#include "server/admin_http.h"
#include "server/event_hub.h"
#include "server/route_table.h"
#include "server/server_state.h"
#include "server/status.h"
#include "server/tls.h"

namespace kvbridge::server {

// Thread contract: Now() may be called from any thread. It takes the locks of its sources one after
// the other, each for a copy, and none that a transfer waits for longer than that.
class StatusSource {
 public:
  static constexpr size_t kFallbacks = 12;
  static constexpr size_t kChanges = 6;

  struct Deps {  // borrowed
    const RouteTable* routes = nullptr;
    const ServerState* state = nullptr;
    const engine::TransferEngine* engine = nullptr;
    const memory::MemoryRegistry* memory = nullptr;  // null: no region plane
    const Tls* tls = nullptr;                        // null: plaintext
    EventHub* events = nullptr;
    const Activity* activity = nullptr;
    const base::Clock* clock = nullptr;
    int64_t queue_limit = 0;
    uint64_t region_limit_bytes = 0;
    std::string backend;
  };
  explicit StatusSource(Deps deps) : deps_(std::move(deps)), started_(deps_.clock->Now()) {}

  Status Now() const;
  // The same as HTML, or JSON.
  std::string Page(const StatusView& view) const;

 private:
  void AddRoutes(Status* status) const;
  void AddEvents(Status* status) const;
  void AddMemory(Status* status) const;
  void AddCertificates(Status* status) const;

  const Deps deps_;
  const absl::Time started_;
};

}  // namespace kvbridge::server
