#include "tests/integration/server_harness.h"

#include <cstring>
#include <random>
#include <thread>

#include "absl/time/clock.h"

#include "core/artifact/artifact.h"
#include "core/device/cpu/cpu_backend.h"
#include "core/tensor/convert.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/security/credentials.h"
#include "gtest/gtest.h"
#include "proto/kvbridge/v1/crc32c.h"
#include "server/convert.h"
#include "tests/core/memory/client_shm.h"
#include "tests/support/notification.h"

namespace kvbridge::server {
namespace {

model::ModelIdentity Identity(const char* name) {
  return {.family = "qwen3",
          .model_id = std::string("test/") + name,
          .revision = "0123456789abcdef0123456789abcdef01234567",
          .tokenizer_sha256 = std::string(64, 'a')};
}

}  // namespace

DenseCache::DenseCache(const model::KvGeometry& g, int64_t n)
    : geometry(g), tokens(n), bytes(n * g.token_bytes(), std::byte{0xEE}) {}

void DenseCache::Randomise(uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> row(geometry.row());
  kv::KvView view = View();
  for (int32_t layer = 0; layer < geometry.layers; ++layer) {
    for (const kv::Component c : kv::kComponents) {
      for (int64_t token = 0; token < tokens; ++token) {
        for (float& value : row) value = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
        for (int32_t head = 0; head < geometry.kv_heads; ++head) {
          kv::WriteHead(view, layer, c, token, head, row.data() + head * geometry.head_dim);
        }
      }
    }
  }
}

kv::KvView DenseCache::View() {
  return kv::DenseTileView(bytes.data(), geometry.dtype, geometry.layers, tokens, geometry.kv_heads,
                           geometry.head_dim);
}

std::string DenseCache::Rows(int32_t layer, kv::Component c, kv::TokenRange range) const {
  const auto view = const_cast<DenseCache*>(this)->View();
  const auto* begin = reinterpret_cast<const char*>(view.Row(layer, c, range.begin));
  return {begin, static_cast<size_t>(range.size() * view.plane(layer, c).token_stride)};
}

void DenseCache::SetRows(int32_t layer, kv::Component c, kv::TokenRange range,
                         const std::string& rows) {
  ASSERT_LE(range.end, tokens);
  const auto view = View();
  ASSERT_EQ(rows.size(), size_t(range.size() * view.plane(layer, c).token_stride));
  std::memcpy(view.Row(layer, c, range.begin), rows.data(), rows.size());
}

void Seal(v1::TransferChunk* chunk) {
  const std::string& data = chunk->data();
  chunk->set_crc32c(wire::Crc32c({reinterpret_cast<const std::byte*>(data.data()), data.size()}));
}

ServerHarness::ServerHarness(HarnessOptions options) : artifact_dir_(dir_ / "artifact") {
  std::mt19937 random(7);
  if (options.map.source_rope.rotary_dim == 0) {
    options.map.source_rope =
        device::MakeRope(options.map.source.head_dim, model::Pairing::kHalf, 1);
    options.map.target_rope =
        device::MakeRope(options.map.target.head_dim, model::Pairing::kHalf, 1);
  }
  mapper_ = std::make_shared<mapper::Mapper>(*device::MakeMapper(options.map, random));
  mapper_->source.identity = Identity("small");
  mapper_->target.identity = Identity("large");
  const auto pool = base::WorkerPool::Create({.threads = 2}).value();
  artifact::Provenance provenance;
  provenance.lambda = 1e-3;
  if (options.proven) {
    provenance.evidence = artifact::Evidence{
        .verdict = artifact::Verdict::kPass, .kl_nats = 0.01, .provenance = "synthetic"};
  }
  const auto digest =
      artifact::SaveArtifact(artifact_dir_, *mapper_, provenance, {.pool = pool.get()});
  EXPECT_TRUE(digest.ok()) << digest.status();
  mapper_->digest = *digest;
  Start(options);
}

void ServerHarness::Start(const HarnessOptions& options) {
  ConfigSources sources{.file_name = "test", .file_text = ""};
  LoadedConfig loaded = LoadConfig(sources).value();
  v1::Config& config = loaded.config;
  config.mutable_listen()->clear_grpc();
  config.mutable_listen()->add_grpc("unix:" + (dir_ / "k.sock").string());
  config.mutable_listen()->set_admin("off");
  config.mutable_memory()->set_socket((dir_ / "m.sock").string());
  config.mutable_memory()->set_max_bytes(64 << 20);
  config.mutable_memory()->set_max_sessions(8);
  *config.mutable_memory()->mutable_lease() = ToProto(absl::Seconds(30));
  *config.mutable_memory()->mutable_ticket_life() = ToProto(absl::Seconds(30));
  config.mutable_memory()->add_named_shm()->set_prefix(memory::ShmPrefix());
  config.mutable_engine()->set_threads(2);
  config.mutable_engine()->set_tile_tokens(32);
  config.mutable_drain()->mutable_delay()->Clear();
  v1::RouteConfig route =
      LoadConfig({.file_text = "routes: [{name: x, artifact: y}]"}).value().config.routes(0);
  route.set_name(kRoute);
  route.set_artifact(artifact_dir_.string());
  *config.add_routes() = route;
  if (options.configure) options.configure(&config);
  ASSERT_EQ(Validate(config), absl::OkStatus());
  log_ = std::make_unique<class Log>(
      Log::Options{.sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(log_text_)}, &clock_);
  auto server = Server::Create(loaded, log_.get());
  ASSERT_TRUE(server.ok()) << server.status();
  server_ = *std::move(server);
  ASSERT_EQ(server_->Start(), absl::OkStatus());
  while (server_->state().state() == v1::SERVER_STATE_STARTING) std::this_thread::yield();
}

std::shared_ptr<grpc::Channel> ServerHarness::Connect() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(server_->grpc_addresses()[0], grpc::InsecureChannelCredentials(),
                                   arguments);
}

v1::TransferHeader ServerHarness::Header(int64_t tokens) const {
  v1::TransferHeader header;
  header.set_request_id("request-1");
  header.set_route(kRoute);
  *header.mutable_source() = ToProto(mapper_->source);
  *header.mutable_target() = ToProto(mapper_->target);
  header.mutable_source_selection()->set_tokens(tokens);
  header.mutable_source_selection()->set_key_state(v1::KEY_STATE_ROPED);
  header.mutable_source_selection()->mutable_inline_();
  header.mutable_target_selection()->mutable_inline_();
  return header;
}

std::vector<v1::TransferChunk> ServerHarness::Chunks(const DenseCache& source) const {
  constexpr int64_t kStep = 16;
  std::vector<v1::TransferChunk> chunks;
  for (int64_t token = 0; token < source.tokens; token += kStep) {
    const kv::TokenRange range{token, std::min(token + kStep, source.tokens)};
    for (int32_t layer = 0; layer < source.geometry.layers; ++layer) {
      for (const kv::Component c : kv::kComponents) {
        v1::TransferChunk& chunk = chunks.emplace_back();
        chunk.set_layer_begin(layer);
        chunk.set_layer_end(layer + 1);
        chunk.set_component(c == kv::Component::kKey ? v1::COMPONENT_KEY : v1::COMPONENT_VALUE);
        chunk.set_token_begin(range.begin);
        chunk.set_token_end(range.end);
        chunk.set_data(source.Rows(layer, c, range));
        Seal(&chunk);
      }
    }
  }
  return chunks;
}

CallResult ServerHarness::Call(const v1::TransferHeader& header,
                               const std::vector<v1::TransferChunk>& chunks,
                               grpc::ClientContext* context) const {
  std::vector<v1::TransferRequest> requests(1 + chunks.size());
  *requests[0].mutable_header() = header;
  for (size_t i = 0; i < chunks.size(); ++i) *requests[i + 1].mutable_chunk() = chunks[i];
  return Send(requests, context);
}

CallResult ServerHarness::Send(const std::vector<v1::TransferRequest>& requests,
                               grpc::ClientContext* context) const {
  grpc::ClientContext own;
  const auto stub = v1::KvBridge::NewStub(Connect());
  auto stream = stub->Transfer(context == nullptr ? &own : context);
  std::thread writer([&] {
    for (const auto& request : requests) {
      if (!stream->Write(request)) return;
    }
    stream->WritesDone();
  });
  CallResult result;
  const int64_t tokens = requests.empty() ? 0 : requests[0].header().source_selection().tokens();
  result.target = std::make_unique<DenseCache>(mapper_->target.geometry,
                                               tokens > 0 && tokens < 100000 ? tokens : 0);
  v1::TransferEvent event;
  while (stream->Read(&event)) {
    if (event.has_chunk()) {
      const v1::TransferChunk& chunk = event.chunk();
      v1::TransferChunk check = chunk;
      Seal(&check);
      EXPECT_EQ(check.crc32c(), chunk.crc32c());
      const kv::TokenRange range{chunk.token_begin(), chunk.token_end()};
      const int layers = chunk.layer_end() - chunk.layer_begin();
      const size_t piece = chunk.data().size() / layers;
      for (int i = 0; i < layers; ++i) {
        result.target->SetRows(
            chunk.layer_begin() + i,
            chunk.component() == v1::COMPONENT_KEY ? kv::Component::kKey : kv::Component::kValue,
            range, chunk.data().substr(i * piece, piece));
      }
      continue;
    }
    if (event.has_completed()) {
      ++result.completed;
      result.decision = event.completed().decision();
    }
    result.events.push_back(event);
  }
  writer.join();
  result.status = stream->Finish();
  return result;
}

engine::Decision ServerHarness::MapInProcess(DenseCache& source, DenseCache& target) const {
  return MapInProcess(Header(source.tokens), source.View(), target.View());
}

engine::Decision ServerHarness::MapInProcess(const v1::TransferHeader& header,
                                             const kv::KvView& source,
                                             const kv::KvView& target) const {
  const base::SystemClock clock;
  const auto pool = base::WorkerPool::Create({.threads = 2}).value();
  const auto backend =
      device::CpuBackend::Create({}, pool.get(), kv::BufferPool::Create(1 << 30)).value();
  const auto engine =
      engine::TransferEngine::Create({}, {pool.get(), backend.get(), &clock}).value();
  engine::ArtifactPin pin{backend->MakeResident(mapper_, device::Precision::kBf16, {}).value(),
                          true};
  auto input = ToTransferInput(header, absl::InfiniteFuture()).value();
  return RunLocal(*engine, input.spec, {}, std::move(pin), source, target);
}

// The message is two strings and an enum: {1: service} and {1: status}, read and written by hand,
// since Debian ships no generated code for it.
std::string ServerHarness::GrpcHealth(const std::string& service) const {
  grpc::GenericStub stub(Connect());
  std::string request = "\x0a";
  request += static_cast<char>(service.size());
  request += service;
  const grpc::Slice slice(request);
  const grpc::ByteBuffer message(&slice, 1);
  grpc::ByteBuffer answer;
  grpc::ClientContext context;
  test::Notification done;
  grpc::Status status;
  stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", {}, &message, &answer,
                 [&](grpc::Status s) {
                   status = s;
                   done.Notify();
                 });
  done.WaitForNotification();
  if (status.error_code() == grpc::NOT_FOUND) return "NOT_FOUND";
  EXPECT_TRUE(status.ok()) << status.error_message();
  grpc::Slice bytes;
  EXPECT_TRUE(answer.DumpToSingleSlice(&bytes).ok());
  return bytes.size() == 2 && bytes.begin()[1] == 1 ? "SERVING" : "NOT_SERVING";
}

bool ServerHarness::Quiet() const {
  const absl::Time end = absl::Now() + absl::Seconds(10);
  while (server_->engine().admission().inflight_transfers() > 0 ||
         server_->engine().admission().inflight_bytes() > 0 ||
         server_->buffers().bytes_in_use() > 0) {
    if (absl::Now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace kvbridge::server
