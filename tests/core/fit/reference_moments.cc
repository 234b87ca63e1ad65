#include "tests/core/fit/reference_moments.h"

#include <algorithm>
#include <memory>
#include <random>

namespace kvbridge::fit {
namespace {

using kv::Component;

// The doubles that one group's spans point into.
struct GroupStorage {
  std::vector<double> mean_x, mean_y, gram, cross, target_ss;
};
using Storage = std::vector<std::unique_ptr<GroupStorage>>;

std::vector<double> Column(const Matrix& m, int64_t column) {
  std::vector<double> values;
  for (int64_t t = 0; t < m.rows; ++t) values.push_back(m.row(t)[column]);
  return values;
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

double CentredProduct(const std::vector<double>& a, const std::vector<double>& b) {
  const double mean_a = Mean(a);
  const double mean_b = Mean(b);
  double sum = 0;
  for (size_t t = 0; t < a.size(); ++t) sum += (a[t] - mean_a) * (b[t] - mean_b);
  return sum;
}

// The blocks of one side and the columns behind them.
std::vector<std::vector<double>> Columns(const std::vector<ColumnBlock>& blocks,
                                         const std::array<Matrix, 2>& rows,
                                         const model::KvGeometry& geometry) {
  std::vector<std::vector<double>> columns;
  for (const ColumnBlock& block : blocks) {
    const int64_t first =
        block.layer * geometry.row() + std::max(block.head, 0) * int64_t{geometry.head_dim};
    for (int64_t i = 0; i < block.width; ++i) {
      columns.push_back(Column(rows[static_cast<size_t>(block.component)], first + i));
    }
  }
  return columns;
}

SplitMoments Sums(const MomentGroup& group, const TestFamily& family, const TestRows& rows,
                  Storage& storage) {
  if (rows.rows() == 0) return {};
  GroupStorage& s = *storage.emplace_back(std::make_unique<GroupStorage>());
  const auto x = Columns(group.features, rows.source, family.source.geometry);
  const auto y = Columns(group.targets, rows.target, family.target.geometry);
  for (const auto& a : x) {
    s.mean_x.push_back(Mean(a));
    for (const auto& b : x) s.gram.push_back(CentredProduct(a, b));
    for (const auto& b : y) s.cross.push_back(CentredProduct(a, b));
  }
  for (const auto& b : y) {
    s.mean_y.push_back(Mean(b));
    s.target_ss.push_back(CentredProduct(b, b));
  }
  return {.rows = rows.rows(),
          .weight = static_cast<double>(rows.rows()),
          .mean_x = s.mean_x,
          .mean_y = s.mean_y,
          .gram = s.gram,
          .cross = s.cross,
          .target_ss = s.target_ss};
}

std::vector<ColumnBlock> Blocks(const model::KvGeometry& geometry, Component c, int32_t head) {
  std::vector<ColumnBlock> blocks;
  const int64_t width = head < 0 ? geometry.row() : geometry.head_dim;
  for (int32_t layer = 0; layer < geometry.layers; ++layer) {
    blocks.push_back(
        {.layer = layer, .component = c, .head = head, .begin = layer * width, .width = width});
  }
  return blocks;
}

// Keys of all layers, then values.
std::vector<ColumnBlock> BothBlocks(const model::KvGeometry& geometry) {
  std::vector<ColumnBlock> blocks = Blocks(geometry, Component::kKey, -1);
  for (ColumnBlock block : Blocks(geometry, Component::kValue, -1)) {
    block.begin += geometry.layers * geometry.row();
    blocks.push_back(block);
  }
  return blocks;
}

model::ModelSpec Spec(const char* id, int32_t layers) {
  model::ModelSpec spec;
  spec.identity = {.family = "test", .model_id = id, .revision = "r1", .tokenizer_sha256 = "00"};
  spec.geometry = {.layers = layers, .kv_heads = 2, .head_dim = 4};
  spec.rope.params.inv_freq = {1.0, 0.01};
  spec.rope.params.rotary_dim = 4;
  return spec;
}

Matrix RandomMatrix(int64_t rows, int64_t cols, std::mt19937& random) {
  std::normal_distribution<double> normal;
  Matrix m(rows, cols);
  for (double& value : m.data) value = normal(random);
  return m;
}

}  // namespace

TestFamily SmallFamily() {
  return {.source = Spec("small", 4), .target = Spec("large", 3), .parents = {{0}, {2, 1}, {3, 0}}};
}

TestRows TestFamily::Draw(int64_t rows, uint32_t draw) const {
  TestRows out;
  const model::KvGeometry& s = source.geometry;
  const model::KvGeometry& t = target.geometry;
  for (Component c : kv::kComponents) {
    const auto i = static_cast<size_t>(c);
    std::mt19937 fixed(seed * 2 + i);
    std::mt19937 random(1000 * draw + i);
    std::normal_distribution<double> normal;
    out.source[i] = RandomMatrix(rows, s.layers * s.row(), random);
    for (double& value : out.source[i].data) value = 5 + 2 * value;
    out.target[i] = Matrix(rows, t.layers * t.row());
    for (int32_t layer = 0; layer < t.layers; ++layer) {
      double strength = 1;
      for (int32_t parent : parents[layer]) {
        const Matrix mix = RandomMatrix(s.row(), t.row(), fixed);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t a = 0; a < s.row(); ++a) {
            for (int64_t b = 0; b < t.row(); ++b) {
              const bool same_head = a / s.head_dim == b / t.head_dim;
              out.target[i].row(r)[layer * t.row() + b] +=
                  strength * (same_head ? 1 : 0.2) * mix.row(a)[b] *
                  out.source[i].row(r)[parent * s.row() + a];
            }
          }
        }
        strength /= 2;
      }
    }
    for (double& value : out.target[i].data) value += noise * normal(random) - 3;
  }
  return out;
}

Moments ReferenceMoments(const TestFamily& family, const TestRows& fit, const TestRows& held_out,
                         Layout layout) {
  Moments moments{.source = family.source, .target = family.target, .layout = layout};
  auto storage = std::make_shared<Storage>();
  const auto add = [&](std::vector<ColumnBlock> features, std::vector<ColumnBlock> targets) {
    MomentGroup group{.features = std::move(features), .targets = std::move(targets)};
    group.feature_columns = group.features.back().begin + group.features.back().width;
    group.target_columns = group.targets.back().begin + group.targets.back().width;
    group.fit = Sums(group, family, fit, *storage);
    group.held_out = Sums(group, family, held_out, *storage);
    moments.groups.push_back(std::move(group));
  };
  const model::KvGeometry& source = family.source.geometry;
  const model::KvGeometry& target = family.target.geometry;
  if (layout == Layout::kJoint) add(BothBlocks(source), BothBlocks(target));
  for (Component c : kv::kComponents) {
    if (layout == Layout::kFull) add(Blocks(source, c, -1), Blocks(target, c, -1));
    for (int32_t h = 0; layout == Layout::kHeadLocal && h < target.kv_heads; ++h) {
      add(Blocks(source, c, h), Blocks(target, c, h));
    }
  }
  moments.storage = std::move(storage);
  return moments;
}

}  // namespace kvbridge::fit
