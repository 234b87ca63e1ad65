#include "core/base/utf8.h"

#include "gtest/gtest.h"

namespace kvbridge::base {
namespace {

TEST(Utf8Test, ClipsBetweenCharacters) {
  EXPECT_EQ(Clip("größer", 10), "größer");
  EXPECT_EQ(Clip("größer", 3), "gr");
  EXPECT_EQ(Clip("größer", 4), "grö");
  EXPECT_EQ(Clip("\xf0\x9f\x98\x80x", 3), "");
  EXPECT_EQ(Clip("\xf0\x9f\x98\x80x", 4), "\xf0\x9f\x98\x80");
  EXPECT_EQ(Clip("", 0), "");
}

TEST(Utf8Test, ReplacesWhatIsOfNoCharacter) {
  const std::string bad = kReplacement;
  EXPECT_EQ(ValidUtf8("größer \xf0\x9f\x98\x80"), "größer \xf0\x9f\x98\x80");
  EXPECT_EQ(ValidUtf8("a\xc3"), "a" + bad);               // cut off
  EXPECT_EQ(ValidUtf8("\xc0\x80z"), bad + bad + "z");     // overlong
  EXPECT_EQ(ValidUtf8("\xed\xa0\x80"), bad + bad + bad);  // half of a pair
  EXPECT_EQ(ValidUtf8("\xff\xc3\xb6"), bad + "\xc3\xb6");
}

}  // namespace
}  // namespace kvbridge::base
