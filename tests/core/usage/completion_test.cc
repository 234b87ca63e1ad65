// What the scripts hold; tests/python/test_cli_pages.py runs them.
#include "core/usage/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/usage/sample_tree.h"

namespace kvbridge::usage {
namespace {

using ::testing::HasSubstr;

TEST(CompletionTest, BashKnowsWordsByCommandAndPlace) {
  const std::string script = BashCompletion(SampleTree());
  for (const char* line : {
           R"("") echo "route" ;;)",
           R"("route") echo "set-all" ;;)",
           R"("") echo "--format -q --quiet" ;;)",
           R"("/--format") echo "table json" ;;)",
           R"("route set-all") echo "--format -q --quiet -o --out" ;;)",
           R"("route set-all/--out") echo "@file" ;;)",
           R"("route set-all/"[0-9]*) echo "@dir" ;;)",
           "complete -F _tool tool\n",
       }) {
    EXPECT_THAT(script, HasSubstr(line));
  }
  EXPECT_THAT(script, Not(HasSubstr("NAME")));
  EXPECT_THAT(script, Not(HasSubstr("--quiet\")")));  // it takes no value
}

TEST(CompletionTest, ZshQuotesWhatSeparates) {
  const std::string script = ZshCompletion(SampleTree());
  for (const char* line : {
           "#compdef tool\n",
           R"('--format=[Of the data]:TEXT:(table json)')",
           R"('-q[It'\''s \[silent\]\: no notes]')",
           R"('route:Of routes')",
           "set-all) _tool_route_set_all ;;",
           R"('-o[Page to write]:FILE:_files')",
           R"('*:folders:_files -/')",
       }) {
    EXPECT_THAT(script, HasSubstr(line));
  }
}

TEST(CompletionTest, FishOffersWhatBelongsToTheCommand) {
  const std::string script = FishCompletion(SampleTree());
  for (
      const char* line : {
          R"(complete -c tool -l format -x -a 'table json' -d 'Of the data')",
          R"(complete -c tool -s q -l quiet -d 'It\'s [silent]: no notes')",
          R"(complete -c tool -n '__tool_at \'\'' -a route -d 'Of routes')",
          R"(complete -c tool -n '__tool_at \'route\'' -a set-all -d 'Set them')",
          R"(complete -c tool -n '__tool_at \'route set-all\'' -s o -l out -r -F -d 'Page to write')",
      }) {
    EXPECT_THAT(script, HasSubstr(line));
  }
}

}  // namespace
}  // namespace kvbridge::usage
