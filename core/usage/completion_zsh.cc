#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

#include "core/usage/completion.h"
#include "core/usage/inherited.h"

namespace kvbridge::usage {
namespace {

// Inside '...', and inside that of _arguments, where colons and brackets separate.
std::string Quoted(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"\\", "\\\\"}, {":", "\\:"}, {"[", "\\["}, {"]", "\\]"}, {"'", "'\\''"}});
}

std::string Function(const std::string& name, const std::string& path) {
  return absl::StrCat("_", name, path.empty() ? "" : "_",
                      absl::StrReplaceAll(path, {{" ", "_"}, {"-", "_"}}));
}

// ":TEXT:(auto inline)"
std::string Action(const Parameter& parameter, const std::string& message) {
  std::string action = " ";
  if (!parameter.words.empty()) {
    action = "(";
    for (const std::string& word : parameter.words) {
      absl::StrAppend(&action, action == "(" ? "" : " ", word);
    }
    absl::StrAppend(&action, ")");
  } else if (parameter.placeholder == kFile) {
    action = "_files";
  } else if (parameter.placeholder == kFolder) {
    action = "_files -/";
  }
  return absl::StrCat(":", Quoted(message), ":", action);
}

std::string OptionSpecs(const std::vector<Parameter>& options) {
  std::string specs;
  for (const Parameter& option : options) {
    for (const std::string& name : option.names) {
      const bool is_long = name[1] == '-';
      absl::StrAppend(&specs, " \\\n    '", option.repeats ? "*" : "", name,
                      option.takes_value() && is_long ? "=" : "", "[", Quoted(option.help), "]",
                      option.takes_value() ? Action(option, option.placeholder) : "", "'");
    }
  }
  return specs;
}

std::string ArgumentSpecs(const CommandTree& command) {
  if (!command.commands.empty()) return " \\\n    '1: :->first' \\\n    '*:: :->rest'";
  std::string specs;
  for (size_t place = 0; place < command.arguments.size(); ++place) {
    const Parameter& argument = command.arguments[place];
    absl::StrAppend(&specs, " \\\n    '", argument.repeats ? "*" : absl::StrCat(place + 1),
                    Action(argument, argument.names.front()), "'");
  }
  return specs;
}

// What comes first names a command below, or is this one's own argument.
std::string Dispatch(const std::string& name, const std::string& path, const CommandTree& command) {
  std::string choices, branches;
  for (const CommandTree& child : command.commands) {
    const std::string below = absl::StrCat(path, path.empty() ? "" : " ", child.name);
    absl::StrAppend(&choices, "\n        '", child.name, ":", Quoted(child.help), "'");
    absl::StrAppend(&branches, "        ", child.name, ") ", Function(name, below), " ;;\n");
  }
  std::string own;
  if (!command.arguments.empty()) {
    const std::string& placeholder = command.arguments.front().placeholder;
    if (placeholder == kFile) own = "      _files\n";
    if (placeholder == kFolder) own = "      _files -/\n";
  }
  return absl::StrCat("  case $state in\n    first)\n      local -a commands=(", choices,
                      ")\n      _describe -t commands command commands\n", own,
                      "      ;;\n    rest)\n      case $line[1] in\n", branches,
                      "      esac\n      ;;\n  esac\n");
}

}  // namespace

std::string ZshCompletion(const CommandTree& root) {
  std::string script = absl::StrCat("#compdef ", root.name, "\n# zsh completion for ", root.name,
                                    ", written by `", root.name, " completion zsh`\n");
  for (const auto& [path, command] : AllCommands(root)) {
    const bool dispatches = !command->commands.empty();
    absl::StrAppend(&script, "\n", Function(root.name, path), "() {\n",
                    dispatches ? "  local curcontext=$curcontext state line\n" : "",
                    dispatches ? "  _arguments -C -S" : "  _arguments -S",
                    OptionSpecs(command->options), OptionSpecs(InheritedOptions(root, *command)),
                    ArgumentSpecs(*command), dispatches ? " && return\n" : "\n",
                    dispatches ? Dispatch(root.name, path, *command) : "", "}\n");
  }
  return absl::StrCat(script, "\nif [[ $funcstack[1] == _", root.name, " ]]; then\n  _", root.name,
                      " \"$@\"\nelse\n  compdef _", root.name, " ", root.name, "\nfi\n");
}

}  // namespace kvbridge::usage
