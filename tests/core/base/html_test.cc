#include "core/base/html.h"

#include "gtest/gtest.h"

namespace kvbridge::base {
namespace {

TEST(EscapeHtmlTest, MarkupIsText) {
  EXPECT_EQ(EscapeHtml("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(EscapeHtml("é→"), "é→");
}

TEST(EscapeHtmlTest, WhatIsNotUtf8IsReplaced) {
  const std::string replaced = "\xef\xbf\xbd";
  EXPECT_EQ(EscapeHtml("\xc3"), replaced);                                // cut short
  EXPECT_EQ(EscapeHtml("\xc0\xaf"), replaced + replaced);                 // overlong
  EXPECT_EQ(EscapeHtml("\xed\xa0\x80"), replaced + replaced + replaced);  // a surrogate
  EXPECT_EQ(EscapeHtml(absl::string_view("\0x", 2)), replaced + "x");
}

}  // namespace
}  // namespace kvbridge::base
