// Many transfers of all lengths at once on one engine, caches in this process's memory: three
// tenants with weights 4, 2 and 1, each with one caller per class of lengths. Callers of long
// transfers send the next as soon as the last has ended, so that the machine is never idle and
// there is something to share; callers of short ones (of kShort tokens at most) pause in between,
// as conversations do. JSON on stdout.
//
//   mixed_load --seconds 600           head-local, Qwen3 0.6B -> 1.7B geometry
//   mixed_load --seconds 0 --full      the transfers alone: total time, time to first layer

#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <mutex>
#include <random>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include <CLI/CLI.hpp>
#include <malloc.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "bench/random_mapper.h"
#include "core/device/cpu/cpu_backend.h"
#include "core/engine/transfer_engine.h"

namespace kvbridge::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Args {
  MapperShape shape;
  bool full = false;
  int threads = 0;
  int seconds = 30;
  int solo_reps = 5;
  int callers = 1;
  int tile_tokens = 256;
  int64_t max_tokens = 8192;
  int pause_ms = 500;
  uint64_t sweep_mib = 256;
};

constexpr int64_t kShort = 512;

// Callers draw lengths log-uniformly from [least, most].
struct Class {
  int64_t least, most;
};

struct Tenant {
  const char* name;
  double weight;
};
constexpr Tenant kTenants[] = {{"gold", 4}, {"silver", 2}, {"bronze", 1}};

struct Seconds {
  double total = 0;
  double first_layer = 0;
  double cpu = 0;  // of the process: while others run, only this is comparable
};

double Since(absl::Time start) { return absl::ToDoubleSeconds(absl::Now() - start); }

double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<size_t>(std::ceil(q * static_cast<double>(values.size())));
  return values[std::max<size_t>(rank, 1) - 1];
}

double RssMib() {
  std::ifstream statm("/proc/self/statm");
  double pages = 0;
  statm >> pages >> pages;
  return pages * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

// One caller's, warm.
class Cache {
 public:
  Cache(const model::KvGeometry& g, int64_t tokens)
      : bytes_(static_cast<size_t>(g.token_bytes() * tokens), std::byte{0x3c}),
        view_(kv::DenseTileView(bytes_.data(), g.dtype, g.layers, tokens, g.kv_heads, g.head_dim)) {
  }
  const kv::KvView& view() const { return view_; }

 private:
  std::vector<std::byte> bytes_;
  kv::KvView view_;
};

class Bench {
 public:
  explicit Bench(const Args& args)
      : args_(args),
        workers_(base::WorkerPool::Create({.threads = args.threads}).value()),
        backend_(device::CpuBackend::Create({}, workers_.get(),
                                            kv::BufferPool::Create(uint64_t{4} << 30))
                     .value()),
        engine_(MakeEngine(args.sweep_mib << 20)),
        mapper_(MakeMapper(args.shape,
                           args.full ? mapper::Support::kFull : mapper::Support::kHeadLocal)) {
    mapper::Mapper& mapper = *mapper_.mapper;
    mapper.digest = std::string(64, 'd');
    for (auto* model : {&mapper.source, &mapper.target}) {
      model->identity.family = "bench";
      model->identity.model_id = model == &mapper.source ? "bench/small" : "bench/large";
      model->identity.revision = "r1";
      model->identity.tokenizer_sha256 = std::string(64, 'a');
    }
    pin_ = {backend_->MakeResident(mapper_.mapper, device::Precision::kBf16, {}).value(), true};
    source_ = std::make_unique<Cache>(mapper.source.geometry, args.max_tokens + 1);
    for (int64_t most = 64; most < args.max_tokens; most *= 8) classes_.push_back({most / 4, most});
    classes_.push_back({classes_.back().most, args.max_tokens});
    for (size_t i = 1; i < classes_.size(); ++i) classes_[i].least = classes_[i - 1].most + 1;
  }

  Json Run() {
    Json result = {{"schema", "kvbridge.mixed-load/v1"},
                   {"backend", backend_->name()},
                   {"threads", workers_->threads()},
                   {"support", args_.full ? "full" : "head_local"},
                   {"tile_tokens", args_.tile_tokens}};
    if (!engine_->MeasureRate(*pin_.resident).ok()) std::abort();
    result["alone"] = Alone();
    if (args_.seconds > 0) result["load"] = Load(result["alone"], TileAlone());
    return result;
  }

 private:
  std::unique_ptr<engine::TransferEngine> MakeEngine(uint64_t sweep_bytes) {
    engine::TransferEngine::Options options;
    options.tile_tokens = args_.tile_tokens;
    options.sweep_bytes = sweep_bytes;
    options.limits.max_inflight_bytes = uint64_t{4} << 30;
    options.tenant_weight = [](absl::string_view name) {
      for (const Tenant& tenant : kTenants) {
        if (name == tenant.name) return tenant.weight;
      }
      return 1.0;
    };
    return engine::TransferEngine::Create(options, {workers_.get(), backend_.get(), &clock_})
        .value();
  }

  // Counts what is mapped, in tokens through all layers.
  Seconds Transfer(engine::TransferEngine& engine, const char* tenant, int64_t tokens,
                   const Cache& target, std::atomic<int64_t>* token_layers) {
    const absl::Time start = absl::Now();
    const double cpu_before = CpuSeconds();
    guard::TransferSpec spec;
    spec.request_id = "bench";
    spec.tenant = tenant;
    spec.source = mapper_.mapper->source;
    spec.target = mapper_.mapper->target;
    spec.tokens = tokens + 1;
    spec.key_state = guard::KeyState::kRoped;
    spec.source_buffered = spec.target_buffered = false;
    auto begun = engine.Begin(std::move(spec), {}, pin_);
    if (auto* refused = std::get_if<engine::Decision>(&begun)) {
      std::cerr << "mixed_load: refused: " << refused->detail << "\n";
      std::exit(1);
    }
    const auto transfer = std::get<std::shared_ptr<engine::Transfer>>(std::move(begun));
    std::atomic<int64_t> first_layer_tokens{0};
    Seconds seconds;
    for (int64_t begin = 0; begin < tokens; begin += transfer->work_tokens()) {
      engine::TileWork work;
      work.tokens = {begin, std::min(begin + transfer->work_tokens(), tokens)};
      work.source = source_->view();
      work.target = target.view();
      work.source_begin = work.target_begin = begin;
      const int64_t count = work.tokens.size();
      work.on_layers = [&, count](kv::LayerRange layers) {
        if (token_layers != nullptr) *token_layers += count * layers.size();
        if (layers.begin > 0) return;
        first_layer_tokens += count;
        if (first_layer_tokens == tokens) seconds.first_layer = Since(start);
      };
      absl::Notification done;
      work.on_done = [&](const absl::Status&) { done.Notify(); };
      if (!transfer->SubmitTile(std::move(work)).ok()) std::abort();
      done.WaitForNotification();
    }
    if (!transfer->Finish()->applied()) std::abort();
    seconds.total = Since(start);
    seconds.cpu = CpuSeconds() - cpu_before;
    return seconds;
  }

  // Layer-major as configured, and tile by tile.
  Json Alone() {
    const auto tile_major = MakeEngine(0);
    Json rows = Json::array();
    for (const Class& c : classes_) {
      const int64_t tokens = c.most;
      const Cache target(mapper_.mapper->target.geometry, tokens + 1);
      std::vector<double> total, first, cpu, tiles, tiles_cpu;
      for (int rep = -1; rep < args_.solo_reps; ++rep) {
        const Seconds swept = Transfer(*engine_, "", tokens, target, nullptr);
        const Seconds tiled = Transfer(*tile_major, "", tokens, target, nullptr);
        if (rep < 0) continue;
        total.push_back(swept.total);
        first.push_back(swept.first_layer);
        cpu.push_back(swept.cpu);
        tiles.push_back(tiled.total);
        tiles_cpu.push_back(tiled.cpu);
      }
      rows.push_back({{"tokens", tokens},
                      {"p50_ms", Quantile(total, 0.5) * 1e3},
                      {"min_ms", Quantile(total, 0) * 1e3},
                      {"first_layer_ms", Quantile(first, 0.5) * 1e3},
                      {"first_layer_share", Quantile(first, 0.5) / Quantile(total, 0.5)},
                      {"cpu_ms", Quantile(cpu, 0.5) * 1e3},
                      {"tile_major_p50_ms", Quantile(tiles, 0.5) * 1e3},
                      {"tile_major_min_ms", Quantile(tiles, 0) * 1e3},
                      {"tile_major_cpu_ms", Quantile(tiles_cpu, 0.5) * 1e3}});
    }
    return rows;
  }

  double TileAlone() {
    const Cache target(mapper_.mapper->target.geometry, args_.tile_tokens + 1);
    std::vector<double> total;
    for (int rep = 0; rep < args_.solo_reps; ++rep) {
      total.push_back(Transfer(*engine_, "", args_.tile_tokens, target, nullptr).total);
    }
    return Quantile(total, 0.5);
  }

  Json Load(const Json& alone, double tile_seconds) {
    std::vector<std::thread> threads;
    std::vector<std::vector<double>> latencies(classes_.size());
    std::vector<std::vector<int>> ended(std::size(kTenants), std::vector<int>(classes_.size()));
    std::array<std::atomic<int64_t>, std::size(kTenants)> token_layers{};
    std::mutex mutex;
    std::atomic<bool> stop{false};
    const absl::Time start = absl::Now();
    uint32_t seed = 1;
    for (size_t t = 0; t < std::size(kTenants); ++t) {
      for (size_t c = 0; c < classes_.size() * args_.callers; ++c) {
        threads.emplace_back([&, t, c = c % classes_.size(), seed = ++seed] {
          std::mt19937 rng(seed);
          std::uniform_real_distribution<double> length(std::log(classes_[c].least),
                                                        std::log(classes_[c].most));
          std::exponential_distribution<double> pause(1e3 / args_.pause_ms);
          const Cache target(mapper_.mapper->target.geometry, classes_[c].most + 1);
          while (!stop) {
            if (classes_[c].most <= kShort) absl::SleepFor(absl::Seconds(pause(rng)));
            const auto tokens = static_cast<int64_t>(std::exp(length(rng)));
            const Seconds seconds =
                Transfer(*engine_, kTenants[t].name, tokens, target, &token_layers[t]);
            const std::lock_guard<std::mutex> lock(mutex);
            latencies[c].push_back(seconds.total);
            ++ended[t][c];
          }
        });
      }
    }
    Json rss = Json::array();
    for (int second = 1; second <= args_.seconds; ++second) {
      std::this_thread::sleep_until(absl::ToChronoTime(start + absl::Seconds(second)));
      if (second % 60 == 0 || second == args_.seconds) rss.push_back(RssMib());
    }
    std::array<int64_t, std::size(kTenants)> served;
    for (size_t t = 0; t < served.size(); ++t) served[t] = token_layers[t];
    stop = true;
    for (std::thread& thread : threads) thread.join();
    return Report(alone, tile_seconds * 1e3, latencies, ended, served, rss);
  }

  Json Report(const Json& alone, double tile_ms, const std::vector<std::vector<double>>& latencies,
              const std::vector<std::vector<int>>& ended, std::span<const int64_t> served,
              const Json& rss) const {
    Json rows = Json::array();
    for (size_t c = 0; c < classes_.size(); ++c) {
      const double solo = alone[c]["p50_ms"];
      rows.push_back({{"tokens", {classes_[c].least, classes_[c].most}},
                      {"transfers", latencies[c].size()},
                      {"p50_ms", Quantile(latencies[c], 0.5) * 1e3},
                      {"p99_ms", Quantile(latencies[c], 0.99) * 1e3},
                      {"p99_over_longest_alone", Quantile(latencies[c], 0.99) * 1e3 / solo},
                      {"p99_less_a_tile_over_longest_alone",
                       (Quantile(latencies[c], 0.99) * 1e3 - tile_ms) / solo}});
    }
    double all = 0, weights = 0;
    for (size_t t = 0; t < served.size(); ++t) {
      all += static_cast<double>(served[t]);
      weights += kTenants[t].weight;
    }
    Json tenants = Json::array();
    bool starved = false;
    for (size_t t = 0; t < served.size(); ++t) {
      const double share = static_cast<double>(served[t]) / all;
      for (const int count : ended[t]) starved |= count == 0;
      tenants.push_back({{"name", kTenants[t].name},
                         {"weight", kTenants[t].weight},
                         {"share", share},
                         {"share_over_weight", share / (kTenants[t].weight / weights)},
                         {"ended", ended[t]}});
    }
    return {{"seconds", args_.seconds},
            {"tile_ms", tile_ms},
            {"classes", rows},
            {"tenants", tenants},
            {"somebody_starved", starved},
            {"tokens_per_s", all / args_.shape.layers / args_.seconds},
            {"rss_mib_per_minute", rss}};
  }

  const Args args_;
  base::SystemClock clock_;
  std::unique_ptr<base::WorkerPool> workers_;
  std::unique_ptr<device::CpuBackend> backend_;
  std::unique_ptr<engine::TransferEngine> engine_;
  const MapperAndBytes mapper_;
  engine::ArtifactPin pin_;
  std::unique_ptr<Cache> source_;
  std::vector<Class> classes_;
};

}  // namespace
}  // namespace kvbridge::bench

int main(int argc, char** argv) {
  kvbridge::bench::Args args;
  CLI::App app("Many transfers of all lengths at once.");
  app.add_option("--seconds", args.seconds, "of load; 0: only the transfers alone");
  app.add_option("--solo-reps", args.solo_reps, "transfers alone, of each length");
  app.add_option("--callers", args.callers, "per tenant and class of lengths");
  app.add_option("--pause-ms", args.pause_ms, "mean pause of callers of short transfers");
  app.add_option("--max-tokens", args.max_tokens, "of the longest transfer");
  app.add_option("--sweep-mib", args.sweep_mib, "workspace of a sweep; 0: tile by tile");
  app.add_option("--tile", args.tile_tokens, "tokens per tile");
  app.add_option("--threads", args.threads, "0: one per CPU");
  app.add_option("--layers", args.shape.layers, "layers of both models");
  app.add_option("--heads", args.shape.heads, "KV heads of both models");
  app.add_option("--head-dim", args.shape.head_dim, "dimensions of a head");
  app.add_option("--top-k", args.shape.top_k, "source layers per target layer");
  app.add_flag("--full", args.full, "full-head instead of head-local");
  CLI11_PARSE(app, argc, argv);
  mallopt(M_MMAP_THRESHOLD, 8 << 20);  // as kvbridged
  std::cout << kvbridge::bench::Bench(args).Run().dump(2) << "\n";
}
