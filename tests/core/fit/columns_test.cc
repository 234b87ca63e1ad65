#include "core/fit/columns.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/fit/ridge.h"
#include "tests/core/fit/reference_moments.h"

namespace kvbridge::fit {
namespace {

using kv::Component;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ColumnsTest, SoundColumnsHaveNoFlaws) {
  const ColumnAudit audit =
      *AuditColumns(ReferenceMoments(SmallFamily(), SmallFamily().Draw(50, 1), {}));
  EXPECT_THAT(audit.flaws, IsEmpty());
}

TEST(ColumnsTest, ConstantNaNAndCollinearColumnsAreNamed) {
  TestRows rows = SmallFamily().Draw(50, 1);
  for (int64_t t = 0; t < 50; ++t) {
    rows.source[0].row(t)[0 * 8 + 6] = 7.25;  // layer 0 head 1 dim 2
    rows.source[1].row(t)[2 * 8 + 1] = NAN;   // layer 2 head 0 dim 1
    rows.source[1].row(t)[3 * 8 + 7] = 1 - 3 * rows.source[1].row(t)[3 * 8 + 4];  // layer 3
  }
  const Moments moments = ReferenceMoments(SmallFamily(), rows, {});
  const ColumnAudit audit = *AuditColumns(moments);
  ASSERT_EQ(audit.flaws.size(), 3);
  EXPECT_EQ(audit.flaws[0], (ColumnFlaw{Component::kKey, 0, 1, 2, Flaw::kZeroVariance}));
  EXPECT_EQ(audit.flaws[1], (ColumnFlaw{Component::kValue, 2, 0, 1, Flaw::kNotFinite}));
  EXPECT_EQ(audit.flaws[2].layer, 3);
  EXPECT_EQ(audit.flaws[2].head, 1);
  EXPECT_THAT(audit.flaws[2].dim, ::testing::AnyOf(0, 3));
  EXPECT_EQ(audit.flaws[2].flaw, Flaw::kCollinear);
}

TEST(ColumnsTest, DeadColumnsGetWeightZeroAndLeaveTheOthersAlone) {
  TestRows rows = SmallFamily().Draw(50, 1);
  TestRows held_out = SmallFamily().Draw(20, 2);
  for (int64_t t = 0; t < 50; ++t) rows.source[0].row(t)[6] = 7.25;
  for (int64_t t = 0; t < 20; ++t) held_out.source[0].row(t)[3] = INFINITY;
  const Moments moments = ReferenceMoments(SmallFamily(), rows, held_out);
  const ColumnAudit audit = *AuditColumns(moments);
  const Unit unit = UnitsFor(moments, audit, 0, Component::kKey, mapper::Support::kFull)->front();
  const std::vector<int32_t> sources = {0};
  const Ridge ridge = *SolveRidge(Gather(unit, sources, RowSet::kFit), {.value = 1e-3});
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(ridge.weight.row(i)[0] == 0, i == 6 || i == 3) << i;
  }
  for (double sum :
       ResidualSums(Gather(unit, sources, RowSet::kHeldOut), ridge.weight, ridge.bias)) {
    EXPECT_TRUE(std::isfinite(sum));
  }
}

TEST(ColumnsTest, ATargetThatIsNotFiniteIsAnErrorThatNamesIt) {
  TestRows rows = SmallFamily().Draw(50, 1);
  rows.target[1].row(3)[2 * 8 + 5] = NAN;
  const absl::Status status = AuditColumns(ReferenceMoments(SmallFamily(), rows, {})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("target value layer 2 head 1 dim 1"));
}

TEST(ColumnsTest, OneRowIsTooFew) {
  const absl::Status status =
      AuditColumns(ReferenceMoments(SmallFamily(), SmallFamily().Draw(1, 1), {})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("expected at least 2, got 1"));
}

TEST(ColumnsTest, HeadLocalMomentsNameTheHeadToo) {
  TestRows rows = SmallFamily().Draw(50, 1);
  for (int64_t t = 0; t < 50; ++t) rows.source[0].row(t)[1 * 8 + 6] = 0;
  const ColumnAudit audit =
      *AuditColumns(ReferenceMoments(SmallFamily(), rows, {}, Layout::kHeadLocal));
  EXPECT_THAT(audit.flaws, ElementsAre(ColumnFlaw{Component::kKey, 1, 1, 2, Flaw::kZeroVariance}));
}

}  // namespace
}  // namespace kvbridge::fit
