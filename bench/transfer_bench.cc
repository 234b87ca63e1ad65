// Drives a running kvbridged through the C++ client: the fixed cost of a small transfer, what the
// inline plane moves or the region plane adds to the map, how it scales with clients, what memory
// it takes. JSON on stdout.
//
//   transfer_bench --server unix:k.sock --route big --micro-route micro --pid $(pidof kvbridged)
//   transfer_bench --server unix:k.sock --route big --plane region --artifact DIR
//
// Routes serve artifacts of make_artifact, unproven ones allowed: a large source with a small
// target shows the way in alone, the other way round the way out.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include <CLI/CLI.hpp>
#include <malloc.h>
#include <nlohmann/json.hpp>

#include "bench/local_engine.h"
#include "client/cpp/client.h"
#include "client/cpp/pool.h"
#include "client/cpp/shared_region.h"

namespace kvbridge::bench {
namespace {

using Json = nlohmann::ordered_json;
using client::CacheShape;
using client::TransferResult;

struct Args {
  std::string server;
  std::vector<std::string> routes;  // the sweep uses the first
  std::string plane = "inline";
  std::string artifact;
  std::string micro_route;
  int64_t micro_tokens = 64;
  int micro_reps = 500;
  int64_t tokens = 4096;
  int reps = 5;
  std::vector<int> clients = {1, 2, 4, 8, 16, 32};
  int64_t sweep_tokens = 256;
  int sweep_transfers = 64;
  int pid = 0;
};

[[noreturn]] void Die(const std::string& why) {
  std::cerr << "transfer_bench: " << why << "\n";
  std::exit(1);
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(values.size())));
  return values[std::max<size_t>(rank, 1) - 1];
}

Json Milliseconds(const std::vector<double>& seconds) {
  return {{"min_ms", Quantile(seconds, 0) * 1e3},
          {"p50_ms", Quantile(seconds, 0.5) * 1e3},
          {"p90_ms", Quantile(seconds, 0.9) * 1e3},
          {"p99_ms", Quantile(seconds, 0.99) * 1e3}};
}

// Both caches of one caller in shared memory, in pages as vLLM's FlashAttention lays them out:
// [2, blocks, block, heads, dim] for each layer. Warm.
class PagedCaches {
 public:
  PagedCaches(const v1::RouteInfo& route, int64_t tokens)
      : tokens_(tokens),
        pages_(static_cast<size_t>((tokens - 1) / kPageTokens + 1)),
        source_(Allocate(route.source())),
        target_(Allocate(route.target())) {
    std::iota(pages_.begin(), pages_.end(), 0);
  }

  client::SourceView source() const { return source_->Source(pages_, tokens_).value(); }
  client::TargetView target() const { return target_->Target(pages_, tokens_).value(); }

 private:
  static constexpr int32_t kPageTokens = 16;

  std::shared_ptr<const client::Pool> Allocate(const v1::ModelSpec& model) const {
    const v1::KvGeometry& g = model.geometry();
    const int64_t head =
        g.head_dim() * static_cast<int64_t>(client::ElementBytes(g.element_type()));
    client::PoolLayout layout{.model = model,
                              .tokens_per_page = kPageTokens,
                              .pages = static_cast<int32_t>(pages_.size()),
                              .page_stride = kPageTokens * g.kv_heads() * head,
                              .token_stride = g.kv_heads() * head,
                              .head_stride = head};
    const size_t plane_bytes = pages_.size() * static_cast<size_t>(layout.page_stride);
    auto region = client::SharedRegion::Create(2 * g.layers() * plane_bytes);
    if (!region.ok()) Die(region.status().ToString());
    const auto bytes = (*region)->bytes();
    for (size_t i = 1; i < bytes.size(); i += 2) bytes[i] = std::byte{0x3f};
    for (int plane = 0; plane < 2 * g.layers(); ++plane) {
      layout.planes.push_back(bytes.data() + plane * plane_bytes);
    }
    auto pool = client::Pool::Create(std::move(layout), {*std::move(region)});
    if (!pool.ok()) Die(pool.status().ToString());
    return *std::move(pool);
  }

  const int64_t tokens_;
  std::vector<int32_t> pages_;
  const std::shared_ptr<const client::Pool> source_;
  const std::shared_ptr<const client::Pool> target_;
};

// Both caches of one caller, token-major as an engine holds them, warm.
class Caches {
 public:
  Caches(const v1::RouteInfo& route, int64_t tokens)
      : source_(Allocate(route.source(), tokens)), target_(Allocate(route.target(), tokens)) {}

  client::SourceView source() const {
    auto view = client::StridedView<client::SourceView, const std::byte>(
        source_.shape, source_.keys(), source_.values(), TokenMajorStrides(source_.shape));
    view.owner = source_.memory;
    return view;
  }
  client::TargetView target() const {
    return client::StridedView<client::TargetView, std::byte>(
        target_.shape, target_.keys(), target_.values(), TokenMajorStrides(target_.shape));
  }

 private:
  struct Cache {
    CacheShape shape;
    std::shared_ptr<std::byte[]> memory;
    size_t plane_bytes = 0;
    std::byte* keys() const { return memory.get(); }
    std::byte* values() const { return memory.get() + plane_bytes; }
  };

  static Cache Allocate(const v1::ModelSpec& spec, int64_t tokens) {
    const v1::KvGeometry& g = spec.geometry();
    Cache cache;
    cache.shape = {.element_type = g.element_type(),
                   .layers = g.layers(),
                   .kv_heads = g.kv_heads(),
                   .head_dim = g.head_dim(),
                   .tokens = tokens};
    cache.plane_bytes = static_cast<size_t>(g.layers() * tokens * g.kv_heads() * g.head_dim()) *
                        client::ElementBytes(g.element_type());
    cache.memory = std::make_shared<std::byte[]>(2 * cache.plane_bytes);
    for (size_t i = 1; i < 2 * cache.plane_bytes; i += 2) cache.memory[i] = std::byte{0x3f};
    return cache;
  }

  Cache source_;
  Cache target_;
};

// Of another process. Its peak is counted from the construction on.
class ServerMemory {
 public:
  explicit ServerMemory(int pid) : folder_(absl::StrCat("/proc/", pid)) {
    std::ofstream(folder_ + "/clear_refs") << "5";
    before_ = Read("VmRSS:");
  }
  double GrowthMib() const { return Read("VmHWM:") - before_; }
  Json ToJson() const { return {{"rss_before_mib", before_}, {"growth_mib", GrowthMib()}}; }

 private:
  double Read(const std::string& name) const {
    std::ifstream status(folder_ + "/status");
    for (std::string word; status >> word;) {
      double kib = 0;
      if (word == name && status >> kib) return kib / 1024;
    }
    Die(absl::StrCat(folder_, "/status: expected ", name));
  }
  const std::string folder_;
  double before_ = 0;
};

class Bench {
 public:
  explicit Bench(const Args& args) : args_(args) {
    auto client = client::Client::Create({.target = args.server});
    if (!client.ok()) Die(client.status().ToString());
    client_ = *std::move(client);
    auto capabilities = client_->GetCapabilities();
    if (!capabilities.ok()) Die(capabilities.status().ToString());
    capabilities_ = *std::move(capabilities);
  }

  Json Run() {
    Json result = {{"schema", "kvbridge.transfer-bench/v1"},
                   {"server", capabilities_.version()},
                   {"backend", capabilities_.backend()},
                   {"tile_tokens", capabilities_.tile_tokens()},
                   {"cpus", std::thread::hardware_concurrency()}};
    std::optional<ServerMemory> memory;
    if (args_.pid != 0) memory.emplace(args_.pid);
    if (!args_.micro_route.empty()) result["micro"] = Micro();
    for (const std::string& route : args_.routes) {
      Json& row = result[args_.plane][route];
      row = args_.plane == "region" ? Region(Route(route)) : Inline(Route(route));
      if (memory) row["server_growth_mib"] = memory->GrowthMib();
    }
    if (!args_.routes.empty() && args_.plane == "inline")
      result["concurrency"] = Sweep(Route(args_.routes.back()));
    if (memory) result["server_memory"] = memory->ToJson();
    return result;
  }

 private:
  const v1::RouteInfo& Route(const std::string& name) const {
    for (const auto& route : capabilities_.routes()) {
      if (route.route() == name) return route;
    }
    Die(absl::StrCat("route ", name, " is not served"));
  }

  TransferResult Transfer(const v1::RouteInfo& route, const Caches& caches) const {
    return Transfer(route, caches, {.plane = client::PlaneChoice::kInline});
  }

  template <typename Both>
  TransferResult Transfer(const v1::RouteInfo& route, const Both& caches,
                          client::TransferOptions options) const {
    options.header.set_request_id("bench");
    options.header.set_route(route.route());
    *options.header.mutable_source() = route.source();
    *options.header.mutable_target() = route.target();
    auto result = client_->Transfer(options, caches.source(), caches.target());
    if (!result.ok()) Die(result.status().ToString());
    // Being refused for want of room is a result of the sweep.
    if (!result->applied() && result->reason != "overload") {
      Die(absl::StrCat(result->reason, ": ", result->detail));
    }
    return *std::move(result);
  }

  static double StageSeconds(const TransferResult& result, const std::string& name) {
    for (const auto& stage : result.decision.stages()) {
      if (stage.stage() == name) return stage.seconds();
    }
    return 0;
  }

  // What remains of a small transfer when the map itself is taken away.
  Json Micro() const {
    const v1::RouteInfo& route = Route(args_.micro_route);
    const Caches caches(route, args_.micro_tokens);
    std::vector<double> total;
    std::vector<double> overhead;
    for (int i = -args_.micro_reps / 10; i < args_.micro_reps; ++i) {
      const TransferResult result = Transfer(route, caches);
      if (i < 0) continue;  // warming up
      const double seconds = absl::ToDoubleSeconds(result.timings.total);
      total.push_back(seconds);
      overhead.push_back(seconds - StageSeconds(result, "strip_rope") -
                         StageSeconds(result, "map"));
    }
    return {{"tokens", args_.micro_tokens},
            {"transfers", args_.micro_reps},
            {"total", Milliseconds(total)},
            {"overhead", Milliseconds(overhead)}};
  }

  // The best of a few: the machine's other work only ever slows it down.
  Json Inline(const v1::RouteInfo& route) const {
    const Caches caches(route, args_.tokens);
    double in = 0;
    double out = 0;
    double both = 0;
    std::vector<double> total;
    TransferResult last;
    for (int i = -1; i < args_.reps; ++i) {
      last = Transfer(route, caches);
      if (i < 0) continue;
      const client::Timings& t = last.timings;
      const auto sent = static_cast<double>(last.bytes_sent);
      const auto received = static_cast<double>(last.bytes_received);
      in = std::max(in, sent / absl::ToDoubleSeconds(t.sending) / 1e9);
      out = std::max(out, received / absl::ToDoubleSeconds(t.receiving) / 1e9);
      both = std::max(both, (sent + received) / absl::ToDoubleSeconds(t.total) / 1e9);
      total.push_back(absl::ToDoubleSeconds(t.total));
    }
    Json stages = Json::object();
    for (const auto& stage : last.decision.stages()) stages[stage.stage()] = stage.seconds();
    return {{"tokens", args_.tokens},
            {"bytes_in", last.bytes_sent},
            {"bytes_out", last.bytes_received},
            {"in_gb_s", in},
            {"out_gb_s", out},
            {"both_gb_s", both},
            {"total", Milliseconds(total)},
            {"stage_seconds", stages}};
  }

  // What a transfer between pools takes beside the engine alone on the same pages, turn by turn,
  // and how soon layer 0 is there.
  Json Region(const v1::RouteInfo& route) const {
    const PagedCaches caches(route, args_.tokens);
    auto local = LocalEngine::Create(args_.artifact);
    if (!local.ok()) Die(local.status().ToString());
    std::vector<double> total;
    std::vector<double> engine;
    std::vector<double> ratio;
    std::vector<double> first_share;
    TransferResult last;
    for (int i = -1; i < args_.reps; ++i) {
      const auto alone = (*local)->Map(caches.source(), caches.target());
      if (!alone.ok()) Die(alone.status().ToString());
      absl::Time first_layer = absl::InfiniteFuture();
      const absl::Time started = absl::Now();
      last = Transfer(
          route, caches,
          {.plane = client::PlaneChoice::kRegion, .on_layers = [&first_layer](int32_t, int32_t) {
             first_layer = std::min(first_layer, absl::Now());
           }});
      const double seconds = absl::ToDoubleSeconds(absl::Now() - started);
      if (i < 0) continue;  // registers the pools
      total.push_back(seconds);
      engine.push_back(absl::ToDoubleSeconds(*alone));
      ratio.push_back(seconds / engine.back());
      first_share.push_back(absl::ToDoubleSeconds(first_layer - started) / seconds);
    }
    return {{"tokens", args_.tokens},
            {"total", Milliseconds(total)},
            {"engine", Milliseconds(engine)},
            {"total_over_engine", Quantile(ratio, 0.5)},
            {"first_layer_over_total", Quantile(first_share, 0.5)},
            {"bytes_in_messages", last.bytes_sent + last.bytes_received},
            {"bytes_read_in_place", last.decision.bytes_in()},
            {"bytes_written_in_place", last.decision.bytes_out()}};
  }

  Json Sweep(const v1::RouteInfo& route) const {
    Json rows = Json::array();
    for (const int clients : args_.clients) {
      std::vector<Caches> caches;
      for (int c = 0; c < clients; ++c) caches.emplace_back(route, args_.sweep_tokens);
      std::vector<std::vector<double>> seconds(caches.size());
      std::vector<int64_t> bytes(seconds.size());
      const int each = std::max(1, args_.sweep_transfers / clients);
      std::vector<std::thread> threads;
      const absl::Time started = absl::Now();
      for (size_t c = 0; c < seconds.size(); ++c) {
        threads.emplace_back([&, c] {
          for (int i = 0; i < each; ++i) {
            const TransferResult result = Transfer(route, caches[c]);
            if (!result.applied()) continue;
            seconds[c].push_back(absl::ToDoubleSeconds(result.timings.total));
            bytes[c] += result.bytes_sent + result.bytes_received;
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      const double elapsed = absl::ToDoubleSeconds(absl::Now() - started);
      std::vector<double> all;
      for (const auto& one : seconds) all.insert(all.end(), one.begin(), one.end());
      Json row = {
          {"clients", clients},
          {"transfers", clients * each},
          {"refused", clients * each - static_cast<int>(all.size())},
          {"tokens_per_s",
           static_cast<double>(args_.sweep_tokens) * static_cast<double>(all.size()) / elapsed},
          {"gb_s", static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), int64_t{0})) /
                       elapsed / 1e9}};
      if (!all.empty()) row.update(Milliseconds(all));
      rows.push_back(std::move(row));
    }
    return rows;
  }

  const Args args_;
  std::unique_ptr<client::Client> client_;
  v1::GetCapabilitiesResponse capabilities_;
};

// As kvbridged does, and as a router should: memory for messages stays warm.
void KeepFreedMemory() {
  mallopt(M_MMAP_THRESHOLD, 8 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
  mallopt(M_ARENA_MAX, 2);
}

}  // namespace
}  // namespace kvbridge::bench

int main(int argc, char** argv) {
  kvbridge::bench::KeepFreedMemory();
  kvbridge::bench::Args args;
  CLI::App app("Measures a running kvbridged.");
  app.add_option("--server", args.server, "host:port or unix:/path.sock")->required();
  app.add_option("--route", args.routes, "routes for bandwidth; the last also for concurrency");
  app.add_option("--plane", args.plane, "inline, or region: then only what concerns regions")
      ->check(CLI::IsMember({"inline", "region"}));
  app.add_option("--artifact", args.artifact, "the route's folder, for the engine alone (region)");
  app.add_option("--micro-route", args.micro_route, "route for the fixed cost");
  app.add_option("--micro-tokens", args.micro_tokens, "tokens of a small transfer");
  app.add_option("--micro-reps", args.micro_reps, "small transfers");
  app.add_option("--tokens", args.tokens, "tokens of a large transfer");
  app.add_option("--reps", args.reps, "large transfers");
  app.add_option("--clients", args.clients, "concurrent clients, one row each");
  app.add_option("--sweep-tokens", args.sweep_tokens, "tokens of a transfer of the sweep");
  app.add_option("--sweep-transfers", args.sweep_transfers, "transfers of a row, all clients");
  app.add_option("--pid", args.pid, "the server's, to read its memory");
  CLI11_PARSE(app, argc, argv);
  std::cout << kvbridge::bench::Bench(args).Run().dump(2) << "\n";
}
