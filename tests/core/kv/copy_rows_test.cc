#include "core/kv/copy_rows.h"

#include <vector>

#include "gtest/gtest.h"

namespace kvbridge::kv {
namespace {

using tensor::DType;

// From one layout to another, head by head where one of them is not dense.
TEST(CopyRowsTest, MovesItsTokensAsTheyLieAndNothingElse) {
  std::vector<std::byte> from(2 * 2 * 5 * 3 * 4 * 2);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i);
  for (bool head_major : {false, true}) {
    std::vector<std::byte> to(2 * 2 * 6 * 3 * 4 * 2, std::byte{0xff});
    const KvView source = DenseTileView(from.data(), DType::kBf16, 2, 5, 3, 4);
    const KvView target = head_major ? DenseHeadMajorView(to.data(), to.data() + to.size() / 2,
                                                          DType::kBf16, 2, 6, 3, 4)
                                     : DenseTileView(to.data(), DType::kBf16, 2, 6, 3, 4);
    CopyRows(source, 1, Component::kValue, {1, 3}, target, 4);
    for (int32_t layer = 0; layer < 2; ++layer) {
      for (Component c : kComponents) {
        for (int64_t token = 0; token < 6; ++token) {
          const bool copied = layer == 1 && c == Component::kValue && token >= 4;
          for (int32_t head = 0; head < 3; ++head) {
            const std::byte* got =
                target.Row(layer, c, token) + head * target.plane(layer, c).head_stride;
            const std::byte* wanted =
                source.Row(layer, c, copied ? token - 3 : 0) + head * source.planes[0].head_stride;
            for (int i = 0; i < 8; ++i) ASSERT_EQ(got[i], copied ? wanted[i] : std::byte{0xff});
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvbridge::kv
