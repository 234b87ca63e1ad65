// The plane without a wire: both caches lie in this process's memory. For the command line, for
// embedding, and for tests.
#pragma once

#include "core/engine/decision.h"
#include "core/engine/transfer_engine.h"
#include "core/guard/route_policy.h"
#include "core/guard/transfer_spec.h"
#include "core/kv/kv_view.h"

namespace kvbridge::engine {

// Maps tokens [first_token, covered) of `source` into the same tokens of `target`, and zeroes the
// slots past them in target's last page. After a failure, and on a shadow route, every target token
// that was written to is zero. Both views hold the selection's tokens and have passed kv::Validate.
//
// Blocks until the last worker has left; not to be called from a worker.
Decision RunLocal(TransferEngine& engine, guard::TransferSpec spec,
                  const guard::RoutePolicy& policy, ArtifactPin pin, const kv::KvView& source,
                  const kv::KvView& target);

}  // namespace kvbridge::engine
