// Events as JSON, the same wherever one is printed: lines of the log, /eventz, and `kvbridge events
// tail --format json`. docs/events.schema.json describes it.
#pragma once

#include "absl/time/time.h"

#include "kvbridge/v1/transfer.pb.h"
#include "nlohmann/json.hpp"

namespace kvbridge::wire {

absl::Time TimeOf(const google::protobuf::Timestamp& time);

// An object. Strings may hold any bytes: dump it with a replacing error handler.
nlohmann::json EventJson(const v1::WatchEventsResponse& event);

}  // namespace kvbridge::wire
