// kvbridged without its command line: everything it is made of, started and stopped in order.
//
//   Create   makes the parts; nothing is read or bound
//   Start    binds the addresses and begins to serve; artifacts are loaded in the background
//   RequestDrain, then Wait: not ready -> delay -> refuse new transfers -> finish those in flight
//   or
//            stop them at the deadline -> flush events
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "core/base/clock.h"
#include "core/base/mutex.h"
#include "core/base/worker_pool.h"
#include "core/device/backend.h"
#include "core/engine/transfer_engine.h"
#include "core/kv/buffer_pool.h"
#include "core/memory/memory_registry.h"
#include "core/memory/side_socket.h"
#include "core/metrics/server_metrics.h"
#include "core/store/mapper_store.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server.h"
#include "server/activity.h"
#include "server/admin_http.h"
#include "server/admin_service.h"
#include "server/auth.h"
#include "server/config.h"
#include "server/decision_recorder.h"
#include "server/event_hub.h"
#include "server/event_log.h"
#include "server/expected_reports.h"
#include "server/file_watch.h"
#include "server/kv_bridge_service.h"
#include "server/liveness.h"
#include "server/log.h"
#include "server/memory_service.h"
#include "server/peers.h"
#include "server/route_table.h"
#include "server/server_state.h"
#include "server/status_source.h"
#include "server/task_thread.h"
#include "server/tenant_shares.h"
#include "server/tls.h"

namespace kvbridge::server {

// Thread contract: Create, Start and Wait by one thread, the rest by any.
class Server {
 public:
  // Where the configuration came from, to read it again.
  struct ConfigSource {
    std::string file;  // watched; empty = none
    std::function<absl::StatusOr<LoadedConfig>()> read;
  };
  // Without a source the configuration stays as it is.
  static absl::StatusOr<std::unique_ptr<Server>> Create(const LoadedConfig& loaded, Log* log,
                                                        ConfigSource source = {});
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // UNAVAILABLE names the address that cannot be bound.
  absl::Status Start();

  // As they were bound: "127.0.0.1:41235", "unix:/run/k.sock".
  const std::vector<std::string>& grpc_addresses() const { return grpc_addresses_; }
  // Empty when admin HTTP is off.
  const std::string& admin_address() const { return admin_address_; }
  // Of the plaintext health listener; empty when there is none.
  const std::string& health_address() const { return health_address_; }

  // Whether the workers still get anywhere.
  bool alive() { return liveness_.Check().ok; }

  // Reads configuration, certificates and tokens again, soon. What does not pass its checks changes
  // nothing, is logged and counted.
  void Reload();

  // A client and a TLS listener did not come to terms.
  void HandshakeFailed() { metrics_.operations().AuthFailed("handshake"); }

  // A second request, and the first with `skip_delay`, cut the delay short.
  void RequestDrain(bool skip_delay);

  // Blocks until a requested drain is complete.
  void Wait();

  const ServerState& state() const { return state_; }
  const engine::TransferEngine& engine() const { return *engine_; }
  const kv::BufferPool& buffers() const { return *buffers_; }
  memory::MemoryRegistry* memory() { return memory_.get(); }  // null: no region plane
  std::string Metrics() { return metrics_.Scrape(); }

 private:
  struct Parts;  // what can fail to be made
  Server(const LoadedConfig& loaded, Log* log, Parts parts);
  void Emit(const v1::WatchEventsResponse& event);

  absl::Status StartGrpc();
  absl::Status StartHealth();
  absl::Status StartSideSocket();
  std::vector<Watched> WatchedFiles();
  void ReloadTls();
  void ReportTls();
  void ReloadGrants();
  void ReloadConfig();
  absl::Status TakeConfig();
  void TakeGrants(Grants grants);
  std::shared_ptr<const LoadedConfig> running();
  void LoadLater(const std::string& route);
  absl::Status StartAdmin();
  void LoadArtifacts();
  void Drain();
  bool DrainSkipsDelay() ABSL_EXCLUSIVE_LOCKS_REQUIRED(drain_mutex_);
  // Not before `earliest`, not after `latest`.
  void WaitForTransfers(absl::Time earliest, absl::Time latest);
  metrics::Saturation Saturation() const;

  const LoadedConfig loaded_;  // as it started
  const v1::Config& config_;   // what it needs a restart for is read here
  const ConfigSource source_;
  Log& log_;
  const base::SystemClock clock_;
  const std::string backend_name_;

  // In order of construction: each uses only what stands above it.
  const std::shared_ptr<TenantShares> tenants_;
  const std::unique_ptr<base::WorkerPool> workers_;
  const std::shared_ptr<kv::BufferPool> buffers_;
  const std::unique_ptr<device::Backend> backend_;
  const std::unique_ptr<engine::TransferEngine> engine_;
  const std::unique_ptr<memory::MemoryRegistry> memory_;  // null: no region plane
  const std::unique_ptr<Peers> peers_;
  Liveness liveness_;
  metrics::ServerMetrics metrics_;
  EventHub hub_;
  Activity activity_;
  ExpectedReports reports_;
  EventLog events_;
  DecisionRecorder recorder_;
  store::MapperStore store_;
  RouteTable routes_;
  ServerState state_;
  TaskThread tasks_;         // artifacts
  TaskThread memory_tasks_;  // regions: not behind an artifact's minute
  std::atomic<bool> draining_{false};
  KvBridgeService kv_bridge_;
  AdminService admin_;
  MemoryService memory_service_;  // served where there is memory_
  std::unique_ptr<memory::SideSocket> side_socket_;
  const std::unique_ptr<Tls> tls_;  // null: plaintext
  const StatusSource status_;
  Authorizer authorizer_;
  grpc::CallbackGenericService unimplemented_;
  std::unique_ptr<grpc::Server> grpc_;
  std::unique_ptr<grpc::Server> health_;
  std::unique_ptr<AdminHttp> http_;
  std::vector<std::string> grpc_addresses_;
  std::string admin_address_;
  std::string health_address_;

  base::Mutex drain_mutex_;
  base::CondVar drain_changed_;
  int drain_requests_ ABSL_GUARDED_BY(drain_mutex_) = 0;
  bool skip_delay_ ABSL_GUARDED_BY(drain_mutex_) = false;
  bool stopped_ = false;

  base::Mutex running_mutex_;
  std::shared_ptr<const LoadedConfig> running_ ABSL_GUARDED_BY(running_mutex_);

  FileWatch watch_;  // calls back while it lives
};

}  // namespace kvbridge::server
