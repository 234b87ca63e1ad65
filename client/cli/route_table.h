// A server's routes for people, a line each.
#pragma once

#include <string>

#include "kvbridge/v1/transfer.pb.h"

namespace kvbridge::cli {

std::string RouteTable(const v1::HealthResponse& health, bool bold_header);

}  // namespace kvbridge::cli
