#include "core/usage/man_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/usage/sample_tree.h"

namespace kvbridge::usage {
namespace {

using ::testing::HasSubstr;

TEST(ManPageTest, ThereIsOneForEachCommand) {
  const std::vector<ManPage> pages = ManPages(SampleTree(), 1, "1.2.3");
  ASSERT_EQ(pages.size(), 3);
  EXPECT_EQ(pages[0].file, "tool.1");
  EXPECT_EQ(pages[1].file, "tool-route.1");
  EXPECT_EQ(pages[2].file, "tool-route-set-all.1");
}

TEST(ManPageTest, SaysWhatHelpSays) {
  const std::string page = ManPages(SampleTree(), 1, "1.2.3")[2].text;
  EXPECT_EQ(page, R"(.TH TOOL\-ROUTE\-SET\-ALL 1 "" "tool 1.2.3"
.nh
.ad l
.SH NAME
tool\-route\-set\-all \- Set them
.SH SYNOPSIS
\fBtool route set\-all\fR \fB\-\-out\fR \fIFILE\fR [\fIOPTIONS\fR] \fIfolders\fR ...
.SH ARGUMENTS
.TP
\fIfolders\fR ...
Folders.
.SH OPTIONS
.TP
\fB\-o\fR, \fB\-\-out\fR \fIFILE\fR
Page to write.
Required.
Goes with \fB\-\-plane\fR.
Not with \fB\-\-dry\-run\fR.
.SH OPTIONS OF EVERY COMMAND
.TP
\fB\-\-format\fR \fITEXT\fR
Of the data.
One of \fBtable\fR, \fBjson\fR.
Default: \fBtable\fR.
.TP
\fB\-q\fR, \fB\-\-quiet\fR
It's [silent]: no notes.
.SH NOTES
Exit codes: 0 ok;
\&.not a request
.SH SEE ALSO
\fBtool\-route\fR(1)
)");
}

TEST(ManPageTest, TheRootNamesItsCommands) {
  EXPECT_THAT(ManPages(SampleTree(), 1, "1.2.3")[0].text, HasSubstr(R"(.SH COMMANDS
.TP
\fBtool\-route\fR(1)
Of routes.
)"));
}

}  // namespace
}  // namespace kvbridge::usage
