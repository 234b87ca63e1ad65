// Times the whole map of a tile (read, un-rotate, multiply, bias, rotate, check, store) and, where
// built with LibTorch, the bare products on the same machine, turn by turn in one process. JSON on
// stdout.
//
//   map_bench                                   Qwen3 0.6B -> 1.7B, k = 8, both supports, 64..4096
//   tokens map_bench --tokens 1024 --support full      one case

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <iostream>
#include <thread>

#include "absl/synchronization/notification.h"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "bench/gemm_floor.h"
#include "bench/random_mapper.h"
#include "core/base/worker_pool.h"
#include "core/device/cpu/cpu_backend.h"
#include "core/tensor/convert.h"

namespace kvbridge::bench {
namespace {

using Json = nlohmann::ordered_json;
using mapper::Support;

struct Args {
  std::vector<int64_t> tokens = {64, 1024, 4096};
  std::vector<std::string> supports = {"full", "head_local"};
  MapperShape shape;
  int threads = 0;
  int reps = 7;
  int64_t tile = device::CpuBackend::kPreferredTileTokens;
  std::string isa;
  bool floor = true;
  int together = 0;
};

double Seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Of this process, all threads.
double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
}

// Wall and processor time: on a machine shared with others, only the second is comparable.
struct Samples {
  std::vector<double> wall, cpu;
  double min() const { return *std::min_element(wall.begin(), wall.end()); }
  double median() const { return Median(wall); }
  Json ToJson() const {
    return {{"min_ms", min() * 1e3}, {"median_ms", median() * 1e3}, {"cpu_ms", Median(cpu) * 1e3}};
  }
  // Runs `body`, which answers its wall seconds.
  void Add(const std::function<double()>& body) {
    const double before = CpuSeconds();
    wall.push_back(body());
    cpu.push_back(CpuSeconds() - before);
  }
};

class Bench {
 public:
  explicit Bench(const Args& args)
      : args_(args),
        workers_(base::WorkerPool::Create({.threads = args.threads}).value()),
        pool_(kv::BufferPool::Create(uint64_t{8} << 30)) {
    device::CpuBackend::Options options;
    for (device::Isa isa : device::cpu::SupportedIsas()) {
      if (args.isa == device::cpu::KernelsFor(isa).name) options.isa = isa;
    }
    backend_ = device::CpuBackend::Create(options, workers_.get(), pool_).value();
  }

  Json Run() {
    Json cases = Json::array();
    for (const std::string& support : args_.supports) {
      const Support kind = support == "full" ? Support::kFull : Support::kHeadLocal;
      const MapperAndBytes made = MakeMapper(args_.shape, kind);
      std::unique_ptr<device::ResidentMapper> resident;
      const double pack = Seconds([&] {
        resident = backend_->MakeResident(made.mapper, device::Precision::kBf16, {}).value();
      });
      for (int64_t tokens : args_.tokens) {
        Json result = {{"support", support}, {"tokens", tokens}};
        result["resident_bytes"] = resident->resident_bytes();
        result["make_resident_gb_s"] = double(resident->resident_bytes()) / pack / 1e9;
        Measure(*resident, kind, tokens, result);
        if (args_.together > 1) MeasureTogether(*resident, tokens, result);
        cases.push_back(std::move(result));
      }
    }
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return {{"backend", backend_->name()},
            {"threads", workers_->threads()},
            {"tile_tokens", args_.tile},
            {"reps", args_.reps},
            {"cases", cases},
            {"max_rss_mib", usage.ru_maxrss / 1024}};
  }

 private:
  void Measure(const device::ResidentMapper& resident, Support kind, int64_t tokens, Json& result) {
    const mapper::Mapper& m = resident.mapper();
    const int64_t plane = tokens * m.source.geometry.row();
    const std::vector<std::byte> random = RandomBf16(2 * args_.shape.layers * plane, 1);
    const auto in = pool_->Acquire(random.size()).value();
    const auto out = pool_->Acquire(random.size()).value();
    std::memcpy(in->data(), random.data(), random.size());
    const auto view = [&](const kv::TileBuffer& buffer) {
      return kv::DenseTileView(buffer.data(), tensor::DType::kBf16, args_.shape.layers, tokens,
                               args_.shape.heads, args_.shape.head_dim);
    };
    const kv::KvView source = view(*in), target = view(*out);
    const int64_t features = m.keys[0].features(m.source.geometry);
    const bool full = kind == Support::kFull;
    std::unique_ptr<GemmFloor> floor;
    if (args_.floor) {
      floor = MakeGemmFloor({.products = 2 * args_.shape.layers,
                             .heads = full ? 1 : args_.shape.heads,
                             .tokens = tokens,
                             .features = features,
                             .columns = full ? m.target.geometry.row() : args_.shape.head_dim},
                            workers_->threads());
    }
    const size_t variants = floor == nullptr ? 0 : floor->variants().size();
    Samples map;
    std::vector<double> prepare;
    std::vector<Samples> bare(variants);
    // The first round warms pages and caches and is not kept.
    for (int rep = 0; rep <= args_.reps; ++rep) {
      if (rep == 1) {
        map = {};
        prepare.clear();
        bare.assign(variants, {});
      }
      map.Add([&] { return InPool([&] { prepare.push_back(Map(resident, source, target)); }); });
      for (size_t v = 0; v < variants; ++v) {
        bare[v].Add([&] { return floor->Run(v); });
        std::this_thread::sleep_for(
            std::chrono::milliseconds(20));  // OpenMP's threads stop spinning.
      }
    }
    result["map"] = map.ToJson();
    result["prepare_ms"] = Median(prepare) * 1e3;
    result["tflop_s"] = m.flops_per_token() * double(tokens) / map.median() / 1e12;
    result["weights_gb_s"] = double(resident.resident_bytes()) / map.median() / 1e9;
    if (floor == nullptr) return;
    double best = bare[0].median();
    for (size_t v = 0; v < variants; ++v) {
      result["floor"][floor->variants()[v]] = bare[v].ToJson();
      best = std::min(best, bare[v].median());
    }
    result["speed_over_floor"] = best / map.median();
  }

  // As many requests of `tokens` at once, one after the other and in one pass over the weights.
  void MeasureTogether(const device::ResidentMapper& resident, int64_t tokens, Json& result) {
    const int64_t all = args_.together * tokens;
    const int64_t elements = all * args_.shape.layers * args_.shape.heads * args_.shape.head_dim;
    const std::vector<std::byte> random = RandomBf16(2 * elements, 1);
    const auto in = pool_->Acquire(random.size()).value();
    const auto out = pool_->Acquire(random.size()).value();
    std::memcpy(in->data(), random.data(), random.size());
    const auto view = [&](const kv::TileBuffer& buffer) {
      return kv::DenseTileView(buffer.data(), tensor::DType::kBf16, args_.shape.layers, all,
                               args_.shape.heads, args_.shape.head_dim);
    };
    const kv::KvView source = view(*in), target = view(*out);
    const std::vector<int64_t> positions(tokens, 5);
    std::vector<std::unique_ptr<device::PreparedTile>> tiles;
    std::vector<device::TilePart> parts;
    for (int64_t begin = 0; begin < all; begin += tokens) {
      tiles.push_back(backend_
                          ->Prepare(resident, {.view = &source,
                                               .tokens = {begin, begin + tokens},
                                               .positions = positions})
                          .value());
      parts.push_back({.tile = tiles.back().get(),
                       .target = &target,
                       .target_begin = begin,
                       .cancelled = Never});
    }
    const auto map = [&](size_t step) {
      for (size_t i = 0; i < parts.size(); i += step) {
        backend_->MapTogether(resident, {0, args_.shape.layers}, std::span(parts).subspan(i, step));
      }
    };
    Samples apart, together;
    for (int rep = 0; rep <= args_.reps; ++rep) {
      if (rep == 1) apart = together = {};
      apart.Add([&] { return InPool([&] { map(1); }); });
      together.Add([&] { return InPool([&] { map(parts.size()); }); });
    }
    result["together"] = {{"tiles", args_.together},
                          {"apart", apart.ToJson()},
                          {"together", together.ToJson()},
                          {"speed_up", Median(apart.cpu) / Median(together.cpu)}};
  }

  static bool Never() { return false; }

  // As the engine runs it: from a job, so that the pool's threads are all there are.
  double InPool(const std::function<void()>& body) {
    double seconds = 0;
    absl::Notification done;
    const absl::Status queued = workers_->Submit([&] {
      seconds = Seconds(body);
      done.Notify();
    });
    if (!queued.ok()) return 0;
    done.WaitForNotification();
    return seconds;
  }

  // Seconds spent in Prepare.
  double Map(const device::ResidentMapper& resident, const kv::KvView& source,
             const kv::KvView& target) {
    double preparing = 0;
    for (int64_t begin = 0; begin < source.tokens; begin += args_.tile) {
      const int64_t end = std::min(source.tokens, begin + args_.tile);
      std::vector<int64_t> positions(end - begin);
      for (int64_t t = begin; t < end; ++t) positions[t - begin] = t;
      std::unique_ptr<device::PreparedTile> tile;
      preparing += Seconds([&] {
        tile = backend_
                   ->Prepare(resident,
                             {.view = &source, .tokens = {begin, end}, .positions = positions})
                   .value();
      });
      const auto checks =
          backend_->MapLayers(resident, *tile, {0, args_.shape.layers}, target, begin, Never);
      if (!checks.ok() || checks->non_finite > 0) std::abort();
    }
    return preparing;
  }

  const Args args_;
  std::unique_ptr<base::WorkerPool> workers_;
  std::shared_ptr<kv::BufferPool> pool_;
  std::unique_ptr<device::CpuBackend> backend_;
};

}  // namespace
}  // namespace kvbridge::bench

int main(int argc, char** argv) {
  kvbridge::bench::Args args;
  CLI::App app("Times the map against the bare products.");
  app.add_option("--tokens,--t", args.tokens, "token counts");
  app.add_option("--support", args.supports, "full, head_local")
      ->check(CLI::IsMember({"full", "head_local"}));
  app.add_option("--layers", args.shape.layers, "layers of both models");
  app.add_option("--heads", args.shape.heads, "KV heads of both models");
  app.add_option("--head-dim", args.shape.head_dim, "dimensions of a head");
  app.add_option("--top-k", args.shape.top_k, "source layers per target layer");
  app.add_option("--threads", args.threads, "0: one per CPU");
  app.add_option("--reps", args.reps, "counted rounds");
  app.add_option("--tile", args.tile, "tokens per tile");
  app.add_option("--isa", args.isa, "cpu-amx, cpu-avx512bf16, cpu-avx2, cpu-portable");
  app.add_option("--together", args.together, "also so many requests at once, apart and together");
  app.add_flag("!--no-floor", args.floor, "without LibTorch's products");
  CLI11_PARSE(app, argc, argv);
  std::cout << kvbridge::bench::Bench(args).Run().dump(2) << "\n";
}
