#include "core/usage/command_tree.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "CLI/CLI.hpp"

namespace kvbridge::usage {
namespace {

// "TEXT:{auto,inline}" is a text with two values, "FLOAT:FLOAT in [0 - 1]" a number.
void ReadType(const std::string& type, Parameter* parameter) {
  parameter->placeholder = type.substr(0, type.find(':'));
  if (parameter->placeholder.empty()) parameter->placeholder = "TEXT";
  const size_t begin = type.find('{');
  const size_t end = type.find('}', begin);
  if (begin == std::string::npos || end == std::string::npos) return;
  parameter->words = absl::StrSplit(type.substr(begin + 1, end - begin - 1), ',');
}

std::vector<std::string> Names(const std::set<CLI::Option*>& options) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options) names.push_back(option->get_name());
  std::sort(names.begin(), names.end());  // the set is ordered by address
  return names;
}

Parameter ReadParameter(const CLI::Option& option) {
  Parameter parameter;
  for (const std::string& name : option.get_snames()) {
    parameter.names.push_back(absl::StrCat("-", name));
  }
  for (const std::string& name : option.get_lnames()) {
    parameter.names.push_back(absl::StrCat("--", name));
  }
  if (parameter.names.empty()) parameter.names.push_back(option.get_name(/*positional=*/true));
  if (option.get_items_expected_max() > 0) ReadType(option.get_type_name(), &parameter);
  parameter.preset = option.get_default_str();
  parameter.help = option.get_description();
  parameter.group = option.get_group();
  parameter.needs = Names(option.get_needs());
  parameter.excludes = Names(option.get_excludes());
  parameter.required = option.get_required();
  parameter.repeats = option.get_items_expected_max() > 1;
  return parameter;
}

void Collect(const CommandTree& command, const std::string& path, std::vector<NamedCommand>* all) {
  all->push_back({path, &command});
  for (const CommandTree& child : command.commands) {
    Collect(child, absl::StrCat(path, path.empty() ? "" : " ", child.name), all);
  }
}

}  // namespace

CommandTree Describe(const CLI::App& app) {
  CommandTree tree;
  tree.name = app.get_name();
  tree.help = app.get_description();
  tree.footer = app.get_footer();
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    (option->nonpositional() ? tree.options : tree.arguments).push_back(ReadParameter(*option));
  }
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) tree.commands.push_back(Describe(*command));
  }
  return tree;
}

std::vector<NamedCommand> AllCommands(const CommandTree& root) {
  std::vector<NamedCommand> all;
  Collect(root, "", &all);
  return all;
}

}  // namespace kvbridge::usage
