#include "server/server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include <sys/stat.h>

#include "core/base/status_macros.h"
#include "core/device/cpu/cpu_backend.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/impl/server_builder_option.h"
#include "grpcpp/impl/server_builder_plugin.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"
#include "proto/kvbridge/v1/chunk_codec.h"
#include "proto/kvbridge/v1/event_json.h"
#include "server/address.h"
#include "server/config_change.h"
#include "server/convert.h"
#include "server/convert_memory.h"
#include "server/grpc_time.h"
#include "server/guarded_port.h"
#include "server/pages.h"
#include "server/version.h"

namespace kvbridge::server {
namespace {

// The default limit of every client: a message that we accept is one that they can send.
constexpr int kMaxMessageBytes = 4 << 20;
// Of gRPC's own buffers for all connections together.
constexpr size_t kGrpcQuotaBytes = size_t{128} << 20;
constexpr int kMaxStreams = 1024;  // per connection
// Of one call's headers: a token, a trace, a deadline.
constexpr int kMaxMetadataBytes = 16 << 10;
// A service's name and little more.
constexpr int kMaxHealthMessageBytes = 4 << 10;
constexpr int kKeepaliveMs = 30000;
constexpr int kKeepaliveTimeoutMs = 20000;
// A client that pings more often is closed. Ours do every ten seconds, and peers every five.
constexpr int kMinPingIntervalMs = 2500;
// How often files that hold no certificates are looked at.
constexpr absl::Duration kFilePoll = absl::Seconds(1);
// How often waiting for transfers looks again, and how long streams that hold no transfer (idle,
// or health watches) may still take when the last transfer has ended.
constexpr absl::Duration kDrainPoll = absl::Milliseconds(20);
constexpr absl::Duration kIdleGrace = absl::Seconds(1);
// Callers that come now are told `draining`; once gRPC shuts down they'd only see a lost
// connection.
constexpr absl::Duration kRefusalWindow = absl::Milliseconds(200);

absl::StatusOr<std::optional<device::Isa>> ToIsa(const std::string& isa) {
  if (isa == "auto") return std::nullopt;
  constexpr std::pair<const char*, device::Isa> kIsas[] = {{"amx", device::Isa::kAmx},
                                                           {"avx512bf16", device::Isa::kAvx512Bf16},
                                                           {"avx2", device::Isa::kAvx2},
                                                           {"portable", device::Isa::kPortable}};
  for (const auto& [name, value] : kIsas) {
    if (isa == name) return value;
  }
  return absl::InvalidArgumentError(absl::StrCat("engine.isa: got \"", isa, "\""));
}

engine::Limits ToLimits(const v1::LimitsConfig& limits, std::shared_ptr<TenantShares> tenants) {
  return {.max_tokens = limits.max_tokens(),
          .max_request_bytes = static_cast<uint64_t>(limits.max_request_bytes()),
          .max_inflight_bytes = static_cast<uint64_t>(limits.max_inflight_bytes()),
          .max_inflight_transfers = limits.max_inflight_transfers(),
          .max_tenant_bytes = static_cast<uint64_t>(limits.max_tenant_bytes()),
          .tenant_bytes = [tenants = std::move(tenants)](absl::string_view name) {
            return tenants->InflightBytesOf(name);
          }};
}

std::vector<metrics::ReasonLabel> WireReasons() {
  std::vector<metrics::ReasonLabel> reasons;
  for (int value = 1; v1::Reason_IsValid(value); ++value) {
    const auto reason = static_cast<guard::Reason>(value);
    reasons.push_back({std::string(Name(reason)), std::string(Name(guard::ClassOf(reason)))});
  }
  return reasons;
}

std::vector<metrics::RpcMethod> AllMethods() {
  std::vector<metrics::RpcMethod> methods = KvBridgeMethods();
  for (metrics::RpcMethod& method : AdminMethods()) methods.push_back(std::move(method));
  for (metrics::RpcMethod& method : MemoryMethods()) methods.push_back(std::move(method));
  return methods;
}

metrics::ServerMetrics::Options MetricsOptions(const v1::Config& config,
                                               const std::string& backend) {
  metrics::ServerMetrics::Options options;
  for (const auto& route : config.routes()) options.pairs.push_back(route.name());
  options.reasons = WireReasons();
  options.methods = AllMethods();
  options.latency_buckets.assign(config.metrics().latency_buckets().begin(),
                                 config.metrics().latency_buckets().end());
  options.version = kVersion;
  options.revision = kRevision;
  options.compiler = kCompiler;
  options.backend = backend;
  options.queue_limit = base::WorkerPool::Options().max_jobs;
  options.memory_limit_bytes = static_cast<uint64_t>(config.limits().max_inflight_bytes());
  if (!config.memory().socket().empty()) {
    options.shm_limit_bytes = static_cast<uint64_t>(config.memory().max_bytes());
  }
  return options;
}

int Milliseconds(const google::protobuf::Duration& duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(ToDuration(duration)));
}

void ConfigureChannels(const v1::ListenConfig& listen, grpc::ServerBuilder* builder) {
  grpc::ResourceQuota quota("kvbridged");
  quota.Resize(kGrpcQuotaBytes);
  builder->SetResourceQuota(quota);
  builder->SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder->SetDefaultCompressionAlgorithm(GRPC_COMPRESS_NONE);
  // Two servers on one port would share its clients silently.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 1);
  builder->AddChannelArgument(GRPC_ARG_TCP_READ_CHUNK_SIZE, wire::kReadBytes);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kMinPingIntervalMs);
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  if (const int age = Milliseconds(listen.max_connection_age()); age > 0) {
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, age);
    builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS,
                                Milliseconds(listen.max_connection_age_grace()));
  }
}

// Leaves a server what it was given by hand: reflection would show itself on every listener.
class NoPlugins final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->clear();
  }
};

absl::Status CannotBind(absl::string_view setting, absl::string_view address) {
  return absl::UnavailableError(absl::StrCat(setting, ": expected an address to bind, got ",
                                             address,
                                             ": it is already in use, or is not this host's"));
}

std::vector<std::string> Named(const std::string& file) {
  if (file.empty()) return {};
  return {file};
}

// gRPC binds in order, sets the ports of those that it bound, and keeps the system's error to
// itself.
absl::Status CannotBind(const v1::ListenConfig& listen, const std::vector<int>& ports) {
  const auto failed = std::find(ports.begin(), ports.end(), 0) - ports.begin();
  if (failed == listen.grpc_size()) return absl::UnavailableError("gRPC did not start");
  return CannotBind("listen.grpc", listen.grpc(failed));
}

// gRPC keeps both switches for the whole process.
void EnablePlugins(bool reflection) {
  grpc::EnableDefaultHealthCheckService(true);
  static std::atomic<bool> registered{false};
  if (reflection && !registered.exchange(true)) {
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  }
}

}  // namespace

struct Server::Parts {
  std::shared_ptr<TenantShares> tenants;
  std::unique_ptr<base::WorkerPool> workers;
  std::shared_ptr<kv::BufferPool> buffers;
  std::unique_ptr<device::Backend> backend;
  std::unique_ptr<engine::TransferEngine> engine;
  std::unique_ptr<Tls> tls;
  std::unique_ptr<memory::MemoryRegistry> memory;
  Grants grants;
  ConfigSource source;
  std::unique_ptr<Peers> peers;
};

absl::StatusOr<std::unique_ptr<Server>> Server::Create(const LoadedConfig& loaded, Log* log,
                                                       ConfigSource source) {
  static const base::SystemClock* const clock = new base::SystemClock();
  const v1::Config& config = loaded.config;
  Parts parts;
  parts.tenants = std::make_shared<TenantShares>(config);
  KVB_ASSIGN_OR_RETURN(parts.workers,
                       base::WorkerPool::Create({.threads = config.engine().threads()}));
  parts.buffers =
      kv::BufferPool::Create(static_cast<uint64_t>(config.limits().max_inflight_bytes()));
  KVB_ASSIGN_OR_RETURN(const std::optional<device::Isa> isa, ToIsa(config.engine().isa()));
  KVB_ASSIGN_OR_RETURN(
      parts.backend, device::CpuBackend::Create({.isa = isa}, parts.workers.get(), parts.buffers));
  KVB_ASSIGN_OR_RETURN(
      parts.engine,
      engine::TransferEngine::Create(
          {.tile_tokens = config.engine().tile_tokens(),
           .tiles_in_flight = config.limits().tiles_in_flight(),
           .limits = ToLimits(config.limits(), parts.tenants),
           .tenant_weight = [tenants = parts.tenants](
                                absl::string_view name) { return tenants->WeightOf(name); }},
          {.pool = parts.workers.get(), .backend = parts.backend.get(), .clock = clock}));
  if (!config.listen().tls().cert_file().empty()) {
    KVB_ASSIGN_OR_RETURN(parts.tls, Tls::Create(config.listen().tls()));
  }
  if (!config.memory().socket().empty()) {
    KVB_ASSIGN_OR_RETURN(parts.memory,
                         memory::MemoryRegistry::Create(ToRegistryOptions(config), clock));
  }
  parts.source = std::move(source);
  KVB_ASSIGN_OR_RETURN(parts.grants, ReadGrants(config.auth()));
  for (const std::string& warning : parts.grants.warnings) log->Warn(warning);
  KVB_ASSIGN_OR_RETURN(parts.peers, Peers::Create(config));
  return std::unique_ptr<Server>(new Server(loaded, log, std::move(parts)));
}

Server::Server(const LoadedConfig& loaded, Log* log, Parts parts)
    : loaded_(loaded),
      config_(loaded_.config),
      source_(std::move(parts.source)),
      log_(*log),
      backend_name_(parts.backend->name()),
      tenants_(std::move(parts.tenants)),
      workers_(std::move(parts.workers)),
      buffers_(std::move(parts.buffers)),
      backend_(std::move(parts.backend)),
      engine_(std::move(parts.engine)),
      memory_(std::move(parts.memory)),
      peers_(std::move(parts.peers)),
      liveness_(workers_.get(), &clock_),
      metrics_([this] {
        auto options = MetricsOptions(config_, backend_name_);
        options.saturation = [this] { return Saturation(); };
        return options;
      }()),
      events_([this](const v1::WatchEventsResponse& event) { Emit(event); }),
      recorder_(&metrics_, &events_, &reports_),
      store_(backend_.get(), workers_.get(), &clock_),
      routes_(config_, {.store = &store_,
                        .engine = engine_.get(),
                        .metrics = &metrics_,
                        .log = log,
                        .clock = &clock_,
                        .changed =
                            [this](const RouteChange& change) {
                              v1::WatchEventsResponse event;
                              *event.mutable_route_event() = ToEvent(change, clock_.WallNow());
                              events_.Offer(std::move(event));
                            }}),
      state_(&routes_, &metrics_, log),
      kv_bridge_({.transfers = {.routes = &routes_,
                                .engine = engine_.get(),
                                .buffers = buffers_,
                                .memory = memory_.get(),
                                .peers = peers_.get(),
                                .clock = &clock_,
                                .recorder = &recorder_,
                                .draining = &draining_,
                                .idle_timeout = ToDuration(config_.limits().idle_timeout())},
                  .state = &state_,
                  .metrics = &metrics_,
                  .events = &hub_,
                  .reports = &reports_,
                  .version = kVersion,
                  .backend = backend_name_,
                  .memory_socket = config_.memory().socket(),
                  .named_shm = config_.memory().named_shm_size() > 0}),
      admin_({.routes = &routes_,
              .tasks = &tasks_,
              .recorder = &recorder_,
              .clock = &clock_,
              .drain = [this] { RequestDrain(/*skip_delay=*/false); }}),
      memory_service_({.registry = memory_.get(),
                       .tasks = &memory_tasks_,
                       .recorder = &recorder_,
                       .clock = &clock_}),
      tls_(std::move(parts.tls)),
      status_({.routes = &routes_,
               .state = &state_,
               .engine = engine_.get(),
               .memory = memory_.get(),
               .tls = tls_.get(),
               .events = &hub_,
               .activity = &activity_,
               .clock = &clock_,
               .queue_limit = base::WorkerPool::Options().max_jobs,
               .region_limit_bytes = static_cast<uint64_t>(config_.memory().max_bytes()),
               .backend = backend_name_}),
      authorizer_(std::move(parts.grants), &metrics_.operations()),
      running_(std::make_shared<const LoadedConfig>(loaded)),
      watch_(WatchedFiles()) {
  metrics_.operations().ConfigRead(clock_.WallNow());
  ReportTls();
  routes_.OnChange([this] { state_.Refresh(); });
}

Server::~Server() {
  RequestDrain(/*skip_delay=*/true);
  Wait();
}

absl::Status Server::Start() {
  KVB_RETURN_IF_ERROR(StartSideSocket());
  KVB_RETURN_IF_ERROR(StartGrpc());
  KVB_RETURN_IF_ERROR(StartHealth());
  KVB_RETURN_IF_ERROR(StartAdmin());
  log_.Info("serving", {{"grpc", grpc_addresses_},
                        {"tls", tls_ != nullptr},
                        {"admin", admin_address_},
                        {"version", kVersion},
                        {"backend", backend_name_},
                        {"threads", workers_->threads()}});
  if (config_.routes().empty()) {
    log_.Warn("no routes are configured: every transfer will fall back");
  }
  LoadArtifacts();
  return absl::OkStatus();
}

absl::Status Server::StartGrpc() {
  EnablePlugins(config_.listen().reflection());
  grpc::ServerBuilder builder;
  ConfigureChannels(config_.listen(), &builder);
  std::vector<int> ports(config_.listen().grpc_size(), 0);
  for (int i = 0; i < config_.listen().grpc_size(); ++i) {
    const std::string& text = config_.listen().grpc(i);
    KVB_ASSIGN_OR_RETURN(const Address address, Address::Parse(text));
    if (address.is_unix()) KVB_RETURN_IF_ERROR(RemoveStaleSocket(address.path));
    const bool plaintext = tls_ == nullptr || address.is_unix();
    auto* credentials =
        plaintext ? grpc_insecure_server_credentials_create() : tls_->NewCredentials();
    builder.AddListeningPort(text, GuardedPort(credentials, &authorizer_), &ports[i]);
  }
  builder.RegisterService(&kv_bridge_);
  builder.RegisterService(&admin_);
  if (memory_ != nullptr) builder.RegisterService(&memory_service_);
  const mode_t before = umask(0117);  // sockets are for the owner and its group
  grpc_ = builder.BuildAndStart();
  umask(before);
  if (grpc_ == nullptr) return CannotBind(config_.listen(), ports);
  for (int i = 0; i < config_.listen().grpc_size(); ++i) {
    const std::string& text = config_.listen().grpc(i);
    const bool any_port = !Address::Parse(text)->is_unix() && Address::Parse(text)->port == 0;
    grpc_addresses_.push_back(
        any_port ? absl::StrCat(text.substr(0, text.rfind(':')), ":", ports[i]) : text);
  }
  state_.ServeHealth(grpc_->GetHealthCheckService());
  return absl::OkStatus();
}

absl::Status Server::StartHealth() {
  const std::string& address = config_.listen().health();
  if (address.empty()) return absl::OkStatus();
  grpc::ServerBuilder builder;
  builder.SetOption(std::make_unique<NoPlugins>());
  // gRPC serves its own health service only beside another.
  builder.RegisterCallbackGenericService(&unimplemented_);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(kMaxHealthMessageBytes);
  int port = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
  health_ = builder.BuildAndStart();
  if (health_ == nullptr || port == 0) return CannotBind("listen.health", address);
  health_address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
  state_.ServeHealth(health_->GetHealthCheckService());
  return absl::OkStatus();
}

absl::Status Server::StartSideSocket() {
  if (memory_ == nullptr) return absl::OkStatus();
  const v1::MemoryConfig& memory = config_.memory();
  KVB_ASSIGN_OR_RETURN(side_socket_,
                       memory::SideSocket::Start({.path = memory.socket(),
                                                  .allowed_uids = {memory.allowed_uids().begin(),
                                                                   memory.allowed_uids().end()}},
                                                 memory_.get()));
  return absl::OkStatus();
}

absl::Status Server::StartAdmin() {
  if (config_.listen().admin() == "off") return absl::OkStatus();
  KVB_ASSIGN_OR_RETURN(const Address address, Address::Parse(config_.listen().admin()));
  KVB_ASSIGN_OR_RETURN(
      http_,
      AdminHttp::Start(address.host, address.port,
                       {.metrics = [this] { return metrics_.Scrape(); },
                        .live = [this] { return liveness_.Check(); },
                        .ready = [this] { return state_.ready(); },
                        .version = [this] { return VersionPage(backend_name_); },
                        .config = [this] { return PrintJson(*running()); },
                        .artifacts = [this] { return ArtifactsPage(routes_); },
                        .events = [this] { return EventsPage(hub_.Recent()); },
                        .status = [this](const StatusView& view) { return status_.Page(view); }}));
  admin_address_ = absl::StrCat(address.host, ":", http_->port());
  return absl::OkStatus();
}

void Server::LoadLater(const std::string& route) {
  (void)tasks_.Post([this, route] {
    if (!draining_.load()) (void)routes_.Load(route, "");
  });
}

void Server::LoadArtifacts() {
  for (const std::string& name : routes_.names()) LoadLater(name);
  (void)tasks_.Post([this] { state_.Started(); });
}

void Server::Emit(const v1::WatchEventsResponse& event) {
  const uint64_t lost = log_.lost();
  log_.Event(event.has_event() ? "decision" : "route", wire::EventJson(event));
  if (log_.lost() == lost) metrics_.EventWritten("log");
  if (event.has_event()) {
    const bool applied = event.event().outcome() == v1::OUTCOME_APPLIED;
    activity_.Count(event.event().pair(), wire::TimeOf(event.event().time()),
                    {.applied = applied ? 1 : 0,
                     .fell_back = applied ? 0 : 1,
                     .tokens = event.event().covered_tokens()});
  }
  hub_.Publish(event);
}

// --- certificates and tokens

std::vector<Watched> Server::WatchedFiles() {
  std::vector<Watched> watched;
  if (tls_ != nullptr) {
    const v1::TlsConfig& tls = config_.listen().tls();
    watched.push_back({.files = [&tls] { return TlsFiles(tls); },
                       .interval = ToDuration(tls.refresh_interval()),
                       .on_change = [this] { ReloadTls(); }});
  }
  watched.push_back({.files = [this] { return Named(running()->config.auth().tokens_file()); },
                     .interval = kFilePoll,
                     .on_change = [this] { ReloadGrants(); }});
  if (source_.read != nullptr) {
    watched.push_back({.files = [this] { return Named(source_.file); },
                       .interval = kFilePoll,
                       .on_change = [this] { ReloadConfig(); }});
  }
  return watched;
}

void Server::Reload() { watch_.Kick(); }

void Server::ReloadTls() {
  const auto changed = tls_->Reload();
  if (!changed.ok()) {
    log_.Error("the certificates in use are kept",
               {{"error", std::string(changed.status().message())}});
  } else if (*changed) {
    log_.Info("certificates were replaced");
    ReportTls();
  }
}

void Server::ReloadGrants() {
  auto grants = ReadGrants(running()->config.auth());
  if (grants.ok()) return TakeGrants(*std::move(grants));
  log_.Error("the tokens in use are kept", {{"error", std::string(grants.status().message())}});
}

void Server::TakeGrants(Grants grants) {
  for (const std::string& warning : grants.warnings) log_.Warn(warning);
  log_.Info("grants were read", {{"tokens", grants.tokens.size()}, {"names", grants.names.size()}});
  authorizer_.Replace(std::move(grants));
}

void Server::ReportTls() {
  if (tls_ == nullptr) return;
  const TlsMaterial material = tls_->material();
  metrics_.operations().CertificateExpires("server", material.expires);
  if (material.client_ca_expires.has_value()) {
    metrics_.operations().CertificateExpires("ca", *material.client_ca_expires);
  }
  for (const std::string& warning : TlsWarnings(material, clock_.WallNow())) log_.Warn(warning);
}

// --- configuration

std::shared_ptr<const LoadedConfig> Server::running() {
  base::MutexLock lock(&running_mutex_);
  return running_;
}

void Server::ReloadConfig() {
  const absl::Status taken = TakeConfig();
  if (taken.ok()) return metrics_.operations().ConfigReloaded(clock_.WallNow());
  metrics_.operations().ConfigRefused();
  log_.Error("the configuration in use is kept", {{"error", std::string(taken.message())}});
}

// Nothing changes before all of it has been read and checked.
absl::Status Server::TakeConfig() {
  KVB_ASSIGN_OR_RETURN(const LoadedConfig next, source_.read());
  KVB_ASSIGN_OR_RETURN(Grants grants, ReadGrants(next.config.auth()));
  ConfigChange change = TakeWhatCanChange(*running(), next);
  const v1::Config& config = change.effective.config;
  log_.SetLevel(config.log().level());
  TakeGrants(std::move(grants));
  tenants_->Apply(config);
  const std::vector<std::string> loading = routes_.Apply(config);
  for (const std::string& route : loading) LoadLater(route);
  log_.Info("the configuration was read", {{"routes", config.routes_size()}, {"loading", loading}});
  if (!change.need_restart.empty()) {
    log_.Warn("settings that need a restart stay as they were",
              {{"settings", change.need_restart}});
  }
  base::MutexLock lock(&running_mutex_);
  running_ = std::make_shared<const LoadedConfig>(std::move(change.effective));
  return absl::OkStatus();
}

metrics::Saturation Server::Saturation() const {
  return {.inflight_transfers = engine_->admission().inflight_transfers(),
          .queue_depth = static_cast<int64_t>(engine_->queued_units()),
          .memory_used_bytes = engine_->admission().inflight_bytes(),
          .shm_used_bytes = memory_ == nullptr ? 0 : memory_->use().mapped_bytes,
          .events_dropped = events_.dropped() + log_.lost(),
          .watch_events_dropped = hub_.dropped(),
          .watch_events_sent = hub_.sent()};
}

// --- stopping

void Server::RequestDrain(bool skip_delay) {
  base::MutexLock lock(&drain_mutex_);
  ++drain_requests_;
  skip_delay_ = skip_delay_ || skip_delay;
  drain_changed_.SignalAll();
}

bool Server::DrainSkipsDelay() { return skip_delay_ || drain_requests_ > 1; }

void Server::Wait() {
  if (stopped_) return;
  {
    base::MutexLock lock(&drain_mutex_);
    while (drain_requests_ == 0) drain_changed_.Wait(&drain_mutex_);
  }
  Drain();
  stopped_ = true;
}

void Server::Drain() {
  state_.Draining();
  {
    // Not ready, but serving: load balancers notice late.
    base::MutexLock lock(&drain_mutex_);
    const absl::Time end = clock_.Now() + ToDuration(config_.drain().delay());
    while (!DrainSkipsDelay() && clock_.Now() < end) {
      drain_changed_.WaitFor(&drain_mutex_, end - clock_.Now());
    }
  }
  draining_.store(true);
  const absl::Time deadline = clock_.Now() + ToDuration(config_.drain().deadline());
  WaitForTransfers(clock_.Now() + kRefusalWindow, deadline);
  memory_service_.EndSessions();
  const absl::Time last = std::min(deadline, clock_.Now() + kIdleGrace);
  hub_.Close();
  for (grpc::Server* server : {grpc_.get(), health_.get()}) {
    if (server != nullptr) server->Shutdown(ToGrpcTime(clock_, last));
  }
  if (side_socket_ != nullptr) side_socket_->Stop();
  // A worker may still be inside a transfer that was cancelled; it uses what is destroyed next.
  workers_->Stop();
  tasks_.Stop();
  memory_tasks_.Stop();
  events_.Stop();
  log_.Info("stopped");
  log_.Flush();
}

void Server::WaitForTransfers(absl::Time earliest, absl::Time latest) {
  base::MutexLock lock(&drain_mutex_);
  while ((clock_.Now() < earliest ||
          engine_->admission().inflight_transfers() + peers_->inflight_transfers() > 0) &&
         clock_.Now() < latest) {
    drain_changed_.WaitFor(&drain_mutex_, kDrainPoll);
  }
}

}  // namespace kvbridge::server
