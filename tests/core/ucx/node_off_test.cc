#include "core/ucx/node.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvbridge::ucx {
namespace {

TEST(NodeOffTest, SaysWhatIsMissing) {
  const auto node = MakeNode({.listen = "127.0.0.1:0"});
  EXPECT_EQ(node.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(node.status().message()), testing::HasSubstr("libucx"));
}

}  // namespace
}  // namespace kvbridge::ucx
