// A real kvbridged in this process, with synthetic artifacts, and a caller that speaks to it
// through generated code only: what it sends and checks is the contract, not our own codec.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include <spdlog/sinks/ostream_sink.h>

#include "core/base/clock.h"
#include "core/engine/local_transfer.h"
#include "grpcpp/channel.h"
#include "kvbridge/v1/admin.grpc.pb.h"
#include "kvbridge/v1/transfer.grpc.pb.h"
#include "server/log.h"
#include "server/server.h"
#include "tests/core/artifact/temp_dir.h"
#include "tests/core/device/random_map.h"

namespace kvbridge::server {

inline constexpr const char* kRoute = "small-to-large";

// Dense [layers, 2, tokens, heads, dim], as kv::DenseTileView reads it.
struct DenseCache {
  DenseCache(const model::KvGeometry& geometry, int64_t tokens);
  void Randomise(uint32_t seed);
  // All of one layer's keys or values for a range of tokens.
  std::string Rows(int32_t layer, kv::Component c, kv::TokenRange range) const;
  void SetRows(int32_t layer, kv::Component c, kv::TokenRange range, const std::string& rows);
  kv::KvView View();

  const model::KvGeometry geometry;
  const int64_t tokens;
  std::vector<std::byte> bytes;
};

// What a call gave.
struct CallResult {
  grpc::Status status;
  std::vector<v1::TransferEvent> events;  // without chunks
  int completed = 0;
  v1::Decision decision;
  std::unique_ptr<DenseCache> target;  // what the chunks said; the rest is 0xEE
};

struct HarnessOptions {
  device::MapSpec map;
  bool proven = true;  // the artifact carries passing evidence
  // Changes the configuration before the server is made.
  std::function<void(v1::Config*)> configure;
};

class ServerHarness {
 public:
  explicit ServerHarness(HarnessOptions options = {});

  Server& server() { return *server_; }
  const mapper::Mapper& mapper() const { return *mapper_; }
  const std::filesystem::path& artifact_dir() const { return artifact_dir_; }
  std::shared_ptr<grpc::Channel> Connect() const;
  std::string Log() { return log_text_.str(); }

  // A good header for `tokens` tokens, and its chunks: one per layer, component and 16 tokens.
  v1::TransferHeader Header(int64_t tokens) const;
  std::vector<v1::TransferChunk> Chunks(const DenseCache& source) const;

  // Sends all, half-closes, reads all. `context` may carry a deadline.
  CallResult Call(const v1::TransferHeader& header, const std::vector<v1::TransferChunk>& chunks,
                  grpc::ClientContext* context = nullptr) const;
  CallResult Send(const std::vector<v1::TransferRequest>& requests,
                  grpc::ClientContext* context = nullptr) const;

  // What the engine makes of `source` in process, asked as `header` asks or with Header().
  engine::Decision MapInProcess(DenseCache& source, DenseCache& target) const;
  engine::Decision MapInProcess(const v1::TransferHeader& header, const kv::KvView& source,
                                const kv::KvView& target) const;

  // grpc.health.v1's answer: "SERVING", "NOT_SERVING" or "NOT_FOUND".
  std::string GrpcHealth(const std::string& service) const;

  // Nothing of any transfer is left. False when that takes more than 10 seconds.
  bool Quiet() const;

 private:
  void Start(const HarnessOptions& options);

  artifact::TempDir dir_;
  std::filesystem::path artifact_dir_;
  std::shared_ptr<mapper::Mapper> mapper_;
  std::ostringstream log_text_;
  base::SystemClock clock_;
  std::unique_ptr<class Log> log_;
  std::unique_ptr<Server> server_;
};

// Sets the checksum as the contract asks.
void Seal(v1::TransferChunk* chunk);

}  // namespace kvbridge::server
