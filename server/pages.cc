#include "server/pages.h"

#include "nlohmann/json.hpp"
#include "proto/kvbridge/v1/event_json.h"
#include "server/version.h"

namespace kvbridge::server {
namespace {

// Model ids and details may hold any bytes.
std::string Page(const nlohmann::json& content) {
  return content.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string VersionPage(const std::string& backend) {
  return Page({{"version", kVersion},
               {"revision", kRevision},
               {"compiler", kCompiler},
               {"backend", backend}});
}

std::string ArtifactsPage(const RouteTable& routes) {
  nlohmann::json list = nlohmann::json::array();
  for (const RouteSnapshot& route : routes.All()) {
    nlohmann::json entry = {{"route", route.name},
                            {"stage", std::string(guard::Name(route.policy.stage))},
                            {"circuit", std::string(guard::Name(route.watch->circuit()))},
                            {"serving", route.serving()},
                            {"last_error", std::string(route.last_error.message())}};
    if (route.serving()) {
      entry["artifact"] = route.loaded->mapper().digest;
      entry["verdict"] = std::string(artifact::Name(route.loaded->provenance.verdict()));
      entry["resident_bytes"] = route.loaded->resident->resident_bytes();
      entry["load_seconds"] = absl::ToDoubleSeconds(route.loaded->load_time);
    }
    list.push_back(std::move(entry));
  }
  return Page({{"routes", std::move(list)}});
}

std::string EventsPage(const std::vector<v1::WatchEventsResponse>& events) {
  nlohmann::json list = nlohmann::json::array();
  for (const v1::WatchEventsResponse& event : events) {
    list.push_back(wire::EventJson(event));
  }
  return Page({{"events", std::move(list)}});
}

}  // namespace kvbridge::server
