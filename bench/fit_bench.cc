// Times `kvbridge fit accumulate` (read, un-rotate, centre, multiply, add up, write) and, in the
// same process, turn by turn, its floor: OpenBLAS's SSYRK and SGEMM of the same shapes on operands
// that are ready, on its own threads. JSON on stdout.
//
//   fit_bench --dir /tmp/shards       medium geometry: 8 layers -> 12, 4 heads of 64, 200 x 128
//   rows
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include <CLI/CLI.hpp>
#include <cblas.h>
#include <nlohmann/json.hpp>

#include "core/artifact/safetensors_writer.h"
#include "core/artifact/spec_json.h"
#include "core/fit/accumulate.h"
#include "core/rope/inv_freq.h"
#include "core/tensor/convert.h"

namespace kvbridge::bench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Args {
  std::string dir;
  std::string layout = "full";
  int source_layers = 8;
  int target_layers = 12;
  int heads = 4;
  int head_dim = 64;
  int sequences = 200;
  int rows = 128;  // of a sequence, after its stride
  int reps = 3;
  uint64_t memory_bytes = 0;
};

double Seconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::cerr << status << "\n";
  std::exit(1);
}

model::ModelSpec Spec(const Args& args, const std::string& id, int layers) {
  model::ModelSpec spec;
  spec.identity = {"bench", id, "0", std::string(64, 'a'), "", "", ""};
  spec.geometry = {.layers = layers, .kv_heads = args.heads, .head_dim = args.head_dim};
  spec.rope.params =
      *rope::MakeRopeParams(1e6, args.head_dim, rope::Pairing::kHalf, rope::DefaultScaling{});
  return spec;
}

// Roped BF16 rows about means of a few: what caches look like to an accumulator.
void WriteShard(const Args& args, const fit::SpecPair& specs, int index, const fs::path& path) {
  std::mt19937 rng(static_cast<uint32_t>(index));
  std::uniform_real_distribution<float> uniform(-1, 3);
  std::map<std::string, std::vector<std::byte>> data;
  std::map<std::string, artifact::StTensor> tensors;
  for (const fit::Role role : fit::kRoles) {
    const model::KvGeometry& g = specs.of(role).geometry;
    for (const char* suffix : {".keys", ".values"}) {
      std::vector<float> values(static_cast<size_t>(g.layers * g.row() * args.rows));
      for (float& v : values) v = uniform(rng);
      const std::string name = absl::StrCat(fit::Name(role), suffix);
      data[name].resize(values.size() * 2);
      tensor::EncodeRow(tensor::DType::kBf16, values.data(), 1, data[name].data(), values.size());
      tensors[name] = {
          artifact::StDType::kBf16, {g.layers, g.kv_heads, args.rows, g.head_dim}, data[name]};
    }
  }
  std::vector<int64_t> positions, ids;
  for (int r = 0; r < args.rows; ++r) {
    positions.push_back(4 * r);
    ids.push_back(static_cast<int64_t>(rng()));
  }
  tensors["positions"] = {
      artifact::StDType::kI64, {args.rows}, std::as_bytes(std::span(positions))};
  tensors["token_ids"] = {artifact::StDType::kI64, {args.rows}, std::as_bytes(std::span(ids))};
  const auto json = [&](fit::Role role) {
    return base::CanonicalJson(artifact::SpecToJson(specs.of(role)));
  };
  Check(artifact::WriteSafeTensors(path, tensors,
                                   {{"format", "kvbridge-shard"},
                                    {"schema", "1"},
                                    {"sequence_id", path.stem().string()},
                                    {"domain", "general"},
                                    {"keys", "roped"},
                                    {"source", json(fit::Role::kSource)},
                                    {"target", json(fit::Role::kTarget)},
                                    {"provenance", "{}"}}));
}

// The products of one block of every group, operands ready.
class Floor {
 public:
  Floor(const fit::AccumulatePlan& plan) {
    for (const fit::MomentGroup& group : plan.groups) {
      Shape shape{static_cast<int>(group.feature_columns), static_cast<int>(group.target_columns)};
      shapes_.push_back(shape);
      const size_t columns = shape.features + shape.targets;
      rows_.resize(std::max(rows_.size(), fit::kBlockRows * columns));
      products_.resize(std::max(products_.size(), shape.features * columns));
    }
    std::mt19937 rng(1);
    for (float& v : rows_) v = static_cast<float>(rng() % 1000) / 1000 - 0.5f;
  }

  // One block of one group.
  void Run(size_t group) {
    const int k = fit::kBlockRows;
    const auto [n, m] = shapes_[group];
    cblas_ssyrk(CblasRowMajor, CblasUpper, CblasTrans, n, k, 1, rows_.data(), n + m, 0,
                products_.data(), n);
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, m, k, 1, rows_.data(), n + m,
                rows_.data() + n, n + m, 0, products_.data(), m);
  }

  double flops(size_t group) const {
    const auto [n, m] = shapes_[group];
    return 1.0 * fit::kBlockRows * n * (n + 2.0 * m);
  }

 private:
  struct Shape {
    int features;
    int targets;
  };
  std::vector<Shape> shapes_;
  std::vector<float> rows_;
  std::vector<float> products_;
};

Json Run(const Args& args) {
  const fs::path shards = fs::path(args.dir) / "shards", out = fs::path(args.dir) / "moments";
  if (!fs::exists(shards)) {
    fs::create_directories(shards);
    const fit::SpecPair specs{Spec(args, "source", args.source_layers),
                              Spec(args, "target", args.target_layers)};
    for (int i = 0; i < args.sequences; ++i) {
      WriteShard(args, specs, i, shards / absl::StrFormat("%05d.safetensors", i));
    }
  }
  auto pool = *base::WorkerPool::Create({});
  fit::AccumulateOptions options{.memory_bytes = args.memory_bytes, .overwrite = true};
  options.layout = args.layout == "joint"        ? fit::Layout::kJoint
                   : args.layout == "head_local" ? fit::Layout::kHeadLocal
                                                 : fit::Layout::kFull;
  Json result;
  std::vector<Json> rounds;
  std::vector<double> ratios;
  for (int rep = 0; rep < args.reps; ++rep) {
    auto job = fit::Accumulator::Create(shards, out, options, pool.get());
    Check(job.status());
    const fit::AccumulatePlan& plan = (*job)->plan();
    Floor floor(plan);
    // Turn by turn, so that whatever else the machine does slows both: after each block of ours,
    // one of the floor, on as many threads.
    double floor_seconds = 0, flops = 0;
    const double all = Seconds([&] {
      Check((*job)->Run({}, [&](const fit::AccumulateProgress& p) {
        openblas_set_num_threads(pool->threads());
        const size_t group = plan.sweeps[p.sweep - 1].group;
        floor_seconds += Seconds([&] { floor.Run(group); });
        flops += floor.flops(group);
        openblas_set_num_threads(1);
      }));
    });
    // The last block of a split is not full; the floor's were.
    const auto rows = [&](fit::Split split) { return (*job)->folder().rows(split); };
    double full = 0, exact = 0;
    for (const fit::Split split : fit::kSplits) {
      full += std::ceil(static_cast<double>(rows(split)) / fit::kBlockRows);
      exact += static_cast<double>(rows(split)) / fit::kBlockRows;
    }
    const double ours = all - floor_seconds, bare = floor_seconds * exact / full;
    ratios.push_back(bare / ours);
    rounds.push_back({{"seconds", ours},
                      {"floor_seconds", bare},
                      {"floor_gflop_s", flops / floor_seconds / 1e9},
                      {"floor_over_ours", bare / ours}});
    result["layout"] = args.layout;
    result["rows"] = rows(fit::Split::kFit) + rows(fit::Split::kHeldOut);
    result["passes"] = plan.passes;
    result["sweeps"] = plan.sweeps.size();
    result["threads"] = pool->threads();
  }
  std::sort(ratios.begin(), ratios.end());
  result["rounds"] = rounds;
  result["floor_over_ours"] = ratios[ratios.size() / 2];
  return result;
}

}  // namespace
}  // namespace kvbridge::bench

int main(int argc, char** argv) {
  kvbridge::bench::Args args;
  CLI::App app("Times an accumulation against the bare products.");
  app.add_option("--dir", args.dir, "folder for shards, made once, and moments")->required();
  app.add_option("--layout", args.layout, "full, head_local, joint")
      ->check(CLI::IsMember({"full", "head_local", "joint"}));
  app.add_option("--source-layers", args.source_layers, "of the source");
  app.add_option("--target-layers", args.target_layers, "of the target");
  app.add_option("--heads", args.heads, "KV heads of both");
  app.add_option("--head-dim", args.head_dim, "dimensions of a head");
  app.add_option("--sequences", args.sequences, "shards");
  app.add_option("--rows", args.rows, "rows of a shard");
  app.add_option("--reps", args.reps, "rounds");
  app.add_option("--memory", args.memory_bytes, "cap in bytes; 0: none");
  CLI11_PARSE(app, argc, argv);
  std::cout << kvbridge::bench::Run(args).dump(2) << "\n";
}
