#include "core/fit/split_columns.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

namespace kvbridge::fit {
namespace {

constexpr int64_t kMostRows = 700;  // three chunks, the last one short

class SplitColumnsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!SplitColumns::Available()) GTEST_SKIP() << "no AMX";
  }

  // Rows of all runs, [rows, stride], by `number`.
  template <typename Number>
  void Fill(int64_t rows, Number number) {
    for (const int64_t width : widths_) stride_ += width;
    data_.resize(static_cast<size_t>(rows * stride_));
    for (float& x : data_) x = number();
    split_ = *SplitColumns::Create(widths_, kMostRows);
    for (int64_t panel = 0; panel < split_->panels(); ++panel) {
      split_->Pack(panel, data_.data(), stride_, rows);
    }
  }

  std::vector<float> Multiply(size_t x, size_t y, int64_t rows) {
    std::vector<float> product(static_cast<size_t>(widths_[x] * widths_[y]), -1);
    auto scratch = *split_->NewScratch();
    split_->Multiply(x, y, rows, scratch, product.data());
    return product;
  }

  double Exact(size_t x, int64_t i, size_t y, int64_t j, int64_t rows) const {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) sum += double{at(r, x, i)} * at(r, y, j);
    return sum;
  }
  float at(int64_t row, size_t run, int64_t column) const {
    for (size_t before = 0; before < run; ++before) column += widths_[before];
    return data_[static_cast<size_t>(row * stride_ + column)];
  }

  const std::vector<int64_t> widths_ = {80, 16, 64};  // a panel in part, one half full, two whole
  int64_t stride_ = 0;
  std::vector<float> data_;
  std::unique_ptr<SplitColumns> split_;
};

// Whole numbers of up to 16 bits are h + l without rest, and their sums here fit FP32.
TEST_F(SplitColumnsTest, NumbersOfSixteenBitsGiveExactProducts) {
  for (const int64_t rows : {1, 31, 256, 257, 700}) {
    SCOPED_TRACE(rows);
    std::mt19937 rng(7);
    stride_ = 0;
    Fill(rows, [&rng] { return rng() % 8 == 0 ? 257.0f : -1.0f; });
    for (const auto& [x, y] : {std::pair<size_t, size_t>{0, 2}, {0, 1}, {1, 0}, {2, 2}, {0, 0}}) {
      const std::vector<float> product = Multiply(x, y, rows);
      for (int64_t i = 0; i < widths_[x]; ++i) {
        for (int64_t j = x == y ? i : 0; j < widths_[y]; ++j) {
          ASSERT_EQ(product[static_cast<size_t>(i * widths_[y] + j)], Exact(x, i, y, j, rows))
              << x << "[" << i << "] " << y << "[" << j << "]";
        }
      }
    }
  }
}

TEST_F(SplitColumnsTest, OthersAreOffByTwoToTheMinusSeventeenOfThemselves) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal(0, 1);
  Fill(1, [&] { return normal(rng) * std::ldexp(1.0f, static_cast<int>(rng() % 40) - 20); });
  for (int64_t i = 0; i < widths_[0]; ++i) {
    for (int64_t j = 0; j < widths_[2]; ++j) {
      const double exact = Exact(0, i, 2, j, 1);
      ASSERT_NEAR(Multiply(0, 2, 1)[static_cast<size_t>(i * widths_[2] + j)], exact,
                  std::abs(exact) * std::ldexp(1.01, -16));
    }
    if (i == 4) break;  // each multiplies all
  }
}

}  // namespace
}  // namespace kvbridge::fit
