#include "core/fit/accumulate.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "core/base/strict_json.h"
#include "tests/core/artifact/file_util.h"
#include "tests/core/artifact/temp_dir.h"
#include "tests/core/fit/test_shards.h"

namespace kvbridge::fit {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;
using artifact::Slurp;
using artifact::TempDir;
using kv::Component;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class AccumulateTest : public ::testing::Test {
 protected:
  void SetUp() override { pool_ = *base::WorkerPool::Create({.threads = 3}); }

  absl::Status Run(const AccumulateOptions& options, const std::string& out = "out",
                   std::stop_token stop = {},
                   std::function<void(const AccumulateProgress&)> on_progress = nullptr) {
    auto job = Accumulator::Create(shards(), dir_ / out, options, pool_.get());
    if (!job.ok()) return job.status();
    return (*job)->Run(stop, std::move(on_progress));
  }
  fs::path shards() const { return dir_ / "shards"; }
  std::set<std::string> Files() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_.path())) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }

  TempDir dir_;
  std::unique_ptr<base::WorkerPool> pool_;
};

// One column of a group on one split: its rows, and their weights, straight from the shards.
struct Rows {
  std::vector<std::vector<double>> x;  // [columns][rows]
  std::vector<std::vector<double>> y;
  std::vector<double> weights;
};

void Append(const Shard& shard, Role role, const std::vector<ColumnBlock>& blocks, bool strip,
            std::vector<std::vector<double>>* columns) {
  const model::KvGeometry& g = shard.content().specs.of(role).geometry;
  size_t column = 0;
  for (const HeadColumns& head : HeadsOf(blocks, g.kv_heads)) {
    std::vector<float> rows(static_cast<size_t>(shard.rows() * g.head_dim));
    shard.ReadHead(role, head.component, head.layer, head.head, 0, shard.rows(), strip, rows.data(),
                   g.head_dim);
    for (int32_t d = 0; d < g.head_dim; ++d, ++column) {
      columns->resize(std::max(columns->size(), column + 1));
      for (int64_t r = 0; r < shard.rows(); ++r) {
        (*columns)[column].push_back(rows[static_cast<size_t>(r * g.head_dim + d)]);
      }
    }
  }
}

Rows RowsOf(const fs::path& shards, const FolderOptions& options, const MomentGroup& group,
            Split split, bool strip) {
  Rows rows;
  const auto folder = OpenShardFolder(shards, options);
  EXPECT_TRUE(folder.ok()) << folder.status();
  for (const Sequence& sequence : folder->sequences) {
    if (sequence.split != split) continue;
    for (const Piece& piece : sequence.pieces) {
      const Shard shard = *Shard::Open(piece.path, {folder->specs, options.shard.token_stride});
      Append(shard, Role::kSource, group.features, strip, &rows.x);
      Append(shard, Role::kTarget, group.targets, strip, &rows.y);
      rows.weights.resize(rows.weights.size() + static_cast<size_t>(shard.rows()),
                          sequence.row_weight);
    }
  }
  return rows;
}

double Mean(const std::vector<double>& column, const std::vector<double>& weights) {
  double sum = 0, total = 0;
  for (size_t r = 0; r < column.size(); ++r) {
    sum += weights[r] * column[r];
    total += weights[r];
  }
  return sum / total;
}

double Moment(const std::vector<double>& a, const std::vector<double>& b,
              const std::vector<double>& weights) {
  const double mean_a = Mean(a, weights), mean_b = Mean(b, weights);
  double sum = 0;
  for (size_t r = 0; r < a.size(); ++r) sum += weights[r] * (a[r] - mean_a) * (b[r] - mean_b);
  return sum;
}

// What a product may be off by, of the norms of its columns: FP32's, and that of numbers of 16
// bits.
constexpr double kFp32 = 1e-6;
constexpr double kSixteenBits = 1e-5;

// Every number against two plain FP64 passes over the rows.
void ExpectMoments(const SplitMoments& got, const Rows& rows, double tolerance) {
  const size_t features = rows.x.size(), targets = rows.y.size();
  ASSERT_EQ(got.rows, static_cast<int64_t>(rows.weights.size()));
  double weight = 0;
  for (const double w : rows.weights) weight += w;
  EXPECT_DOUBLE_EQ(got.weight, weight);
  ASSERT_EQ(got.gram.size(), features * features);
  ASSERT_EQ(got.cross.size(), features * targets);
  std::vector<double> norm_x, norm_y;
  for (const auto& column : rows.x)
    norm_x.push_back(std::sqrt(Moment(column, column, rows.weights)));
  for (const auto& column : rows.y)
    norm_y.push_back(std::sqrt(Moment(column, column, rows.weights)));
  for (size_t i = 0; i < features; ++i) {
    ASSERT_NEAR(got.mean_x[i], Mean(rows.x[i], rows.weights), 1e-9 * (1 + std::abs(got.mean_x[i])));
    for (size_t j = 0; j < features; ++j) {
      ASSERT_NEAR(got.gram[i * features + j], Moment(rows.x[i], rows.x[j], rows.weights),
                  tolerance * norm_x[i] * norm_x[j]);
    }
    for (size_t j = 0; j < targets; ++j) {
      ASSERT_NEAR(got.cross[i * targets + j], Moment(rows.x[i], rows.y[j], rows.weights),
                  tolerance * norm_x[i] * norm_y[j]);
    }
  }
  for (size_t j = 0; j < targets; ++j) {
    ASSERT_NEAR(got.mean_y[j], Mean(rows.y[j], rows.weights), 1e-9 * (1 + std::abs(got.mean_y[j])));
    ASSERT_NEAR(got.target_ss[j], norm_y[j] * norm_y[j], 1e-6 * norm_y[j] * norm_y[j]);
  }
}

// Products of both kinds, where the machine has both.
class MomentsTest : public AccumulateTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !SplitColumns::Available()) GTEST_SKIP() << "no AMX";
    AccumulateTest::SetUp();
  }
  double tolerance() const { return GetParam() ? kSixteenBits : kFp32; }
};
INSTANTIATE_TEST_SUITE_P(Products, MomentsTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Amx" : "Blas"; });

TEST_P(MomentsTest, EveryLayoutsMomentsAreThoseOfTheRows) {
  WriteShards(shards(), 6, 40);
  for (const Layout layout : {Layout::kFull, Layout::kHeadLocal, Layout::kJoint}) {
    SCOPED_TRACE(std::string(Name(layout)));
    AccumulateOptions options{.layout = layout, .overwrite = true};
    options.amx = GetParam();
    options.folder.domain_weights = {{"code", 2.5}};
    options.folder.shard.token_stride = 3;
    ASSERT_TRUE(Run(options).ok());
    const auto file = ReadMoments(dir_ / "out");
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->moments.layout, layout);
    ASSERT_EQ(file->moments.groups.size(), layout == Layout::kFull    ? 2
                                           : layout == Layout::kJoint ? 1
                                                                      : 4);
    for (const MomentGroup& group : file->moments.groups) {
      ExpectMoments(group.fit, RowsOf(shards(), options.folder, group, Split::kFit, true),
                    tolerance());
      ExpectMoments(group.held_out, RowsOf(shards(), options.folder, group, Split::kHeldOut, true),
                    tolerance());
    }
  }
}

// Means a thousand times the spread: products about zero would lose six digits of seven.
TEST_P(MomentsTest, LargeMeansDoNotCancel) {
  WriteShards(shards(), 4, 900, 1000);
  AccumulateOptions options{.strip_rope = false};
  options.amx = GetParam();
  ASSERT_TRUE(Run(options).ok());
  const auto file = ReadMoments(dir_ / "out");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE(file->moments.strip_rope);
  for (const MomentGroup& group : file->moments.groups) {
    ExpectMoments(group.fit, RowsOf(shards(), options.folder, group, Split::kFit, false),
                  tolerance());
  }
}

TEST_F(AccumulateTest, BytesDependOnNeitherThreadsNorFileNames) {
  WriteShards(shards(), 5, 700);
  ASSERT_TRUE(Run({}).ok());
  pool_ = *base::WorkerPool::Create({.threads = 1});
  fs::rename(shards() / "s00.safetensors", shards() / "zz.safetensors");
  ASSERT_TRUE(Run({}, "one thread").ok());
  EXPECT_EQ(Slurp(dir_ / "out"), Slurp(dir_ / "one thread"));
}

// 640 source and 1,120 target columns: two and three column tiles.
SpecPair DeepPair() {
  SpecPair specs = SmallPair();
  specs.source.geometry.layers = 40;
  specs.target.geometry.layers = 70;
  return specs;
}

TEST_F(AccumulateTest, ACapOnMemoryCostsPassesAndChangesNoBit) {
  fs::create_directories(shards());
  for (const std::string id : {"a", "b", "c"}) {
    MakeShard({.sequence_id = id, .specs = DeepPair(), .rows = 30, .seed = uint32_t(id[0])})
        .Write(shards() / (id + ".safetensors"));
  }
  ASSERT_TRUE(Run({}).ok());
  const ShardFolder folder = *OpenShardFolder(shards(), {});
  const AccumulatePlan free = *PlanAccumulate(folder, Layout::kFull, {.threads = 1});
  EXPECT_EQ(free.passes, 1);
  EXPECT_EQ(free.sweeps.size(), 2u);
  double passes = 1;
  for (const int percent : {90, 70, 60}) {
    SCOPED_TRACE(percent);
    const PlanLimits limits{.memory_bytes = free.peak_bytes * percent / 100, .threads = 1};
    const auto plan = PlanAccumulate(folder, Layout::kFull, limits);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_LE(plan->peak_bytes, limits.memory_bytes);
    EXPECT_GT(plan->passes, passes);
    passes = plan->passes;

    // What the process holds already comes on top.
    auto job = Accumulator::Create(shards(), dir_ / "capped", {.overwrite = true}, pool_.get());
    ASSERT_TRUE(job.ok());
    const uint64_t cap = (*job)->plan().peak_bytes - free.peak_bytes * (100 - percent) / 100;
    ASSERT_TRUE(Run({.memory_bytes = cap, .overwrite = true}, "capped").ok());
    EXPECT_EQ(Slurp(dir_ / "capped"), Slurp(dir_ / "out"));
  }
  const auto least = PlanAccumulate(folder, Layout::kFull, {.memory_bytes = 1, .threads = 1});
  EXPECT_EQ(least.status().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(least.status().message()), HasSubstr("expected at least"));
}

// Every file larger than the limit fails, as on a full disk.
TEST_F(AccumulateTest, AFullDiskIsSaidBeforeAnythingIsReadAndLeavesNothing) {
  WriteShards(shards(), 3, 30);
  auto job = Accumulator::Create(shards(), dir_ / "out", {}, pool_.get());
  ASSERT_TRUE(job.ok()) << job.status();
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{4096, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  int blocks = 0;
  const absl::Status status = (*job)->Run({}, [&](auto&) { ++blocks; });
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(blocks, 0);
  EXPECT_THAT(Files(), UnorderedElementsAre("shards"));
}

// Stops at every block in turn; the rest of the run goes on in a new process's place.
TEST_F(AccumulateTest, ARunThatWasStoppedAnywhereResumesToTheSameBytes) {
  WriteShards(shards(), 6, 1500);
  ASSERT_TRUE(Run({}).ok());
  int blocks = 0;
  ASSERT_TRUE(Run({}, "count", {}, [&](const auto&) { ++blocks; }).ok());
  EXPECT_EQ(blocks, 2 * (4 + 1));  // 7500 and 1500 rows of 2048, K and V
  for (int after = 1; after < blocks; ++after) {
    SCOPED_TRACE(after);
    std::stop_source stop;
    int seen = 0;
    const absl::Status stopped = Run({.overwrite = true}, "again", stop.get_token(), [&](auto&) {
      if (++seen == after) stop.request_stop();
    });
    EXPECT_EQ(stopped.code(), StatusCode::kCancelled) << stopped;
    EXPECT_FALSE(fs::exists(dir_ / "again"));
    ASSERT_TRUE(fs::exists(dir_ / "again.checkpoint"));
    EXPECT_EQ(Run({}, "again").code(), StatusCode::kAlreadyExists);
    const absl::Status resumed = Run({.resume = true}, "again");
    ASSERT_TRUE(resumed.ok()) << resumed;
    EXPECT_EQ(Slurp(dir_ / "again"), Slurp(dir_ / "out"));
    EXPECT_FALSE(fs::exists(dir_ / "again.checkpoint"));
    EXPECT_FALSE(fs::exists(dir_ / "again.partial"));
    fs::remove(dir_ / "again");
  }
}

TEST_F(AccumulateTest, ACheckpointOfOtherShardsOrOptionsIsRefused) {
  WriteShards(shards(), 4, 1500);
  std::stop_source stop;
  ASSERT_EQ(Run({}, "out", stop.get_token(), [&](auto&) { stop.request_stop(); }).code(),
            StatusCode::kCancelled);
  AccumulateOptions other{.resume = true};
  other.folder.seed = 7;
  EXPECT_EQ(Run(other).code(), StatusCode::kInvalidArgument);
  fs::remove(shards() / "s03.safetensors");
  EXPECT_EQ(Run({.resume = true}).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(fs::exists(dir_ / "out.checkpoint"));
}

TEST_F(AccumulateTest, NamesTheShardTensorLayerHeadAndRowOfANumberThatIsNotFinite) {
  WriteShards(shards(), 3, 30);
  ShardFile file = MakeShard({.sequence_id = "s03", .rows = 30, .seed = 9});
  // Layer 1, head 0 of 2, row 17, dim 3.
  file.floats("target.values")[((1 * 2 + 0) * 30 + 17) * 8 + 3] =
      -std::numeric_limits<float>::infinity();
  file.Write(shards() / "bad.safetensors");
  const absl::Status status = Run({});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "bad.safetensors: target.values: expected finite numbers, got NaN or infinity in layer "
            "1, head 0, row 17, dim 3");
  EXPECT_THAT(Files(), UnorderedElementsAre("shards"));
}

TEST_F(AccumulateTest, GoldenShardsThatShouldBeRefusedAreAndLeaveNothingBehind) {
  const std::set<std::string> accepted = {"ok", "half_keys", "constant_target"};
  const fs::path folder = "tests/data/golden/malformed_shards";
  int seen = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.is_directory()) continue;
    ++seen;
    const std::string name = entry.path().filename().string();
    auto job = Accumulator::Create(entry.path(), dir_ / name, {}, pool_.get());
    const absl::Status status = job.ok() ? (*job)->Run({}, nullptr) : job.status();
    if (accepted.contains(name)) {
      EXPECT_TRUE(status.ok()) << name << ": " << status;
      fs::remove(dir_ / name);
    } else {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name << ": " << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("seq_0000.safetensors")) << name;
    }
  }
  EXPECT_EQ(seen, 21);
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(AccumulateTest, RefusesShardsOfAnotherModel) {
  WriteShards(shards(), 2, 20);
  TestShard other{.sequence_id = "x"};
  other.specs.source.identity.revision = "9999999";
  MakeShard(other).Write(shards() / "x.safetensors");
  const absl::Status status = Run({});
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("x.safetensors: another model than in s00.safetensors: "
                        "source.identity.revision"));
}

TEST_F(AccumulateTest, RefusesASequenceTwice) {
  WriteShards(shards(), 2, 20);
  MakeShard({.sequence_id = "s01", .rows = 20, .seed = 5}).Write(shards() / "x.safetensors");
  absl::Status status = Run({});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("duplicate sequence s01"));
  MakeShard({.sequence_id = "copy", .rows = 20, .seed = 101}).Write(shards() / "x.safetensors");
  status = Run({});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("hold the same tokens"));
}

TEST_F(AccumulateTest, PiecesOfASequenceAreOne) {
  WriteShards(shards(), 2, 20);
  MakeShard({.sequence_id = "s01", .rows = 20, .first_position = 80, .seed = 5})
      .Write(shards() / "x.safetensors");
  const auto folder = OpenShardFolder(shards(), {});
  ASSERT_TRUE(folder.ok()) << folder.status();
  ASSERT_EQ(folder->sequences.size(), 2u);
  EXPECT_EQ(folder->sequences[1].rows(), 40);
}

TEST_F(AccumulateTest, HoldsOutAFifthOfTheSequencesBySeedAndId) {
  WriteShards(shards(), 20, 4);
  const auto held_out = [&](FolderOptions options) {
    const auto folder = OpenShardFolder(shards(), options);
    EXPECT_TRUE(folder.ok()) << folder.status();
    std::set<std::string> ids;
    for (const Sequence& s : folder->sequences) {
      if (s.split == Split::kHeldOut) ids.insert(s.id);
    }
    return ids;
  };
  const std::set<std::string> base = held_out({});
  EXPECT_EQ(base.size(), 4u);
  EXPECT_EQ(held_out({}), base);
  EXPECT_NE(held_out({.seed = 1}), base);
  EXPECT_EQ(held_out({.held_out = 0.01}).size(), 1u);
  EXPECT_EQ(held_out({.held_out = 0.99}).size(), 19u);
  EXPECT_THAT(held_out({.held_out = 0}), IsEmpty());
  // Machines that share the folder agree.
  std::set<std::string> together;
  for (int32_t i = 0; i < 3; ++i) together.merge(held_out({.shard_index = i, .shard_count = 3}));
  EXPECT_EQ(together, base);
}

TEST_F(AccumulateTest, RefusesOptionsThatMakeNoSense) {
  WriteShards(shards(), 2, 20);
  const auto expect = [&](const std::string& message, FolderOptions folder) {
    AccumulateOptions options;
    options.folder = std::move(folder);
    const absl::Status status = Run(options);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  expect("held_out: expected [0, 1), got 1", {.held_out = 1});
  expect("held_out", {.held_out = std::numeric_limits<double>::quiet_NaN()});
  expect("weight of domain cod: no sequence has it", {.domain_weights = {{"cod", 2}}});
  expect("weight of domain code: expected a number above 0", {.domain_weights = {{"code", 0}}});
  expect("shard index", {.shard_index = 2, .shard_count = 2});
  expect("token_stride", {.shard = {.token_stride = 0}});
  expect("at least 2 rows to fit on, got 1", {.shard = {.token_stride = 100}});
  EXPECT_EQ(Run({.memory_bytes = 1000}).code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(Files(), UnorderedElementsAre("shards"));
}

TEST_F(AccumulateTest, NeitherMissingFoldersNorExistingResultsAreTouched) {
  EXPECT_EQ(Run({}).code(), StatusCode::kNotFound);
  fs::create_directories(shards());
  EXPECT_EQ(Run({}).code(), StatusCode::kNotFound);
  WriteShards(shards(), 2, 20);
  artifact::Spill(dir_ / "out", "mine");
  EXPECT_EQ(Run({}).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(Slurp(dir_ / "out"), "mine");
  EXPECT_TRUE(Run({.overwrite = true}).ok());
}

}  // namespace
}  // namespace kvbridge::fit
