// The operator's HTTP endpoint: /metrics, /livez, /readyz, /version, and on loopback /configz,
// /artifactz, /eventz and /statusz. Its thread is its own, so that a scrape never waits for a
// transfer nor delays one; and no client of it keeps a probe waiting.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "server/http_endpoint.h"

namespace kvbridge::server {

// Whether something is well, and if not, why.
struct Verdict {
  bool ok = true;
  std::string why;
};

// How /statusz is asked for.
struct StatusView {
  bool json = false;    // ?format=json
  bool refresh = true;  // unless ?refresh=off
};

// Thread contract: constructed and destroyed by one thread; the sources are called from the
// endpoint's.
class AdminHttp {
 public:
  struct Sources {
    std::function<std::string()> metrics;  // Prometheus text format
    std::function<Verdict()> live;
    std::function<Verdict()> ready;
    std::function<std::string()> version;  // JSON
    // JSON; served to loopback only
    std::function<std::string()> config;
    std::function<std::string()> artifacts;
    std::function<std::string()> events;
    std::function<std::string(const StatusView&)> status;  // HTML, or JSON
  };

  // `host` as in Address; port 0 = any. UNAVAILABLE when the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<AdminHttp>> Start(const std::string& host, int port,
                                                          Sources sources);
  AdminHttp(const AdminHttp&) = delete;
  AdminHttp& operator=(const AdminHttp&) = delete;

  int port() const { return endpoint_->port(); }

 private:
  explicit AdminHttp(Sources sources) : sources_(std::move(sources)) {}
  HttpAnswer Route(const HttpRequest& request) const;
  HttpAnswer LocalPage(const HttpRequest& request) const;

  const Sources sources_;
  std::unique_ptr<HttpEndpoint> endpoint_;  // last: it uses the sources
};

}  // namespace kvbridge::server
