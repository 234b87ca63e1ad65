#include "client/cli/printable.h"

#include "absl/strings/str_cat.h"

#include "core/base/strict_json.h"
#include "gtest/gtest.h"

namespace kvbridge::cli {
namespace {

const std::string kBad = "\xef\xbf\xbd";

TEST(PrintableTest, TextStaysAsItIs) {
  for (const char* text :
       {"", "a b", "größer → 1", "组织/模型", "עברית", "😀", "\xc2\xa0", "\xef\xbf\xbd"}) {
    EXPECT_EQ(Printable(text), text);
    EXPECT_EQ(PrintableJson(text), text);
  }
}

TEST(PrintableTest, WhatMovesACursorOrBreaksALineIsReplaced) {
  EXPECT_EQ(Printable("a\x1b\n\r\t\x7f"), absl::StrCat("a", kBad, kBad, kBad, kBad, kBad));
  EXPECT_EQ(Printable("\xc2\x9b"
                      "2J"),
            kBad + "2J");                      // CSI as one character
  EXPECT_EQ(Printable("\xe2\x80\xa8"), kBad);  // a separator of lines
  EXPECT_EQ(Printable(std::string("a\0b", 3)), absl::StrCat("a", kBad, "b"));
}

TEST(PrintableTest, WhatTurnsTextRoundOrHidesIsReplaced) {
  for (const char* mark : {"\u061c", "\u200e", "\u200f", "\u202a", "\u202b", "\u202c", "\u202d",
                           "\u202e", "\u2066", "\u2067", "\u2068", "\u2069", "\ufeff"}) {
    EXPECT_EQ(Printable(absl::StrCat("a", mark, "b")), absl::StrCat("a", kBad, "b"));
  }
}

TEST(PrintableTest, WhatIsNoUtf8IsReplacedByteByByte) {
  EXPECT_EQ(Printable("\xff\xfe"), kBad + kBad);
  EXPECT_EQ(Printable("a\xc3"), "a" + kBad);                 // cut off
  EXPECT_EQ(Printable("\xc0\x9b"), kBad + kBad);             // ESC, overlong
  EXPECT_EQ(Printable("\xe0\x82\x9b"), kBad + kBad + kBad);  // CSI, overlong
  EXPECT_EQ(Printable("\xed\xa0\x80"), kBad + kBad + kBad);  // half of a pair
  EXPECT_EQ(Printable("\xf4\x90\x80\x80x"), absl::StrCat(kBad, kBad, kBad, kBad, "x"));
}

TEST(PrintableTest, AJsonTextSaysTheSameWithEscapes) {
  const base::Json document = {{"name", "a\x1b\x7f\u009b\u202e\u2028 é"}, {"list", {1, 2}}};
  const std::string text = PrintableJson(document.dump(2));
  EXPECT_EQ(text,
            "{\n  \"list\": [\n    1,\n    2\n  ],\n"
            "  \"name\": \"a\\u001b\\u007f\\u009b\\u202e\\u2028 é\"\n}");
  EXPECT_EQ(base::Json::parse(text), document);
}

}  // namespace
}  // namespace kvbridge::cli
