#include "core/usage/command_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "CLI/CLI.hpp"
#include "core/usage/inherited.h"
#include "tests/core/usage/sample_tree.h"

namespace kvbridge::usage {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(CommandTreeTest, IsWhatHelpIsPrintedFrom) {
  CLI::App app("Does things", "tool");
  app.footer("The end");
  std::string format = "table", out, secret;
  std::vector<std::string> inputs;
  bool all = false;
  CLI::App* sub = app.add_subcommand("make", "Makes one");
  CLI::Option* every = sub->add_flag("--all", all, "Everything");
  sub->add_option("--format", format, "Of the data")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  sub->add_option("-o,--out", out, "Page")->type_name(kFile)->required()->excludes(every);
  sub->add_option("--secret", secret, "Nobody's business")->group("");
  sub->add_option("--weight", "Checked by hand");
  sub->add_option("inputs", inputs, "Folders")->type_name(kFolder);

  const CommandTree tree = Describe(app);
  EXPECT_EQ(tree.name, "tool");
  EXPECT_EQ(tree.help, "Does things");
  EXPECT_EQ(tree.footer, "The end");
  ASSERT_EQ(tree.commands.size(), 1);
  const CommandTree& make = tree.commands[0];
  EXPECT_EQ(make.name, "make");
  ASSERT_EQ(make.options.size(), 5);
  EXPECT_THAT(make.options[0].names, ElementsAre("-h", "--help"));
  EXPECT_FALSE(make.options[1].takes_value());
  EXPECT_EQ(make.options[2].placeholder, "TEXT");
  EXPECT_THAT(make.options[2].words, ElementsAre("table", "json"));
  EXPECT_EQ(make.options[2].preset, "table");
  EXPECT_THAT(make.options[3].names, ElementsAre("-o", "--out"));
  EXPECT_EQ(make.options[3].placeholder, "FILE");
  EXPECT_TRUE(make.options[3].required);
  EXPECT_THAT(make.options[3].excludes, ElementsAre("--all"));
  EXPECT_THAT(make.options[3].words, IsEmpty());
  EXPECT_EQ(make.options[4].placeholder, "TEXT");
  ASSERT_EQ(make.arguments.size(), 1);
  EXPECT_THAT(make.arguments[0].names, ElementsAre("inputs"));
  EXPECT_TRUE(make.arguments[0].repeats);
  EXPECT_FALSE(make.arguments[0].required);
}

TEST(CommandTreeTest, CommandsComeBeforeThoseTheyHold) {
  const CommandTree root = SampleTree();
  std::vector<std::string> paths;
  for (const NamedCommand& named : AllCommands(root)) paths.push_back(named.path);
  EXPECT_THAT(paths, ElementsAre("", "route", "route set-all"));
}

TEST(InheritedOptionsTest, AreTheRootsThatACommandDoesNotHave) {
  CommandTree root = SampleTree();
  EXPECT_THAT(InheritedOptions(root, root), IsEmpty());
  CommandTree& route = root.commands[0];
  EXPECT_EQ(InheritedOptions(root, route).size(), 2);
  route.options = {root.options[0]};
  ASSERT_EQ(InheritedOptions(root, route).size(), 1);
  EXPECT_THAT(InheritedOptions(root, route)[0].names, ElementsAre("-q", "--quiet"));
}

}  // namespace
}  // namespace kvbridge::usage
