#include "server/tokens.h"

#include "absl/strings/str_cat.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvbridge::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kOne[] = "0123456789abcdef";
constexpr char kTwo[] = "fedcba9876543210";

std::string ErrorOf(absl::string_view text) {
  const auto grants = ParseTokens(text);
  EXPECT_EQ(grants.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(grants.status().message());
}

TEST(TokensTest, EachLineGrantsGroupsToATenant) {
  const auto grants =
      ParseTokens(absl::StrCat("# of the router\n", kOne, " router transfer,plan # until May\n\n  ",
                               kTwo, "\toperator\tadmin\r\n"));
  ASSERT_TRUE(grants.ok()) << grants.status();
  ASSERT_EQ(grants->size(), 2u);
  EXPECT_EQ((*grants)[0].tenant, "router");
  EXPECT_EQ((*grants)[0].groups, MethodGroups(0b0011));
  EXPECT_EQ(crypto::ToHex((*grants)[0].digest), crypto::Sha256Hex(kOne).value());
  EXPECT_EQ((*grants)[1].tenant, "operator");
  EXPECT_EQ((*grants)[1].groups, MethodGroups(0b1000));
}

TEST(TokensTest, AnEmptyFileGrantsNothing) { EXPECT_TRUE(ParseTokens("# none\n")->empty()); }

TEST(TokensTest, ATenantMayHaveSeveralTokensAtATime) {
  const auto grants = ParseTokens(absl::StrCat(kOne, " a plan\n", kTwo, " a plan\n"));
  ASSERT_TRUE(grants.ok()) << grants.status();
  EXPECT_EQ(grants->size(), 2u);
}

TEST(TokensTest, ErrorsNameTheLineAndNothingOfIt) {
  const std::string good = absl::StrCat(kOne, " a plan\n");
  EXPECT_EQ(ErrorOf(good + "short a plan"),
            "line 2: expected a token of at least 16 characters, got 5");
  EXPECT_EQ(ErrorOf(good + kTwo), "line 2: expected 3 words: token tenant groups, got 1");
  EXPECT_EQ(ErrorOf(absl::StrCat(kTwo, " a plan extra")),
            "line 1: expected 3 words: token tenant groups, got 4");
  EXPECT_EQ(ErrorOf(good + "\n" + good),
            "line 3: expected a token used once, got one of a line above");
  const std::string group = ErrorOf(absl::StrCat(kTwo, " a plan,secret"));
  EXPECT_THAT(group, HasSubstr("line 1: expected groups among transfer, plan, memory, admin"));
  EXPECT_THAT(group, Not(HasSubstr("secret")));
}

TEST(TokensTest, MoreThanTheLimitIsRefused) {
  std::string text;
  for (int i = 0; i < 4097; ++i) absl::StrAppend(&text, "0123456789abcdef", i, " a plan\n");
  EXPECT_EQ(ErrorOf(text), "line 4097: expected at most 4096 tokens, got 4097");
}

}  // namespace
}  // namespace kvbridge::server
