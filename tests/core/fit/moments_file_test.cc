#include "core/fit/moments_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/artifact/safetensors.h"
#include "core/base/file.h"
#include "core/fit/groups.h"
#include "tests/core/artifact/file_util.h"
#include "tests/core/artifact/temp_dir.h"
#include "tests/core/fit/test_shards.h"

namespace kvbridge::fit {
namespace {

using absl::StatusCode;
using artifact::Slurp;
using artifact::Spill;
using artifact::TempDir;
using kv::Component;
using ::testing::HasSubstr;

MomentsHeader SmallHeader() {
  MomentsHeader header;
  header.specs = SmallPair();
  header.layout = Layout::kHeadLocal;
  header.sequences = {{"a", "general", Split::kFit, 3, 2, {"d1"}},
                      {"b", "code", Split::kHeldOut, 5, 1, {"d2", "d3"}}};
  header.provenance = {{"seed", 7}};
  return header;
}

class MomentsFileTest : public ::testing::Test {
 protected:
  // Numbers count up through each field.
  void SetUp() override {
    auto writer = *MomentsWriter::Create(path(), SmallHeader());
    ASSERT_TRUE(writer->Open(false).ok());
    std::vector<double> numbers(10000);
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i);
    for (size_t g = 0; g < writer->groups().size(); ++g) {
      const int64_t n = writer->groups()[g].feature_columns, m = writer->groups()[g].target_columns;
      for (const Split split : kSplits) {
        const auto write = [&](MomentField field, const MomentsWriter::Block& block) {
          ASSERT_TRUE(writer->Write(g, split, field, block).ok());
        };
        write(MomentField::kMeanX, {0, 0, 1, n, numbers.data(), n});
        write(MomentField::kMeanY, {0, 0, 1, m, numbers.data(), m});
        write(MomentField::kTargetSs, {0, 0, 1, m, numbers.data(), m});
        write(MomentField::kGram, {0, 0, n, n, numbers.data(), n});
        // In two blocks of columns.
        write(MomentField::kCross, {0, 0, n, 3, numbers.data(), m});
        write(MomentField::kCross, {0, 3, n, m - 3, numbers.data() + 3, m});
      }
    }
    ASSERT_TRUE(writer->Commit().ok());
  }

  std::filesystem::path path() const { return dir_ / "moments"; }
  absl::Status ReadWith(const std::string& from, const std::string& to) {
    std::string text = Slurp(path());
    text.replace(text.find(from), from.size(), to);
    Spill(dir_ / "spoilt", text);
    return ReadMoments(dir_ / "spoilt").status();
  }

  TempDir dir_;
};

TEST_F(MomentsFileTest, ReadsWhatWasWritten) {
  const auto file = ReadMoments(path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->header.sequences, SmallHeader().sequences);
  EXPECT_EQ(file->header.provenance, SmallHeader().provenance);
  EXPECT_EQ(file->moments.source, SmallPair().source);
  EXPECT_EQ(file->moments.target, SmallPair().target);
  ASSERT_EQ(file->moments.groups.size(), 4u);
  const MomentGroup& group = file->moments.groups[3];
  EXPECT_EQ(group.features[2], (ColumnBlock{2, Component::kValue, 1, 16, 8}));
  EXPECT_EQ(group.fit.rows, 3);
  EXPECT_EQ(group.fit.weight, 6);
  EXPECT_EQ(group.held_out.rows, 5);
  for (const auto& [field, size] :
       {std::pair(group.held_out.gram, 24 * 24), std::pair(group.held_out.cross, 24 * 16),
        std::pair(group.held_out.mean_x, 24), std::pair(group.held_out.mean_y, 16),
        std::pair(group.held_out.target_ss, 16)}) {
    ASSERT_EQ(field.size(), static_cast<size_t>(size));
    for (int i = 0; i < size; ++i) ASSERT_EQ(field[static_cast<size_t>(i)], i);
  }
}

TEST_F(MomentsFileTest, RefusesWhatIsMalformed) {
  const auto expect = [&](const std::string& message, const absl::Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  };
  expect("metadata format: expected \"kvbridge-moments\"",
         ReadWith("kvbridge-moments", "kvbridge-nothing"));
  expect("metadata layout: expected full, head_local or joint",
         ReadWith("head_local", "head_lokal"));
  expect("\"key.0.fit.mean_x\" is missing", ReadWith("key.0.fit.mean_x", "key.9.fit.mean_x"));
  expect("sequences[0]: split: expected", ReadWith(R"(\"split\":\"fit\")", R"(\"split\":\"fix\")"));
  expect("sequences[0].rows", ReadWith(R"(\"rows\":3)", R"(\"rows\":0)"));
  std::string text = Slurp(path());
  text.resize(text.size() - 8);
  Spill(dir_ / "spoilt", text);
  expect("data_offsets", ReadMoments(dir_ / "spoilt").status());
}

TEST_F(MomentsFileTest, AWriterThatDoesNotCommitLeavesNothing) {
  {
    auto writer = *MomentsWriter::Create(dir_ / "other", SmallHeader());
    ASSERT_TRUE(writer->Open(false).ok());
    EXPECT_TRUE(std::filesystem::exists(dir_ / "other.partial"));
  }
  EXPECT_FALSE(std::filesystem::exists(dir_ / "other.partial"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "other"));
  // Kept ones are found again, unless cut.
  {
    auto writer = *MomentsWriter::Create(dir_ / "other", SmallHeader());
    ASSERT_TRUE(writer->Open(false).ok());
    writer->Keep(true);
  }
  EXPECT_TRUE((*MomentsWriter::Create(dir_ / "other", SmallHeader()))->Open(true).ok());
  EXPECT_EQ((*MomentsWriter::Create(dir_ / "other", SmallHeader()))->Open(true).code(),
            StatusCode::kDataLoss);
}

TEST(Groups, JointOnesPutKeysAndValuesOfALayerBesideEachOther) {
  const SpecPair specs = SmallPair();
  const auto groups = *MakeGroups(Layout::kJoint, specs.source.geometry, specs.target.geometry);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].feature_columns, 3 * 2 * 16);
  EXPECT_EQ(groups[0].features[0], (ColumnBlock{0, Component::kKey, -1, 0, 16}));
  EXPECT_EQ(groups[0].features[1], (ColumnBlock{0, Component::kValue, -1, 16, 16}));
  EXPECT_EQ(groups[0].features[2], (ColumnBlock{1, Component::kKey, -1, 32, 16}));
  EXPECT_EQ(GroupName(Layout::kJoint, groups[0]), "joint");
}

TEST(Groups, HeadLocalNeedsEqualHeadCounts) {
  SpecPair specs = SmallPair();
  specs.target.geometry.kv_heads = 4;
  EXPECT_EQ(
      MakeGroups(Layout::kHeadLocal, specs.source.geometry, specs.target.geometry).status().code(),
      StatusCode::kFailedPrecondition);
  EXPECT_EQ(MakeGroups(Layout::kFull, specs.source.geometry, specs.target.geometry)->size(), 2u);
}

}  // namespace
}  // namespace kvbridge::fit
