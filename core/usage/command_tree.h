// A command line as a value: every command with what it takes. Read from CLI11's tree, so that
// manual pages and completion say what --help says and nothing else.
//
// Thread contract: values.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace kvbridge::usage {

// What the placeholder of a value says about it. Anything else is text.
inline constexpr char kFile[] = "FILE";
inline constexpr char kFolder[] = "DIR";

// An option or an argument.
struct Parameter {
  std::vector<std::string> names;  // {"-o", "--out"}; of an argument its one name
  std::string placeholder;         // of its value: "FILE", "TEXT"; empty = it takes none
  std::vector<std::string> words;  // the only values there are; empty = any
  std::string preset;              // the value when it is left out, if it says so
  std::string help;
  std::string group;               // the heading it stands under
  std::vector<std::string> needs;  // names of others
  std::vector<std::string> excludes;
  bool required = false;
  bool repeats = false;

  bool takes_value() const { return !placeholder.empty(); }
};

struct CommandTree {
  std::string name;
  std::string help;
  std::string footer;
  std::vector<Parameter> options;
  std::vector<Parameter> arguments;  // in order
  std::vector<CommandTree> commands;
};

CommandTree Describe(const CLI::App& app);

// A command and the words that name it below the root: "artifact load"; the root's are none.
struct NamedCommand {
  std::string path;
  const CommandTree* command;  // the root's
};
// The root and all below, a command before those that it holds.
std::vector<NamedCommand> AllCommands(const CommandTree& root);

}  // namespace kvbridge::usage
