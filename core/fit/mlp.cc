#include "core/fit/mlp.h"

#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "core/base/status_macros.h"
#include "core/base/units.h"
#include "core/crypto/sha256.h"
#include "core/fit/mlp_checkpoint.h"
#include "core/fit/mlp_rows.h"
#include "core/tensor/convert.h"

namespace kvbridge::fit {
namespace {

namespace fs = std::filesystem;
using base::Json;
using kv::Component;
using mapper::LayerMap;
using Kind = mapper::KeyNorm::Kind;

std::vector<float> Decode(const mapper::TensorRef& tensor) {
  std::vector<float> values(tensor.data.size() / tensor::ByteSize(tensor.dtype));
  tensor::DecodeRow(tensor.dtype, tensor.data.data(), 1, values.data(), values.size());
  return values;
}

// The linear part as one matrix [inputs of the network, target heads * head_dim].
std::vector<float> Dense(const LayerMap& map, const mapper::Mapper& mapper) {
  const model::KvGeometry& source = mapper.source.geometry;
  const model::KvGeometry& target = mapper.target.geometry;
  const std::vector<float> weight = Decode(map.weight);
  const int64_t features = map.features(source);
  const int64_t columns = target.row();
  std::vector<float> dense(static_cast<size_t>(map.inputs(source) * columns));
  for (int64_t h = 0; h < target.kv_heads; ++h) {
    const int64_t from = map.head_source.empty() ? h : map.head_source[h];
    for (int64_t f = 0; f < features; ++f) {
      const int64_t row =
          map.support == mapper::Support::kFull
              ? f
              : f / source.head_dim * source.row() + from * source.head_dim + f % source.head_dim;
      for (int64_t d = 0; d < target.head_dim; ++d) {
        dense[row * columns + h * target.head_dim + d] =
            weight[(h * features + f) * target.head_dim + d];
      }
    }
  }
  return dense;
}

NetworkProblem ProblemOf(const mapper::Mapper& mapper, int32_t layer, Component component,
                         bool alone) {
  const LayerMap& map = mapper.layer(layer, component);
  const model::KvGeometry& target = mapper.target.geometry;
  NetworkProblem problem{.inputs = map.inputs(mapper.source.geometry), .outputs = target.row()};
  if (!alone) {
    problem.linear = Dense(map, mapper);
    problem.bias = Decode(map.bias);
  }
  const mapper::KeyNorm& norm = mapper.key_norm;
  const bool key = component == Component::kKey;
  if (norm.kind == Kind::kScale) {
    for (const float scale : (key ? norm.key_scale : norm.value_scale)[layer]) {
      problem.scale.insert(problem.scale.end(), target.head_dim, scale);
    }
  }
  if (norm.kind == Kind::kKNorm && key) {
    problem.eps = norm.eps;
    for (const float gamma : norm.gamma[layer]) {
      problem.inverse_gamma.push_back(std::abs(gamma) < FLT_MIN ? 0 : 1 / gamma);
    }
  }
  return problem;
}

// Of six digits, so that a manifest is short and the same everywhere.
double Six(double value) { return std::strtod(absl::StrFormat("%.6g", value).c_str(), nullptr); }

class MlpFit {
 public:
  MlpFit(const artifact::Artifact& base, const MlpOptions& options, base::WorkerPool* pool)
      : base_(base), options_(options), pool_(pool) {}

  absl::StatusOr<Solution> Run(const fs::path& shards) {
    KVB_RETURN_IF_ERROR(CheckBase());
    KVB_ASSIGN_OR_RETURN(folder_, OpenShardFolder(shards, options_.folder));
    KVB_RETURN_IF_ERROR(CheckFolder());
    KVB_RETURN_IF_ERROR(OpenWork());
    solution_ = {*base_.mapper, base_.provenance};
    solution_.mapper.digest.clear();
    storage_->base = base_.mapper->storage;
    Json layers = Json::array();
    for (int32_t l = 0; l < base_.mapper->target.geometry.layers; ++l) {
      Json record;
      for (const Component c : kv::kComponents) {
        KVB_ASSIGN_OR_RETURN(const TrainedNetwork network, Network(l, c));
        const bool kept = options_.alone || network.error < network.linear_error;
        if (kept) Put(network, l, c);
        record[c == Component::kKey ? "key" : "value"] = {
            {"linear_error", Six(network.linear_error)},
            {"error", Six(network.error)},
            {"epochs", network.epochs},
            {"kept", kept}};
      }
      layers.push_back(std::move(record));
    }
    solution_.mapper.storage = storage_;
    Json record = Settings();
    record["rows"] = {{"fit", folder_.rows(Split::kFit)},
                      {"held_out", folder_.rows(Split::kHeldOut)}};
    record["layers"] = std::move(layers);
    solution_.provenance.calibration["network"] = std::move(record);
    solution_.provenance.evidence.reset();
    return std::move(solution_);
  }

 private:
  struct Storage {
    std::vector<std::unique_ptr<std::vector<std::byte>>> tensors;
    std::shared_ptr<const void> base;
  };

  absl::Status CheckBase() const {
    if (!CanTrain()) return Train({}, {}).status();
    for (const auto* maps : {&base_.mapper->keys, &base_.mapper->values}) {
      for (const LayerMap& map : *maps) {
        if (map.hidden.empty()) continue;
        return absl::FailedPreconditionError(
            absl::StrCat("base: expected linear maps, got one that is ", mapper::Describe(map)));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckFolder() const {
    for (const Role role : kRoles) {
      const model::ModelSpec& shards = folder_.specs.of(role);
      const model::ModelSpec& base =
          role == Role::kSource ? base_.mapper->source : base_.mapper->target;
      const auto shape = [](const model::ModelSpec& spec) {
        return absl::StrCat(spec.identity.model_id, " of ", spec.geometry.layers, " layers, ",
                            spec.geometry.kv_heads, " heads of ", spec.geometry.head_dim);
      };
      if (shape(shards) != shape(base) || !(shards.rope == base.rope)) {
        return absl::FailedPreconditionError(absl::StrCat(
            "shards: expected the base's ", Name(role), " ", shape(base), ", got ", shape(shards),
            shape(shards) == shape(base) ? " with another rotation" : ""));
      }
    }
    if (folder_.rows(Split::kHeldOut) == 0) {
      return absl::InvalidArgumentError(
          "held out: expected rows that say when to stop, got none of them");
    }
    uint64_t bytes = 0;
    for (const auto* maps : {&base_.mapper->keys, &base_.mapper->values}) {
      for (const LayerMap& map : *maps) bytes = std::max(bytes, MlpRowBytes(folder_, map));
    }
    if (options_.memory_bytes == 0 || bytes <= options_.memory_bytes) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(
        "memory: expected at least ", base::HumanBytes(bytes), " for the rows of one network, got ",
        base::HumanBytes(options_.memory_bytes), "; a token stride of ",
        options_.folder.shard.token_stride *
            static_cast<int64_t>((bytes + options_.memory_bytes - 1) / options_.memory_bytes),
        " would fit"));
  }

  // Everything that the weights depend on but the rows' numbers, which the digests stand for.
  Json Settings() const {
    const TrainOptions& train = options_.train;
    return {{"schema", "kvbridge-fit-mlp/1"},
            {"base", base_.mapper->digest},
            {"hidden", train.hidden},
            {"alone", options_.alone},
            {"batch", train.batch},
            {"max_epochs", train.max_epochs},
            {"patience", train.patience},
            {"learning_rate", train.learning_rate},
            {"seed", train.seed},
            {"bf16", train.bf16},
            {"held_out", options_.folder.held_out},
            {"held_out_seed", options_.folder.seed},
            {"token_stride", options_.folder.shard.token_stride}};
  }

  absl::Status OpenWork() {
    std::string text = base::CanonicalJson(Settings());
    for (const Sequence& sequence : folder_.sequences) {
      absl::StrAppend(&text, "\n", sequence.id, " ", Name(sequence.split));
      for (const Piece& piece : sequence.pieces) absl::StrAppend(&text, " ", piece.digest);
    }
    KVB_ASSIGN_OR_RETURN(fingerprint_, crypto::Sha256Hex(text));
    std::error_code error;
    if (!options_.resume && fs::exists(options_.work, error)) {
      return absl::AlreadyExistsError(absl::StrCat(
          options_.work.string(), ": an earlier run's networks; resume from them or remove it"));
    }
    fs::create_directories(options_.work, error);
    if (!error) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat(options_.work.string(), ": ", error.message()));
  }

  // Trains it, or reads the one that is finished.
  absl::StatusOr<TrainedNetwork> Network(int32_t layer, Component component) {
    const bool key = component == Component::kKey;
    const std::string name = absl::StrCat(key ? "key." : "value.", layer);
    NetworkProblem problem = ProblemOf(*base_.mapper, layer, component, options_.alone);
    const NetworkShape shape = {problem.inputs, problem.outputs, options_.train.hidden,
                                fingerprint_};
    const fs::path path = options_.work / absl::StrCat(name, ".safetensors");
    if (fs::exists(path)) return ReadNetwork(path, shape);
    KVB_ASSIGN_OR_RETURN(
        const MlpRows rows,
        ReadMlpRows(folder_, options_.folder.shard.token_stride, base_.mapper->strip_rope,
                    base_.mapper->layer(layer, component), layer, component, pool_));
    problem.features = rows.features;
    problem.targets = rows.targets;
    problem.fit_rows = folder_.rows(Split::kFit);
    problem.held_out_rows = folder_.rows(Split::kHeldOut);
    TrainOptions train = options_.train;
    // Each network draws from a sequence of its own, so that it does not matter which came before.
    train.seed += 0x9e3779b97f4a7c15u * (2 * static_cast<uint64_t>(layer) + (key ? 1 : 2));
    const std::string what = absl::StrCat(key ? "keys" : "values", "[", layer, "]");
    train.on_epoch = [&](int32_t epoch, double error) {
      if (!options_.progress) return;
      options_.progress(absl::StrFormat("%s: epoch %d, held-out error %.4f", what, epoch, error));
    };
    absl::StatusOr<TrainedNetwork> network = Train(problem, train);
    if (!network.ok()) {
      return absl::Status(network.status().code(),
                          absl::StrCat(what, ": ", network.status().message()));
    }
    KVB_RETURN_IF_ERROR(WriteNetwork(path, *network, shape));
    return network;
  }

  // In the base's type: BF16 numbers are F32 numbers.
  mapper::TensorRef Own(std::vector<int64_t> shape, const std::vector<uint16_t>& bits) {
    const tensor::DType dtype = base_.mapper->keys[0].weight.dtype;
    auto& bytes = *storage_->tensors.emplace_back(
        std::make_unique<std::vector<std::byte>>(bits.size() * tensor::ByteSize(dtype)));
    std::vector<float> wide(bits.size());
    tensor::DecodeRow(tensor::DType::kBf16, reinterpret_cast<const std::byte*>(bits.data()), 1,
                      wide.data(), wide.size());
    tensor::EncodeRow(dtype, wide.data(), 1, bytes.data(), wide.size());
    return {dtype, std::move(shape), bytes};
  }

  void Put(const TrainedNetwork& network, int32_t layer, Component component) {
    LayerMap& map =
        (component == Component::kKey ? solution_.mapper.keys : solution_.mapper.values)[layer];
    const model::KvGeometry& target = solution_.mapper.target.geometry;
    int64_t inputs = map.inputs(solution_.mapper.source.geometry);
    if (options_.alone) {
      map.support = mapper::Support::kMlp;
      map.head_source.clear();
      map.weight = {map.weight.dtype, {target.kv_heads, 0, target.head_dim}, {}};
    }
    for (size_t i = 0; i < network.hidden.size(); ++i) {
      const int64_t width = options_.train.hidden[i];
      map.hidden.push_back({.weight = Own({inputs, width}, network.hidden[i].weight),
                            .bias = Own({width}, network.hidden[i].bias)});
      inputs = width;
    }
    // [width, heads * dim] to [heads, width, dim].
    std::vector<uint16_t> out;
    for (int64_t h = 0; h < target.kv_heads; ++h) {
      for (int64_t w = 0; w < inputs; ++w) {
        const auto row = network.out.begin() + w * target.row() + h * target.head_dim;
        out.insert(out.end(), row, row + target.head_dim);
      }
    }
    map.out = Own({target.kv_heads, inputs, target.head_dim}, out);
    map.bias = Own({target.kv_heads, target.head_dim}, network.bias);
  }

  const artifact::Artifact& base_;
  const MlpOptions& options_;
  base::WorkerPool* const pool_;
  ShardFolder folder_;
  std::string fingerprint_;
  Solution solution_;
  const std::shared_ptr<Storage> storage_ = std::make_shared<Storage>();
};

}  // namespace

absl::StatusOr<Solution> FitMlp(const artifact::Artifact& base, const fs::path& shards,
                                const MlpOptions& options, base::WorkerPool* pool) {
  return MlpFit(base, options, pool).Run(shards);
}

}  // namespace kvbridge::fit
