// Writes native artifacts with random weights, for transfer_bench and load tests: a server needs
// one, and its quality does not matter.
//
//   make_artifact DIR                                  28 x 8 x 128, head-local, k = 1
//   make_artifact DIR --layers 2 --heads 1 --head-dim 16
//   make_artifact DIR --support full --source-layers 1 --source-heads 1

#include <algorithm>
#include <cmath>
#include <iostream>
#include <random>

#include <CLI/CLI.hpp>

#include "core/artifact/artifact.h"
#include "core/base/worker_pool.h"
#include "core/tensor/convert.h"

namespace kvbridge::bench {
namespace {

struct Args {
  std::string dir;
  int layers = 28;
  int heads = 8;
  int source_layers = 0;  // 0: as the target's
  int source_heads = 0;
  int head_dim = 128;
  int top_k = 1;
  std::string support = "head_local";
  bool overwrite = false;
};

model::ModelSpec Spec(const Args& args, const std::string& name, int layers, int heads) {
  model::ModelSpec spec;
  spec.identity = {.family = "bench",
                   .model_id = "bench/" + name,
                   .revision = "0000000000000000000000000000000000000001",
                   .tokenizer_sha256 = std::string(64, '0')};
  spec.geometry = {.layers = layers, .kv_heads = heads, .head_dim = args.head_dim};
  spec.rope.params.rotary_dim = args.head_dim;
  for (int i = 0; i < args.head_dim / 2; ++i) {
    spec.rope.params.inv_freq.push_back(std::pow(1e6, -2.0 * i / args.head_dim));
  }
  return spec;
}

std::vector<std::byte> RandomBf16(int64_t n, float deviation) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(static_cast<size_t>(n));
  std::generate(values.begin(), values.end(), [&] { return normal(random); });
  std::vector<std::byte> bytes(values.size() * 2);
  tensor::EncodeRow(tensor::DType::kBf16, values.data(), 1, bytes.data(), values.size());
  return bytes;
}

absl::StatusOr<std::string> Make(const Args& args) {
  mapper::Mapper m;
  const int source_layers = args.source_layers == 0 ? args.layers : args.source_layers;
  const int source_heads = args.source_heads == 0 ? args.heads : args.source_heads;
  m.source = Spec(args, "source", source_layers, source_heads);
  m.target = Spec(args, "target", args.layers, args.heads);
  std::vector<std::byte> weight;
  const std::vector<std::byte> bias = RandomBf16(int64_t{args.heads} * args.head_dim, 0.1f);
  for (auto* component : {&m.keys, &m.values}) {
    for (int layer = 0; layer < args.layers; ++layer) {
      mapper::LayerMap map{.support = args.support == "full" ? mapper::Support::kFull
                                                             : mapper::Support::kHeadLocal};
      const int first = std::clamp(layer - args.top_k / 2, 0, source_layers - args.top_k);
      for (int s = 0; s < args.top_k; ++s) map.sources.push_back(first + s);
      const int64_t features = map.features(m.source.geometry);
      if (weight.empty()) weight = RandomBf16(args.heads * features * args.head_dim, 0.01f);
      map.weight = {tensor::DType::kBf16, {args.heads, features, args.head_dim}, weight};
      map.bias = {tensor::DType::kBf16, {args.heads, args.head_dim}, bias};
      component->push_back(std::move(map));
    }
  }
  auto pool = base::WorkerPool::Create({});
  if (!pool.ok()) return pool.status();
  return artifact::SaveArtifact(args.dir, m, {},
                                {.pool = pool->get(), .overwrite = args.overwrite});
}

}  // namespace
}  // namespace kvbridge::bench

int main(int argc, char** argv) {
  kvbridge::bench::Args args;
  CLI::App app("Writes an artifact with random weights.");
  app.add_option("dir", args.dir, "artifact folder")->required();
  app.add_option("--layers", args.layers, "layers");
  app.add_option("--heads", args.heads, "KV heads");
  app.add_option("--source-layers", args.source_layers, "layers of the source, if others");
  app.add_option("--source-heads", args.source_heads, "KV heads of the source, if others");
  app.add_option("--head-dim", args.head_dim, "dimensions of a head");
  app.add_option("--top-k", args.top_k, "source layers per target layer");
  app.add_option("--support", args.support, "full, head_local")
      ->check(CLI::IsMember({"full", "head_local"}));
  app.add_flag("--overwrite", args.overwrite, "replace an existing folder");
  CLI11_PARSE(app, argc, argv);
  const auto digest = kvbridge::bench::Make(args);
  if (!digest.ok()) {
    std::cerr << digest.status() << "\n";
    return 1;
  }
  std::cout << *digest << "\n";
}
