#include "core/fit/merge.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/fit/accumulate.h"
#include "tests/core/artifact/file_util.h"
#include "tests/core/artifact/temp_dir.h"
#include "tests/core/fit/test_shards.h"

namespace kvbridge::fit {
namespace {

namespace fs = std::filesystem;
using absl::StatusCode;
using artifact::Slurp;
using artifact::TempDir;
using ::testing::HasSubstr;

class MergeTest : public ::testing::Test {
 protected:
  void SetUp() override { pool_ = *base::WorkerPool::Create({.threads = 2}); }

  // Moments of a folder, in the file "<folder>.<name>".
  fs::path Accumulate(const std::string& folder, const std::string& name,
                      const AccumulateOptions& options) {
    const fs::path out = dir_ / absl::StrCat(folder, ".", name);
    auto job = Accumulator::Create(dir_ / folder, out, options, pool_.get());
    EXPECT_TRUE(job.ok()) << job.status();
    const absl::Status status = (*job)->Run({}, nullptr);
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }
  // Of shard i of n of the folder "shards".
  fs::path Part(int32_t i, int32_t n, AccumulateOptions options = {}) {
    options.folder.shard_index = i;
    options.folder.shard_count = n;
    options.overwrite = true;
    return Accumulate("shards", absl::StrCat(i, "of", n), options);
  }
  // Of a folder "other" with one shard.
  fs::path Other(const TestShard& shard) {
    fs::create_directories(dir_ / "other");
    MakeShard(shard).Write(dir_ / "other" / "x.safetensors");
    return Accumulate("other", "all", {.overwrite = true});
  }
  std::vector<fs::path> Parts(int32_t n, const AccumulateOptions& options = {}) {
    std::vector<fs::path> parts;
    for (int32_t i = 0; i < n; ++i) parts.push_back(Part(i, n, options));
    return parts;
  }
  absl::Status Merge(const std::vector<fs::path>& parts, const std::string& out) {
    return MergeMoments(parts, dir_ / out, {}, {});
  }

  TempDir dir_;
  std::unique_ptr<base::WorkerPool> pool_;
};

// Largest difference of two files' numbers, relative to the geometric mean of the diagonals.
double Difference(const fs::path& a, const fs::path& b) {
  const MomentsFile x = *ReadMoments(a), y = *ReadMoments(b);
  EXPECT_EQ(x.header.sequences, y.header.sequences);
  EXPECT_EQ(x.moments.groups.size(), y.moments.groups.size());
  double worst = 0;
  for (size_t g = 0; g < x.moments.groups.size(); ++g) {
    for (const auto split : {&MomentGroup::fit, &MomentGroup::held_out}) {
      const SplitMoments& p = x.moments.groups[g].*split;
      const SplitMoments& q = y.moments.groups[g].*split;
      EXPECT_EQ(p.rows, q.rows);
      EXPECT_DOUBLE_EQ(p.weight, q.weight);
      const size_t n = p.mean_x.size(), m = p.mean_y.size();
      for (size_t i = 0; i < n; ++i) {
        const auto spread = [&](double square) {
          return std::sqrt(p.gram[i * n + i]) * std::sqrt(square);
        };
        for (size_t j = 0; j < n; ++j) {
          worst = std::max(
              worst, std::abs(p.gram[i * n + j] - q.gram[i * n + j]) / spread(p.gram[j * n + j]));
        }
        for (size_t j = 0; j < m; ++j) {
          worst = std::max(
              worst, std::abs(p.cross[i * m + j] - q.cross[i * m + j]) / spread(p.target_ss[j]));
        }
        worst = std::max(
            worst, std::abs(p.mean_x[i] - q.mean_x[i]) / std::sqrt(p.gram[i * n + i] / p.weight));
      }
      for (size_t j = 0; j < m; ++j) {
        worst = std::max(worst, std::abs(p.target_ss[j] - q.target_ss[j]) / p.target_ss[j]);
        worst = std::max(
            worst, std::abs(p.mean_y[j] - q.mean_y[j]) / std::sqrt(p.target_ss[j] / p.weight));
      }
    }
  }
  return worst;
}

TEST_F(MergeTest, AnyOrderGivesTheSameBytes) {
  WriteShards(dir_ / "shards", 9, 60);
  std::vector<fs::path> parts = Parts(3);
  ASSERT_TRUE(Merge(parts, "first").ok());
  while (std::next_permutation(parts.begin(), parts.end())) {
    fs::remove(dir_ / "other");
    ASSERT_TRUE(Merge(parts, "other").ok());
    EXPECT_EQ(Slurp(dir_ / "first"), Slurp(dir_ / "other"));
  }
}

TEST_F(MergeTest, MergesOfMergesAgreeToFp64Rounding) {
  WriteShards(dir_ / "shards", 14, 60, 5);
  AccumulateOptions options;
  options.folder.domain_weights = {{"code", 3}};
  const std::vector<fs::path> parts = Parts(7, options);
  ASSERT_TRUE(Merge(parts, "flat").ok());
  ASSERT_TRUE(Merge({parts[0], parts[3]}, "a").ok());
  ASSERT_TRUE(Merge({parts[6], parts[1], parts[4]}, "b").ok());
  ASSERT_TRUE(Merge({dir_ / "b", parts[2], dir_ / "a", parts[5]}, "tree").ok());
  EXPECT_LT(Difference(dir_ / "flat", dir_ / "tree"), 1e-12);
}

// The same rows in other blocks: products differ in their last bits (split_columns.h, where used).
TEST_F(MergeTest, OneTwoAndSevenShardsAgreeToRounding) {
  WriteShards(dir_ / "shards", 14, 60, 5);
  const fs::path one = Part(0, 1);
  for (const int32_t n : {2, 7}) {
    const std::string out = absl::StrCat("merged", n);
    ASSERT_TRUE(Merge(Parts(n), out).ok());
    EXPECT_LT(Difference(one, dir_ / out), 1e-5) << n;
  }
}

TEST_F(MergeTest, GramStaysSymmetric) {
  WriteShards(dir_ / "shards", 6, 30, 2);
  ASSERT_TRUE(Merge(Parts(2), "out").ok());
  const MomentsFile file = *ReadMoments(dir_ / "out");
  const MomentGroup& group = file.moments.groups[0];
  const auto n = static_cast<size_t>(group.feature_columns);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < i; ++j) ASSERT_EQ(group.fit.gram[i * n + j], group.fit.gram[j * n + i]);
  }
}

TEST_F(MergeTest, NamesASequenceThatIsInTwoFiles) {
  WriteShards(dir_ / "shards", 4, 20);
  const fs::path all = Part(0, 1), half = Part(1, 2);
  absl::Status status = Merge({all, half}, "out");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "sequence s01 is in shards.0of1 and in shards.1of2");
  EXPECT_EQ(Merge({half, half}, "out").code(), StatusCode::kInvalidArgument);
  // The same tokens under another id.
  status = Merge({all, Other({.sequence_id = "copy", .rows = 20, .seed = 101})}, "out");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "other.all: sequence copy: the same tokens are in shards.0of1");
  EXPECT_FALSE(fs::exists(dir_ / "out"));
}

TEST_F(MergeTest, RefusesOtherModelsLayoutsAndKeys) {
  WriteShards(dir_ / "shards", 4, 20);
  const fs::path first = Part(0, 2);
  absl::Status status = Merge({first, Part(1, 2, {.layout = Layout::kJoint})}, "out");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "shards.1of2: layout: expected full as in shards.0of2, got joint");
  status = Merge({first, Part(1, 2, {.strip_rope = false})}, "out");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "shards.1of2: keys: expected stripped as in shards.0of2, got roped");
  TestShard other{.sequence_id = "x"};
  other.specs.target.identity.revision = "9999999";
  status = Merge({first, Other(other)}, "out");
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("target.identity.revision"));
  EXPECT_FALSE(fs::exists(dir_ / "out"));
}

TEST_F(MergeTest, LeavesWhatIsThereAlone) {
  WriteShards(dir_ / "shards", 4, 20);
  const std::vector<fs::path> parts = Parts(2);
  artifact::Spill(dir_ / "out", "mine");
  EXPECT_EQ(Merge(parts, "out").code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(Merge({dir_ / "out"}, "other").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Merge({dir_ / "none"}, "other").code(), StatusCode::kNotFound);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(MergeMoments(parts, dir_ / "other", {}, stop.get_token()).code(),
            StatusCode::kCancelled);
  EXPECT_FALSE(fs::exists(dir_ / "other"));
  EXPECT_FALSE(fs::exists(dir_ / "other.partial"));
  EXPECT_EQ(Slurp(dir_ / "out"), "mine");
  EXPECT_TRUE(MergeMoments(parts, dir_ / "out", {.overwrite = true}, {}).ok());
  EXPECT_EQ(ReadMoments(dir_ / "out")->header.sequences.size(), 4u);
}

}  // namespace
}  // namespace kvbridge::fit
