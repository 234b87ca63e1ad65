// Pages of the admin HTTP that tell of the server itself, JSON.
#pragma once

#include <string>
#include <vector>

#include "kvbridge/v1/transfer.pb.h"
#include "server/route_table.h"

namespace kvbridge::server {

std::string VersionPage(const std::string& backend);
// Each route with its stage, circuit and artifact.
std::string ArtifactsPage(const RouteTable& routes);
// Events in the order given, each as docs/events.schema.json has it.
std::string EventsPage(const std::vector<v1::WatchEventsResponse>& events);

}  // namespace kvbridge::server
