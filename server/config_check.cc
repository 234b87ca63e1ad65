// What a configuration must satisfy beyond its types.
#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "core/base/exact.h"
#include "core/memory/named_shm.h"
#include "core/metrics/metric_names.h"
#include "server/address.h"
#include "server/config.h"
#include "server/method_group.h"

namespace kvbridge::server {
namespace {

constexpr int kMaxRoutes = 64;
constexpr int kMaxTenants = 256;
constexpr int kMaxPeers = 64;

// Collects what is wrong, so that an operator sees all of it at once.
class Problems {
 public:
  template <typename T>
  void Expect(bool good, absl::string_view path, absl::string_view expected, const T& got) {
    if (!good)
      lines_.push_back(absl::StrCat(path, ": expected ", expected, ", got ", base::Exact(got)));
  }
  void Quoted(bool good, absl::string_view path, absl::string_view expected,
              absl::string_view got) {
    Expect(good, path, expected, absl::StrCat("\"", got.substr(0, 80), "\""));
  }
  absl::Status status() const {
    if (lines_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrJoin(lines_, "\n"));
  }

 private:
  std::vector<std::string> lines_;
};

double Seconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) + duration.nanos() * 1e-9;
}

void CheckTls(const v1::TlsConfig& tls, Problems& problems) {
  const bool on = !tls.cert_file().empty();
  problems.Quoted(on == !tls.key_file().empty(), "listen.tls.key_file",
                  "both cert_file and key_file or neither", tls.key_file());
  problems.Quoted(on || tls.client_ca_file().empty(), "listen.tls.client_ca_file",
                  "a file beside listen.tls.cert_file only", tls.client_ca_file());
  problems.Expect(Seconds(tls.refresh_interval()) > 0, "listen.tls.refresh_interval",
                  "more than 0s", Seconds(tls.refresh_interval()));
}

void CheckGrpcAddresses(const v1::ListenConfig& listen, Problems& problems) {
  problems.Expect(listen.grpc_size() > 0, "listen.grpc", "at least one address", 0);
  std::set<std::string> seen;
  const bool off_host = listen.allow_plaintext_off_host() || !listen.tls().cert_file().empty();
  for (int i = 0; i < listen.grpc_size(); ++i) {
    const std::string path = absl::StrCat("listen.grpc[", i, "]");
    const std::string& text = listen.grpc(i);
    const auto address = Address::Parse(text);
    problems.Quoted(address.ok(), path, "host:port or unix:/path", text);
    if (address.ok()) {
      problems.Quoted(off_host || address->is_local(), path,
                      "a loopback or unix address (other hosts need listen.tls, or "
                      "listen.allow_plaintext_off_host)",
                      text);
    }
    const bool any_port = address.ok() && address->port == 0 && !address->is_unix();
    problems.Quoted(any_port || seen.insert(text).second, path, "an address listed once", text);
  }
}

void CheckListen(const v1::ListenConfig& listen, Problems& problems) {
  CheckGrpcAddresses(listen, problems);
  CheckTls(listen.tls(), problems);
  if (!listen.health().empty()) {
    const auto health = Address::Parse(listen.health());
    problems.Quoted(health.ok() && !health->is_unix(), "listen.health", "host:port or nothing",
                    listen.health());
  }
  problems.Expect(Seconds(listen.max_connection_age()) >= 0, "listen.max_connection_age",
                  "at least 0s", Seconds(listen.max_connection_age()));
  problems.Expect(Seconds(listen.max_connection_age_grace()) > 0, "listen.max_connection_age_grace",
                  "more than 0s", Seconds(listen.max_connection_age_grace()));
  if (listen.admin() == "off") return;
  const auto admin = Address::Parse(listen.admin());
  problems.Quoted(admin.ok() && !admin->is_unix(), "listen.admin", "host:port or off",
                  listen.admin());
  if (admin.ok()) {
    problems.Quoted(listen.allow_plaintext_off_host() || admin->is_local(), "listen.admin",
                    "a loopback address (plaintext to other hosts needs "
                    "listen.allow_plaintext_off_host)",
                    listen.admin());
  }
}

bool IsTenantName(absl::string_view name) {
  if (name.empty() || name.size() > 128) return false;
  return std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isgraph(c); });
}

void CheckMemory(const v1::MemoryConfig& memory, Problems& problems) {
  const std::string& socket = memory.socket();
  problems.Quoted(socket.empty() || Address::Parse(absl::StrCat("unix:", socket)).ok(),
                  "memory.socket", "a path of at most 107 bytes", socket);
  problems.Expect(memory.max_bytes() > 0, "memory.max_bytes", "at least 1", memory.max_bytes());
  problems.Expect(memory.max_tenant_bytes() >= 0, "memory.max_tenant_bytes", "at least 0",
                  memory.max_tenant_bytes());
  problems.Expect(memory.max_sessions() > 0, "memory.max_sessions", "at least 1",
                  memory.max_sessions());
  problems.Expect(Seconds(memory.lease()) > 0, "memory.lease", "more than 0s",
                  Seconds(memory.lease()));
  problems.Expect(Seconds(memory.ticket_life()) > 0, "memory.ticket_life", "more than 0s",
                  Seconds(memory.ticket_life()));
}

void CheckNamedShm(const v1::MemoryConfig& memory, Problems& problems) {
  const int count = memory.named_shm_size();
  problems.Expect(count <= kMaxTenants, "memory.named_shm",
                  absl::StrCat("at most ", kMaxTenants, " entries"), count);
  problems.Expect(count == 0 || !memory.socket().empty(), "memory.named_shm",
                  "none without memory.socket", count);
  for (int i = 0; i < std::min(count, kMaxTenants); ++i) {
    const v1::NamedShmConfig& shm = memory.named_shm(i);
    const std::string path = absl::StrCat("memory.named_shm[", i, "]");
    problems.Quoted(shm.tenant().empty() || IsTenantName(shm.tenant()), path + ".tenant",
                    "nothing, or a tenant's name", shm.tenant());
    problems.Quoted(memory::IsShmPrefix(shm.prefix()), path + ".prefix",
                    "1 to 64 characters of [A-Za-z0-9._-], first no dot", shm.prefix());
    for (int j = 0; j < i; ++j) {
      const std::string& other = memory.named_shm(j).prefix();
      problems.Quoted(
          !absl::StartsWith(shm.prefix(), other) && !absl::StartsWith(other, shm.prefix()),
          path + ".prefix", absl::StrCat("names apart from named_shm[", j, "]'s"), shm.prefix());
    }
  }
}

void CheckUcx(const v1::UcxConfig& ucx, Problems& problems) {
  if (!ucx.listen().empty()) {
    const auto address = Address::Parse(ucx.listen());
    problems.Quoted(address.ok() && !address->is_unix(), "ucx.listen", "host:port or nothing",
                    ucx.listen());
    if (address.ok()) {
      problems.Quoted(ucx.allow_plaintext_off_host() || address->is_local(), "ucx.listen",
                      "a loopback address (other hosts need ucx.allow_plaintext_off_host)",
                      ucx.listen());
    }
  }
  problems.Expect(ucx.frames_in_flight() >= 1 && ucx.frames_in_flight() <= 64,
                  "ucx.frames_in_flight", "1 to 64", ucx.frames_in_flight());
  problems.Expect(Seconds(ucx.timeout()) > 0, "ucx.timeout", "more than 0s",
                  Seconds(ucx.timeout()));
}

void CheckPeers(const v1::Config& config, Problems& problems) {
  problems.Expect(config.peers_size() <= kMaxPeers, "peers",
                  absl::StrCat("at most ", kMaxPeers, " peers"), config.peers_size());
  std::set<std::string> names;
  for (int i = 0; i < std::min(config.peers_size(), kMaxPeers); ++i) {
    const v1::PeerConfig& peer = config.peers(i);
    const std::string path = absl::StrCat("peers[", i, "]");
    problems.Quoted(!peer.name().empty() && names.insert(peer.name()).second, path + ".name",
                    "a name used once", peer.name());
    const auto address = Address::Parse(peer.address());
    problems.Quoted(address.ok(), path + ".address", "host:port or unix:/path", peer.address());
    problems.Quoted(peer.cert_file().empty() == peer.key_file().empty(), path + ".key_file",
                    "both cert_file and key_file or neither", peer.key_file());
    if (!address.ok() || !peer.ca_file().empty()) continue;
    problems.Quoted(
        config.listen().allow_plaintext_off_host() || address->is_local(), path + ".ca_file",
        "a file for a peer on another host (or listen.allow_plaintext_off_host)", peer.ca_file());
  }
}

void CheckTenants(const v1::Config& config, Problems& problems) {
  problems.Expect(config.tenants_size() <= kMaxTenants, "tenants",
                  absl::StrCat("at most ", kMaxTenants, " tenants"), config.tenants_size());
  std::set<std::string> names;
  for (int i = 0; i < std::min(config.tenants_size(), kMaxTenants); ++i) {
    const v1::TenantConfig& tenant = config.tenants(i);
    const std::string path = absl::StrCat("tenants[", i, "]");
    problems.Quoted(IsTenantName(tenant.name()), path + ".name",
                    "1 to 128 printable characters without spaces", tenant.name());
    problems.Quoted(names.insert(tenant.name()).second, path + ".name", "a name used once",
                    tenant.name());
    problems.Expect(tenant.weight() > 0 && tenant.weight() <= 1000, path + ".weight",
                    "a number above 0, at most 1000", tenant.weight());
    problems.Expect(tenant.max_inflight_bytes() >= 0, path + ".max_inflight_bytes", "at least 0",
                    tenant.max_inflight_bytes());
    problems.Expect(tenant.max_memory_bytes() >= 0, path + ".max_memory_bytes", "at least 0",
                    tenant.max_memory_bytes());
  }
}

void CheckAuth(const v1::Config& config, Problems& problems) {
  const v1::AuthConfig& auth = config.auth();
  std::set<std::string> names;
  problems.Expect(auth.san_size() == 0 || !config.listen().tls().client_ca_file().empty(),
                  "auth.san", "none without listen.tls.client_ca_file", auth.san_size());
  for (int i = 0; i < auth.san_size(); ++i) {
    const v1::SanGrant& grant = auth.san(i);
    const std::string path = absl::StrCat("auth.san[", i, "]");
    problems.Quoted(!grant.name().empty(), path + ".name", "a DNS name, URI or address",
                    grant.name());
    problems.Quoted(names.insert(grant.name()).second, path + ".name", "a name used once",
                    grant.name());
    problems.Quoted(grant.tenant().empty() || IsTenantName(grant.tenant()), path + ".tenant",
                    "printable characters without spaces", grant.tenant());
    problems.Expect(grant.groups_size() > 0, path + ".groups", "at least one group", 0);
    for (const std::string& group : grant.groups()) {
      problems.Quoted(ParseMethodGroup(group).has_value(), path + ".groups",
                      "transfer, plan, memory or admin", group);
    }
  }
}

void CheckLimits(const v1::LimitsConfig& limits, Problems& problems) {
  constexpr const char* kPositive = "at least 1";
  problems.Expect(limits.max_tokens() > 0, "limits.max_tokens", kPositive, limits.max_tokens());
  problems.Expect(limits.max_request_bytes() > 0, "limits.max_request_bytes", kPositive,
                  limits.max_request_bytes());
  problems.Expect(limits.max_inflight_bytes() > 0, "limits.max_inflight_bytes", kPositive,
                  limits.max_inflight_bytes());
  problems.Expect(limits.max_inflight_transfers() > 0, "limits.max_inflight_transfers", kPositive,
                  limits.max_inflight_transfers());
  problems.Expect(limits.max_tenant_bytes() >= 0, "limits.max_tenant_bytes", "at least 0",
                  limits.max_tenant_bytes());
  problems.Expect(limits.tiles_in_flight() >= 1 && limits.tiles_in_flight() <= 64,
                  "limits.tiles_in_flight", "1 to 64", limits.tiles_in_flight());
  problems.Expect(Seconds(limits.idle_timeout()) > 0, "limits.idle_timeout", "more than 0s",
                  Seconds(limits.idle_timeout()));
}

bool IsRouteName(absl::string_view name) {
  if (name.empty() || name.size() > 63) return false;
  for (char c : name) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '.' && c != '_' && c != '-') {
      return false;
    }
  }
  return true;
}

void CheckPolicy(const v1::PolicyConfig& policy, const std::string& path, Problems& problems) {
  problems.Expect(policy.max_abs() > 0, path + ".max_abs", "a number above 0", policy.max_abs());
  problems.Expect(policy.max_covered_tokens() >= 0, path + ".max_covered_tokens", "at least 0",
                  policy.max_covered_tokens());
  problems.Expect(policy.min_covered_tokens() >= 1, path + ".min_covered_tokens", "at least 1",
                  policy.min_covered_tokens());
  problems.Expect(policy.native_tail() >= 1, path + ".native_tail", "at least 1",
                  policy.native_tail());
  problems.Expect(policy.max_hops() >= 1, path + ".max_hops", "at least 1", policy.max_hops());
  problems.Expect(policy.shadow_rate() >= 0 && policy.shadow_rate() <= 1, path + ".shadow_rate",
                  "0 to 1", policy.shadow_rate());
}

void CheckCircuit(const v1::CircuitConfig& circuit, const std::string& path, Problems& problems) {
  problems.Expect(Seconds(circuit.window()) > 0, path + ".window", "more than 0s",
                  Seconds(circuit.window()));
  problems.Expect(circuit.min_transfers() >= 1, path + ".min_transfers", "at least 1",
                  circuit.min_transfers());
  problems.Expect(circuit.max_bad_share() >= 0 && circuit.max_bad_share() <= 1,
                  path + ".max_bad_share", "0 to 1", circuit.max_bad_share());
  problems.Expect(Seconds(circuit.open_for()) > 0, path + ".open_for", "more than 0s",
                  Seconds(circuit.open_for()));
  problems.Expect(circuit.probes() >= 1, path + ".probes", "at least 1", circuit.probes());
}

void CheckQuality(const v1::QualityConfig& quality, const std::string& path, Problems& problems) {
  problems.Expect(quality.margin() >= 1 && quality.margin() <= 100, path + ".margin", "1 to 100",
                  quality.margin());
  problems.Expect(quality.false_alarm_reports() >= 100, path + ".false_alarm_reports",
                  "at least 100", quality.false_alarm_reports());
}

void CheckDrill(const v1::DrillConfig& drill, const std::string& path, Problems& problems) {
  problems.Expect(drill.share() >= 0 && drill.share() <= 1, path + ".share", "0 to 1",
                  drill.share());
  problems.Expect(drill.share() == 0 || drill.reason() != v1::REASON_UNSPECIFIED, path + ".reason",
                  "a reason beside a share above 0", "nothing");
}

void CheckRoutes(const v1::Config& config, Problems& problems) {
  problems.Expect(config.routes_size() <= kMaxRoutes, "routes",
                  absl::StrCat("at most ", kMaxRoutes, " routes"), config.routes_size());
  if (config.routes_size() > kMaxRoutes) return;
  std::set<std::string> names;
  for (int i = 0; i < config.routes_size(); ++i) {
    const v1::RouteConfig& route = config.routes(i);
    const std::string path = absl::StrCat("routes[", i, "]");
    problems.Quoted(IsRouteName(route.name()), path + ".name", "1 to 63 characters of [a-z0-9._-]",
                    route.name());
    problems.Quoted(names.insert(route.name()).second, path + ".name", "a name used once",
                    route.name());
    problems.Quoted(route.name() != metrics::kOtherPair, path + ".name",
                    absl::StrCat("another name than ", metrics::kOtherPair), route.name());
    problems.Quoted(!route.artifact().empty(), path + ".artifact", "a folder", route.artifact());
    problems.Quoted(route.source_config().empty() == route.target_config().empty(),
                    path + ".target_config", "both source_config and target_config or neither",
                    route.target_config());
    problems.Expect(route.canary_share() >= 0 && route.canary_share() <= 1, path + ".canary_share",
                    "0 to 1", route.canary_share());
    problems.Quoted(route.precision() == "bf16" || route.precision() == "f32", path + ".precision",
                    "bf16 or f32", route.precision());
    CheckPolicy(route.policy(), path + ".policy", problems);
    CheckCircuit(route.circuit(), path + ".circuit", problems);
    CheckQuality(route.quality(), path + ".quality", problems);
    CheckDrill(route.drill(), path + ".drill", problems);
  }
}

void CheckWord(absl::string_view path, absl::string_view got,
               std::initializer_list<absl::string_view> words, Problems& problems) {
  const bool known = std::find(words.begin(), words.end(), got) != words.end();
  problems.Quoted(known, path, absl::StrCat("one of ", absl::StrJoin(words, ", ")), got);
}

void CheckBuckets(const v1::MetricsConfig& metrics, Problems& problems) {
  double last = 0;
  for (int i = 0; i < metrics.latency_buckets_size(); ++i) {
    const double bound = metrics.latency_buckets(i);
    problems.Expect(std::isfinite(bound) && bound > last,
                    absl::StrCat("metrics.latency_buckets[", i, "]"),
                    absl::StrCat("a number above ", last, " (ascending, in seconds)"), bound);
    last = bound;
  }
  problems.Expect(metrics.latency_buckets_size() <= 40, "metrics.latency_buckets",
                  "at most 40 bounds", metrics.latency_buckets_size());
}

}  // namespace

absl::Status Validate(const v1::Config& config) {
  Problems problems;
  CheckListen(config.listen(), problems);
  problems.Expect(config.engine().threads() >= 0 && config.engine().threads() <= 1024,
                  "engine.threads", "0 to 1024", config.engine().threads());
  problems.Expect(config.engine().tile_tokens() >= 16 && config.engine().tile_tokens() <= 4096,
                  "engine.tile_tokens", "16 to 4096", config.engine().tile_tokens());
  CheckWord("engine.isa", config.engine().isa(), {"auto", "amx", "avx512bf16", "avx2", "portable"},
            problems);
  CheckLimits(config.limits(), problems);
  CheckRoutes(config, problems);
  CheckMemory(config.memory(), problems);
  CheckNamedShm(config.memory(), problems);
  CheckTenants(config, problems);
  CheckAuth(config, problems);
  CheckUcx(config.ucx(), problems);
  CheckPeers(config, problems);
  CheckWord("log.level", config.log().level(), {"debug", "info", "warn", "error"}, problems);
  CheckWord("log.format", config.log().format(), {"auto", "json", "text"}, problems);
  CheckBuckets(config.metrics(), problems);
  return problems.status();
}

}  // namespace kvbridge::server
