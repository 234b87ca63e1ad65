// The operator's HTTP endpoint: /metrics, /livez, /readyz, /version, and on loopback /configz,
// /artifactz, /eventz and /statusz. Its threads are its own, so that a scrape never waits for a
// transfer nor delays one.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct mg_connection;
struct mg_context;

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
// endpoint's threads, several at a time.
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
  // Waits for requests being answered.
  ~AdminHttp();
  AdminHttp(const AdminHttp&) = delete;
  AdminHttp& operator=(const AdminHttp&) = delete;

  int port() const { return port_; }

 private:
  explicit AdminHttp(Sources sources) : sources_(std::move(sources)) {}
  static int Handle(mg_connection* connection);
  struct Answer;
  Answer Route(absl::string_view path, absl::string_view query, bool from_loopback) const;
  Answer LocalPage(absl::string_view path, absl::string_view query) const;

  const Sources sources_;
  mg_context* context_ = nullptr;
  int port_ = 0;
};

}  // namespace kvbridge::server
