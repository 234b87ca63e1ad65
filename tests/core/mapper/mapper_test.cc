#include "core/mapper/mapper.h"

#include <functional>
#include <limits>

#include <gtest/gtest.h>

namespace kvbridge::mapper {
namespace {

using tensor::DType;

// A view of memory that is never read: Validate looks at shapes only.
TensorRef Tensor(std::vector<int64_t> shape, DType dtype = DType::kBf16) {
  size_t bytes = tensor::ByteSize(dtype);
  for (int64_t dim : shape) bytes *= dim;
  return {dtype, std::move(shape), {reinterpret_cast<const std::byte*>(0x1000), bytes}};
}

Mapper MakeMapper(int32_t layers, int32_t heads, int32_t dim, Support support,
                  std::vector<int32_t> sources) {
  Mapper mapper;
  mapper.source.geometry = {.layers = layers, .kv_heads = heads, .head_dim = dim};
  mapper.target.geometry = mapper.source.geometry;
  for (auto* component : {&mapper.keys, &mapper.values}) {
    for (int32_t l = 0; l < layers; ++l) {
      LayerMap map{.support = support, .sources = sources};
      map.weight = Tensor({heads, map.features(mapper.source.geometry), dim});
      map.bias = Tensor({heads, dim});
      component->push_back(map);
    }
  }
  return mapper;
}

Mapper Small(Support support = Support::kFull) { return MakeMapper(3, 2, 4, support, {2, 0}); }

TEST(MapperTest, CountsParametersAndWork) {
  // The published size of Qwen3 14B -> 32B with k = 8: 40 -> 64 layers of 8 heads of 128.
  Mapper full = MakeMapper(64, 8, 128, Support::kFull, {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(full.parameters(), 1'073'872'896);
  EXPECT_DOUBLE_EQ(full.flops_per_token(), 2.0 * 128 * 1024 * 8192);
  Mapper local = MakeMapper(64, 8, 128, Support::kHeadLocal, {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(local.parameters(), 128LL * 1024 * 1025);
  EXPECT_DOUBLE_EQ(local.flops_per_token() * 8, full.flops_per_token());
}

TEST(MapperTest, AcceptsWhatAgrees) {
  EXPECT_TRUE(Validate(Small()).ok());
  EXPECT_TRUE(Validate(Small(Support::kHeadLocal)).ok());
}

Mapper WithNetwork(Support support, const std::vector<int64_t>& widths) {
  Mapper mapper = Small(support);
  for (auto* component : {&mapper.keys, &mapper.values}) {
    for (LayerMap& map : *component) {
      int64_t inputs = map.inputs(mapper.source.geometry);
      for (const int64_t width : widths) {
        map.hidden.push_back({Tensor({inputs, width}), Tensor({width})});
        inputs = width;
      }
      map.out = Tensor({2, inputs, 4});
    }
  }
  return mapper;
}

TEST(MapperTest, ANetworkStandsBesideALinearPartOrAlone) {
  const Mapper beside = WithNetwork(Support::kHeadLocal, {6});
  EXPECT_TRUE(Validate(beside).ok());
  EXPECT_EQ(Describe(beside.keys[0]), "head_local + 6");
  // Head-local reads 2 layers of one head of 4; the network 2 layers of 2 heads of 4.
  EXPECT_EQ(beside.parameters(), 6 * (8 * (8 + 1) + 16 * 6 + 6 + 6 * 8));
  EXPECT_EQ(beside.flops_per_token(), 6 * 2 * (8 * 8 + 16 * 6 + 6 * 8));
  const Mapper alone = WithNetwork(Support::kMlp, {6, 5});
  EXPECT_TRUE(Validate(alone).ok());
  EXPECT_EQ(Describe(alone.values[2]), "mlp 6, 5");
  EXPECT_EQ(alone.parameters(), 6 * (8 + 16 * 6 + 6 + 6 * 5 + 5 + 5 * 8));
}

struct Case {
  std::string name;
  std::function<void(Mapper&)> spoil;
  std::string message;
};

class MapperValidateTest : public testing::TestWithParam<Case> {};

TEST_P(MapperValidateTest, NamesTheFieldWhatWasExpectedAndWhatCame) {
  Mapper mapper = Small();
  GetParam().spoil(mapper);
  const absl::Status status = Validate(mapper);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), GetParam().message);
}

const float kNan = std::numeric_limits<float>::quiet_NaN();

INSTANTIATE_TEST_SUITE_P(
    Fields, MapperValidateTest,
    testing::ValuesIn(std::vector<Case>{
        {"no_layers", [](Mapper& m) { m.target.geometry.layers = 0; },
         "target.geometry.layers: expected at least 1, got 0"},
        {"missing_layer", [](Mapper& m) { m.values.pop_back(); },
         "values: expected 3 entries, got 2"},
        {"no_sources", [](Mapper& m) { m.keys[1].sources.clear(); },
         "keys[1].sources: expected at least one source layer, got none"},
        {"cross_beyond",
         [](Mapper& m) {
           m.keys[1].cross_sources = {0, 3};
         },
         "keys[1].cross_sources[1]: expected a layer below 3, got 3"},
        {"layer_beyond", [](Mapper& m) { m.keys[1].sources[1] = 3; },
         "keys[1].sources[1]: expected a layer below 3, got 3"},
        {"layer_negative", [](Mapper& m) { m.keys[1].sources[0] = -1; },
         "keys[1].sources[0]: expected a layer below 3, got -1"},
        {"layer_twice",
         [](Mapper& m) {
           m.values[0].sources = {2, 2};
         },
         "values[0].sources[1]: expected each layer once, got 2 again"},
        {"heads_differ",
         [](Mapper& m) {
           m = Small(Support::kHeadLocal);
           m.source.geometry.kv_heads = 1;
         },
         "keys[0].head_source: expected 2 entries (head counts differ: 1 and 2), got none"},
        {"head_beyond",
         [](Mapper& m) {
           m = Small(Support::kHeadLocal);
           m.keys[0].head_source = {0, 2};
         },
         "keys[0].head_source[1]: expected a head below 2, got 2"},
        {"head_source_for_full",
         [](Mapper& m) {
           m.keys[0].head_source = {0, 1};
         },
         "keys[0].head_source: expected none for full support, got 2"},
        {"mlp_without_network",
         [](Mapper& m) {
           m = WithNetwork(Support::kMlp, {6});
           m.keys[1].hidden.clear();
         },
         "keys[1].hidden: expected 1 to 8 layers for mlp support, got 0"},
        {"mlp_with_heads",
         [](Mapper& m) {
           m = WithNetwork(Support::kMlp, {6});
           m.keys[1].head_source = {0, 1};
         },
         "keys[1].head_source: expected none for mlp support, got 2"},
        {"out_without_network",
         [](Mapper& m) {
           m.keys[1].out = Tensor({2, 6, 4});
         },
         "keys[1].out: expected none without hidden layers, got [2, 6, 4]"},
        {"hidden_inputs",
         [](Mapper& m) {
           m = WithNetwork(Support::kFull, {6, 5});
           m.values[0].hidden[1].weight = Tensor({7, 5});
         },
         "values[0].hidden[1].weight.shape: expected [6, 5], got [7, 5]"},
        {"hidden_width",
         [](Mapper& m) {
           m = WithNetwork(Support::kFull, {6});
           m.values[0].hidden[0].bias = Tensor({0});
         },
         "values[0].hidden[0].width: expected 1 to 65536, got 0"},
        {"out_shape",
         [](Mapper& m) {
           m = WithNetwork(Support::kFull, {6});
           m.values[0].out = Tensor({2, 5, 4});
         },
         "values[0].out.shape: expected [2, 6, 4], got [2, 5, 4]"},
        {"weight_dtype", [](Mapper& m) { m.keys[0].weight.dtype = DType::kF16; },
         "keys[0].weight.dtype: expected bf16 or f32, got f16"},
        {"weight_shape",
         [](Mapper& m) {
           m.keys[0].weight = Tensor({2, 17, 4});
         },
         "keys[0].weight.shape: expected [2, 16, 4], got [2, 17, 4]"},
        {"bias_rank", [](Mapper& m) { m.values[2].bias = Tensor({8}); },
         "values[2].bias.shape: expected [2, 4], got [8]"},
        {"weight_bytes",
         [](Mapper& m) { m.keys[0].weight.data = m.keys[0].weight.data.first(255); },
         "keys[0].weight.data: expected 256 bytes, got 255"},
        {"gamma_missing",
         [](Mapper& m) {
           m.key_norm = {.kind = KeyNorm::Kind::kKNorm, .gamma = {{1, 1, 1, 1}}};
         },
         "key_norm.gamma: expected 3 entries, got 1"},
        {"gamma_zero",
         [](Mapper& m) {
           m.key_norm = {.kind = KeyNorm::Kind::kKNorm,
                         .gamma = {{1, 0, 1, 1}, {0, 0, 0, 0}, {1, 1, 1, 1}}};
         },
         "key_norm.gamma[1]: expected a weight other than 0, got only 0"},
        {"eps", [](Mapper& m) { m.key_norm = {.kind = KeyNorm::Kind::kKNorm, .eps = 0}; },
         "key_norm.eps: expected a finite number above 0, got 0"},
        {"norm_without_strip",
         [](Mapper& m) {
           m.strip_rope = false;
           m.key_norm.kind = KeyNorm::Kind::kKNorm;
         },
         "key_norm.kind: expected none or scale when keys are mapped as cached, got k_norm"},
        {"scale_nan",
         [](Mapper& m) {
           m.key_norm = {.kind = KeyNorm::Kind::kScale,
                         .key_scale = {{1, 1}, {1, 1}, {1, kNan}},
                         .value_scale = {{1, 1}, {1, 1}, {1, 1}}};
         },
         "key_norm.key_scale[2][1]: expected a finite number, got nan"},
        {"override_beyond", [](Mapper& m) { m.target.rope.layer_overrides[7] = {}; },
         "target.rope.layer_overrides[7]: expected a layer below 3, got 7"},
    }),
    [](const auto& info) { return info.param.name; });

TEST(MapperTest, RefusesARotationThatDoesNotFitTheHead) {
  Mapper mapper = Small();
  mapper.source.rope.params = {.inv_freq = {1, 0.1, 0.01}, .rotary_dim = 6};
  const absl::Status status = Validate(mapper);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message().substr(0, 23), "source.rope.rotary_dim:");
  mapper.strip_rope = false;  // Rotations are not used.
  EXPECT_TRUE(Validate(mapper).ok());
}

}  // namespace
}  // namespace kvbridge::mapper
