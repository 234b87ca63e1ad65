// From a stream's header to a transfer that was admitted and whose planes are open, or to the
// decision that says why not.
#pragma once

#include <atomic>
#include <memory>
#include <variant>
#include <vector>

#include "absl/time/time.h"

#include "core/base/clock.h"
#include "core/engine/decision.h"
#include "core/engine/transfer_engine.h"
#include "core/kv/buffer_pool.h"
#include "core/memory/memory_registry.h"
#include "core/ucx/inbox.h"
#include "grpcpp/server_context.h"
#include "kvbridge/v1/transfer.pb.h"
#include "server/convert.h"
#include "server/decision_recorder.h"
#include "server/peers.h"
#include "server/route_table.h"
#include "server/source_plane.h"
#include "server/target_plane.h"

namespace kvbridge::server {

// What all transfers share. Borrowed; outlives them.
struct TransferEnv {
  RouteTable* routes = nullptr;
  engine::TransferEngine* engine = nullptr;
  std::shared_ptr<kv::BufferPool> buffers;
  const memory::MemoryRegistry* memory = nullptr;  // null: no region plane
  const Peers* peers = nullptr;
  const base::Clock* clock = nullptr;
  DecisionRecorder* recorder = nullptr;
  const std::atomic<bool>* draining = nullptr;  // new transfers are refused
  absl::Duration idle_timeout;                  // longest time without a byte in or out
};

struct BegunTransfer {
  std::shared_ptr<engine::Transfer> transfer;
  std::shared_ptr<SourcePlane> source;
  std::shared_ptr<TargetPlane> target;
  std::vector<SourceTile> ready;      // source tokens that wait for no message
  std::unique_ptr<ucx::Inbox> inbox;  // where chunks come from; null: the stream
};

// What is known of a call before its header was understood.
DecisionContext AboutTransfer(const v1::TransferHeader& header, TraceContext trace);

// What the caller is told of a transfer that was admitted, but for its plane.
void DescribeTransfer(const TransferEnv& env, const engine::Transfer& transfer,
                      v1::TransferAccepted* accepted);

// Whether a transfer that names a peer is mapped here, because the target's cache is the smaller
// one and this kvbridged has the route, with an artifact that may be applied.
bool MapsAtSource(const RouteTable& routes, const TransferInput& input);
// Whether all of it can be done here: no peer is named, or the caller, who is here, gets the answer
// of a transfer that is mapped here.
bool StaysHere(const TransferEnv& env, const v1::TransferHeader& header);

// Nothing is held when it answers a decision. Fills `about` in, but for its trace and time. Any
// thread; blocks for nothing but a few hundred pages' worth of zeroing.
std::variant<BegunTransfer, engine::Decision> BeginTransfer(
    const TransferEnv& env, const grpc::CallbackServerContext& context,
    const v1::TransferHeader& header, DecisionContext* about);
// The same for a header that was understood, whose tenant is the caller's.
std::variant<BegunTransfer, engine::Decision> BeginTransfer(const TransferEnv& env,
                                                            TransferInput input,
                                                            DecisionContext* about);

}  // namespace kvbridge::server
