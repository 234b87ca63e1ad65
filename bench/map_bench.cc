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
#include <random>
#include <thread>

#include "absl/synchronization/notification.h"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "bench/gemm_floor.h"
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
  int layers = 28;
  int heads = 8;
  int head_dim = 128;
  int top_k = 8;
  int threads = 0;
  int reps = 7;
  int64_t tile = device::CpuBackend::kPreferredTileTokens;
  std::string isa;
  bool floor = true;
};

double Seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Standard normal bf16 times `deviation`.
std::vector<std::byte> RandomBf16(size_t n, float deviation) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> block(1 << 16);
  std::generate(block.begin(), block.end(), [&] { return normal(rng); });
  std::vector<std::byte> bytes(n * 2);
  for (size_t i = 0; i < n; i += block.size()) {
    tensor::EncodeRow(tensor::DType::kBf16, block.data(), 1, bytes.data() + 2 * i,
                      std::min(block.size(), n - i));
  }
  return bytes;
}

model::RopeParams Rope(int head_dim) {
  model::RopeParams rope{.rotary_dim = head_dim};
  for (int i = 0; i < head_dim / 2; ++i)
    rope.inv_freq.push_back(std::pow(1e6, -2.0 * i / head_dim));
  return rope;
}

// Every layer's tensors refer to the same bytes: packing gives each its own.
struct MapperAndBytes {
  std::vector<std::byte> weight, bias;
  std::shared_ptr<mapper::Mapper> mapper = std::make_shared<mapper::Mapper>();
};

MapperAndBytes MakeMapper(const Args& args, Support support) {
  MapperAndBytes made;
  mapper::Mapper& m = *made.mapper;
  m.source.geometry = {.layers = args.layers, .kv_heads = args.heads, .head_dim = args.head_dim};
  m.target.geometry = m.source.geometry;
  m.source.rope.params = m.target.rope.params = Rope(args.head_dim);
  m.key_norm.kind = mapper::KeyNorm::Kind::kKNorm;
  m.key_norm.gamma.assign(args.layers, std::vector<float>(args.head_dim, 1.5f));
  for (auto* component : {&m.keys, &m.values}) {
    for (int l = 0; l < args.layers; ++l) {
      mapper::LayerMap map{.support = support};
      const int first = std::clamp(l - args.top_k / 2, 0, args.layers - args.top_k);
      for (int s = 0; s < args.top_k; ++s) map.sources.push_back(first + s);
      const int64_t features = map.features(m.source.geometry);
      if (made.weight.empty()) {
        made.weight = RandomBf16(args.heads * features * args.head_dim, 0.01f);
        made.bias = RandomBf16(args.heads * args.head_dim, 0.1f);
      }
      map.weight = {tensor::DType::kBf16, {args.heads, features, args.head_dim}, made.weight};
      map.bias = {tensor::DType::kBf16, {args.heads, args.head_dim}, made.bias};
      component->push_back(std::move(map));
    }
  }
  return made;
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
      const MapperAndBytes made = MakeMapper(args_, kind);
      std::unique_ptr<device::ResidentMapper> resident;
      const double pack = Seconds([&] {
        resident = backend_->MakeResident(made.mapper, device::Precision::kBf16, {}).value();
      });
      for (int64_t tokens : args_.tokens) {
        Json result = {{"support", support}, {"tokens", tokens}};
        result["resident_bytes"] = resident->resident_bytes();
        result["make_resident_gb_s"] = double(resident->resident_bytes()) / pack / 1e9;
        Measure(*resident, kind, tokens, result);
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
    const std::vector<std::byte> random = RandomBf16(2 * args_.layers * plane, 1);
    const auto in = pool_->Acquire(random.size()).value();
    const auto out = pool_->Acquire(random.size()).value();
    std::memcpy(in->data(), random.data(), random.size());
    const auto view = [&](const kv::TileBuffer& buffer) {
      return kv::DenseTileView(buffer.data(), tensor::DType::kBf16, args_.layers, tokens,
                               args_.heads, args_.head_dim);
    };
    const kv::KvView source = view(*in), target = view(*out);
    const int64_t features = m.keys[0].features(m.source.geometry);
    const bool full = kind == Support::kFull;
    std::unique_ptr<GemmFloor> floor;
    if (args_.floor) {
      floor = MakeGemmFloor({.products = 2 * args_.layers,
                             .heads = full ? 1 : args_.heads,
                             .tokens = tokens,
                             .features = features,
                             .columns = full ? m.target.geometry.row() : args_.head_dim},
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
      const auto checks = backend_->MapLayers(resident, *tile, {0, args_.layers}, target, begin,
                                              [] { return false; });
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
  app.add_option("--layers", args.layers, "layers of both models");
  app.add_option("--heads", args.heads, "KV heads of both models");
  app.add_option("--head-dim", args.head_dim, "dimensions of a head");
  app.add_option("--top-k", args.top_k, "source layers per target layer");
  app.add_option("--threads", args.threads, "0: one per CPU");
  app.add_option("--reps", args.reps, "counted rounds");
  app.add_option("--tile", args.tile, "tokens per tile");
  app.add_option("--isa", args.isa, "cpu-amx, cpu-avx512bf16, cpu-avx2, cpu-portable");
  app.add_flag("!--no-floor", args.floor, "without LibTorch's products");
  CLI11_PARSE(app, argc, argv);
  std::cout << kvbridge::bench::Bench(args).Run().dump(2) << "\n";
}
