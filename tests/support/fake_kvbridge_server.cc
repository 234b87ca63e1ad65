#include "tests/support/fake_kvbridge_server.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "core/base/mutex.h"
#include "grpcpp/grpcpp.h"
#include "kvbridge/v1/admin.grpc.pb.h"
#include "kvbridge/v1/transfer.grpc.pb.h"
#include "proto/kvbridge/v1/crc32c.h"
#include "proto/kvbridge/v1/traceparent.h"
#include "tests/support/notification.h"

namespace kvbridge::test {
namespace {

using Stream = grpc::ServerReaderWriter<v1::TransferEvent, v1::TransferRequest>;

v1::TransferChunk Clipped(const v1::TransferChunk& chunk, int64_t covered) {
  v1::TransferChunk clipped = chunk;
  clipped.set_token_end(std::min(chunk.token_end(), covered));
  const int layers = chunk.layer_end() - chunk.layer_begin();
  const size_t layer_bytes = chunk.data().size() / layers;
  const size_t row_bytes = layer_bytes / (chunk.token_end() - chunk.token_begin());
  std::string data;
  for (int layer = 0; layer < layers; ++layer) {
    data.append(chunk.data(), layer * layer_bytes,
                row_bytes * (clipped.token_end() - clipped.token_begin()));
  }
  clipped.set_crc32c(wire::Crc32c(std::as_bytes(std::span(data))));
  clipped.set_data(std::move(data));
  return clipped;
}

v1::TransferEvent ChunkEvent(const v1::TransferChunk& chunk) {
  v1::TransferEvent event;
  *event.mutable_chunk() = chunk;
  return event;
}

v1::TransferEvent CompletedEvent(v1::Outcome outcome, v1::Reason reason, int64_t covered) {
  v1::TransferEvent event;
  v1::Decision& decision = *event.mutable_completed()->mutable_decision();
  decision.set_outcome(outcome);
  decision.set_reason(reason);
  if (reason == v1::REASON_NON_FINITE) {
    decision.set_reason_class(v1::REASON_CLASS_QUALITY);
    decision.set_detail("layer 0, token 0: expected a finite key, got NaN");
  }
  if (outcome == v1::OUTCOME_APPLIED) {
    decision.set_covered_tokens(covered);
    decision.set_approximate(true);
    decision.set_hops(1);
    decision.set_salt("kvb1-00112233445566778899aabbccddeeff");
    decision.set_artifact_digest(std::string(64, 'a'));
  }
  return event;
}

}  // namespace

struct FakeKvbridgeServer::Server {
  explicit Server(Options o) : options(std::move(o)) {}
  const Options options;
  mutable base::Mutex mutex;
  v1::TransferHeader last_header ABSL_GUARDED_BY(mutex);
  std::map<std::string, std::string> last_metadata ABSL_GUARDED_BY(mutex);
  int calls ABSL_GUARDED_BY(mutex) = 0;
  int64_t payload_chunks ABSL_GUARDED_BY(mutex) = 0;
  test::Notification stalled;
  test::Notification released;
  std::unique_ptr<Service> service;
  std::unique_ptr<grpc::Server> grpc;
  int port = 0;
};

class FakeKvbridgeServer::Service final : public v1::KvBridge::Service, public v1::Admin::Service {
 public:
  explicit Service(Server* server) : server_(server) {}

  grpc::Status Transfer(grpc::ServerContext* context, Stream* stream) override {
    const Options& options = server_->options;
    int call = 0;
    v1::TransferRequest request;
    if (!stream->Read(&request)) return grpc::Status::CANCELLED;
    {
      base::MutexLock lock(&server_->mutex);
      call = server_->calls++;
      server_->last_header = request.header();
      server_->last_metadata.clear();
      for (const auto& [name, value] : context->client_metadata()) {
        server_->last_metadata[{name.data(), name.size()}] = {value.data(), value.size()};
      }
    }
    GoOnWithTrace(context);
    if (call < options.unavailable_calls) return {grpc::StatusCode::UNAVAILABLE, "starting"};
    if (options.behaviour == Behaviour::kRefuse) {
      v1::TransferEvent completed;
      *completed.mutable_completed()->mutable_decision() = options.refusal;
      stream->Write(completed);
      return grpc::Status::OK;
    }
    if (options.behaviour == Behaviour::kSilent) {
      while (stream->Read(&request)) continue;
      return grpc::Status::CANCELLED;
    }
    if (options.behaviour == Behaviour::kChunkBeforeAccepted) {
      stream->Write(ChunkEvent(v1::TransferChunk()));
      return grpc::Status::OK;
    }
    const int64_t covered = Accept(request.header(), stream);
    if (call < options.unavailable_calls + options.accepted_then_lost) {
      return {grpc::StatusCode::UNAVAILABLE, "lost"};
    }
    if (options.behaviour == Behaviour::kAppliedAtOnce) return Complete(covered, stream);
    return Answer(covered, stream);
  }

  grpc::Status Plan(grpc::ServerContext*, const v1::PlanRequest* request,
                    v1::PlanResponse* response) override {
    if (request->route() != "small-to-large") {
      return {grpc::StatusCode::NOT_FOUND, "route: expected a configured one"};
    }
    response->set_worth_it(true);
    response->set_covered_tokens(request->prompt_tokens() - 1);
    response->mutable_map_seconds()->set_value(0.25);
    response->mutable_map_seconds()->set_source("measured");
    response->mutable_move_seconds()->set_source("unmeasured");
    response->mutable_evidence()->set_verdict("PASS");
    return grpc::Status::OK;
  }

  grpc::Status Health(grpc::ServerContext*, const v1::HealthRequest* request,
                      v1::HealthResponse* response) override {
    if (!request->route().empty() && request->route() != "small-to-large") {
      return {grpc::StatusCode::NOT_FOUND, "route: expected a configured one"};
    }
    response->set_state(v1::SERVER_STATE_READY);
    response->set_version("9.9.9");
    v1::RouteHealth& route = *response->add_routes();
    route.set_route("small-to-large");
    route.set_stage(v1::ROUTE_STAGE_LIVE);
    route.set_circuit(v1::CIRCUIT_STATE_CLOSED);
    route.set_serving(true);
    route.set_artifact_digest(std::string(64, 'a'));
    route.set_verdict("PASS");
    return grpc::Status::OK;
  }

  grpc::Status GetCapabilities(grpc::ServerContext*, const v1::GetCapabilitiesRequest*,
                               v1::GetCapabilitiesResponse* response) override {
    response->set_version("9.9.9");
    response->add_features("inline");
    v1::RouteInfo& route = *response->add_routes();
    route.set_route("small-to-large");
    *route.mutable_target() = server_->options.route_target;
    return grpc::Status::OK;
  }

  grpc::Status LoadArtifact(grpc::ServerContext*, const v1::LoadArtifactRequest* request,
                            v1::LoadArtifactResponse* response) override {
    if (request->path() == "damaged") {
      return {grpc::StatusCode::DATA_LOSS, "mapper.safetensors: digest differs"};
    }
    response->mutable_artifact()->set_route(request->route());
    response->mutable_artifact()->set_digest(std::string(64, 'b'));
    response->mutable_artifact()->set_verdict("UNPROVEN");
    return grpc::Status::OK;
  }

  grpc::Status UnloadArtifact(grpc::ServerContext*, const v1::UnloadArtifactRequest*,
                              v1::UnloadArtifactResponse*) override {
    return grpc::Status::OK;
  }

  grpc::Status ListArtifacts(grpc::ServerContext*, const v1::ListArtifactsRequest*,
                             v1::ListArtifactsResponse* response) override {
    v1::ArtifactInfo& info = *response->add_artifacts();
    info.set_route("small-to-large");
    info.set_digest(std::string(64, 'a'));
    info.set_resident_bytes(4096);
    info.set_verdict("PASS");
    info.set_load_seconds(1.5);
    return grpc::Status::OK;
  }

  grpc::Status SetRoute(grpc::ServerContext*, const v1::SetRouteRequest* request,
                        v1::SetRouteResponse* response) override {
    if (request->route() == "going-away") return grpc::Status::CANCELLED;
    if (request->route() != "small-to-large") {
      return {grpc::StatusCode::NOT_FOUND, "route: expected a configured one"};
    }
    response->set_previous(v1::ROUTE_STAGE_LIVE);
    return grpc::Status::OK;
  }

  // The same event, until the caller has enough.
  grpc::Status WatchEvents(grpc::ServerContext*, const v1::WatchEventsRequest* request,
                           grpc::ServerWriter<v1::WatchEventsResponse>* stream) override {
    if (request->route() == "going-away") return grpc::Status::CANCELLED;
    if (!request->route().empty() && request->route() != "small-to-large") {
      return {grpc::StatusCode::NOT_FOUND, "route: expected a configured one"};
    }
    v1::WatchEventsResponse response;
    response.mutable_event()->set_pair("small-to-large");
    while (stream->Write(response)) continue;
    return grpc::Status::CANCELLED;
  }

 private:
  // Its span is the caller's, with another last digit.
  static void GoOnWithTrace(grpc::ServerContext* context) {
    const auto caller = context->client_metadata().find("traceparent");
    if (caller == context->client_metadata().end()) return;
    auto span = wire::ParseTraceparent({caller->second.data(), caller->second.size()}).value();
    span.span_id.back() = span.span_id.back() == '0' ? '1' : '0';
    context->AddTrailingMetadata("traceparent", span.ToString());
  }

  int64_t Accept(const v1::TransferHeader& header, Stream* stream) {
    const int64_t tokens = header.source_selection().tokens();
    const int64_t prompt = header.prompt_tokens() == 0 ? tokens : header.prompt_tokens();
    const int64_t tail = std::max(1, header.limits().native_tail());
    int64_t covered = std::min(tokens, prompt - tail);
    if (const int64_t most = header.limits().max_covered_tokens(); most > 0) {
      covered = std::min(covered, most);
    }
    if (server_->options.behaviour == Behaviour::kAcceptsTooMuch) covered = tokens + 1;
    v1::TransferEvent event;
    event.mutable_accepted()->set_covered_tokens(covered);
    event.mutable_accepted()->set_tile_tokens(server_->options.tile_tokens);
    event.mutable_accepted()->set_plane(v1::PLANE_INLINE);
    stream->Write(event);
    return covered;
  }

  grpc::Status Answer(int64_t covered, Stream* stream) {
    const Behaviour behaviour = server_->options.behaviour;
    v1::TransferRequest request;
    for (int sent = 0; stream->Read(&request);) {
      {
        base::MutexLock lock(&server_->mutex);
        ++server_->payload_chunks;
      }
      if (request.chunk().token_begin() >= covered) continue;
      v1::TransferChunk chunk = Clipped(request.chunk(), covered);
      ++sent;
      if (behaviour == Behaviour::kDamagedCrc && sent == 2) chunk.set_crc32c(chunk.crc32c() ^ 1);
      if (behaviour == Behaviour::kMissingChunk && sent == 2) continue;
      if (behaviour == Behaviour::kChunkBeyondCovered) chunk = request.chunk();
      stream->Write(ChunkEvent(chunk));
      if (behaviour == Behaviour::kDuplicateChunk && sent == 2) stream->Write(ChunkEvent(chunk));
      if (behaviour == Behaviour::kCloseMidway && sent == 2) {
        return {grpc::StatusCode::UNAVAILABLE, "gone"};
      }
      if (behaviour == Behaviour::kFailAfterChunks && sent == 2) {
        stream->Write(CompletedEvent(v1::OUTCOME_FALLBACK_REPREFILL, v1::REASON_NON_FINITE, 0));
        return grpc::Status::OK;
      }
      if (behaviour == Behaviour::kStall && sent == 1) {
        server_->stalled.Notify();
        server_->released.WaitForNotification();
        return grpc::Status::CANCELLED;
      }
    }
    return Complete(covered, stream);
  }

  grpc::Status Complete(int64_t covered, Stream* stream) {
    const Behaviour behaviour = server_->options.behaviour;
    if (behaviour == Behaviour::kNoCompleted) return grpc::Status::OK;
    if (behaviour == Behaviour::kAppliedAfterError) {
      stream->Write(CompletedEvent(v1::OUTCOME_FALLBACK_REPREFILL, v1::REASON_NON_FINITE, 0));
    }
    const auto applied = CompletedEvent(v1::OUTCOME_APPLIED, v1::REASON_UNSPECIFIED, covered);
    stream->Write(applied);
    if (behaviour == Behaviour::kCompletedTwice) stream->Write(applied);
    if (behaviour == Behaviour::kErrorStatus) return {grpc::StatusCode::INTERNAL, "a bug"};
    return grpc::Status::OK;
  }

  Server* const server_;
};

FakeKvbridgeServer::FakeKvbridgeServer(Options options)
    : server_(std::make_unique<Server>(std::move(options))) {
  server_->service = std::make_unique<Service>(server_.get());
  grpc::ServerBuilder builder;
  builder.AddListeningPort(server_->options.address, grpc::InsecureServerCredentials(),
                           &server_->port);
  builder.RegisterService(static_cast<v1::KvBridge::Service*>(server_->service.get()));
  builder.RegisterService(static_cast<v1::Admin::Service*>(server_->service.get()));
  server_->grpc = builder.BuildAndStart();
  if (server_->grpc == nullptr) std::abort();
}

FakeKvbridgeServer::~FakeKvbridgeServer() {
  Release();
  server_->grpc->Shutdown(std::chrono::system_clock::now());
  server_->grpc->Wait();
}

std::string FakeKvbridgeServer::target() const {
  const std::string& address = server_->options.address;
  return absl::StartsWith(address, "unix:") ? address : absl::StrCat("127.0.0.1:", server_->port);
}

std::string FakeKvbridgeServer::last_metadata(const std::string& name) const {
  base::MutexLock lock(&server_->mutex);
  const auto found = server_->last_metadata.find(name);
  return found == server_->last_metadata.end() ? "" : found->second;
}

v1::TransferHeader FakeKvbridgeServer::last_header() const {
  base::MutexLock lock(&server_->mutex);
  return server_->last_header;
}

int FakeKvbridgeServer::calls() const {
  base::MutexLock lock(&server_->mutex);
  return server_->calls;
}

int64_t FakeKvbridgeServer::payload_chunks() const {
  base::MutexLock lock(&server_->mutex);
  return server_->payload_chunks;
}

void FakeKvbridgeServer::WaitUntilStalled() { server_->stalled.WaitForNotification(); }

void FakeKvbridgeServer::Release() {
  if (!server_->released.HasBeenNotified()) server_->released.Notify();
}

}  // namespace kvbridge::test
