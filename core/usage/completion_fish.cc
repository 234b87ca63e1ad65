#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

#include "core/usage/completion.h"

namespace kvbridge::usage {
namespace {

constexpr char kHead[] = R"sh(# fish completion for NAME, written by `NAME completion fish`

# Whether the words so far name this command.
function __NAME_at
    set -l path ''
    for word in (commandline -opc)[2..]
        set -l longer (string trim -- "$path $word")
        if contains -- $longer COMMANDS
            set path $longer
        end
    end
    test "$path" = "$argv[1]"
end

complete -c NAME -f
)sh";

std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

// What completes a value.
std::string Values(const Parameter& parameter) {
  if (!parameter.words.empty()) {
    return absl::StrCat(" -x -a ", Quoted(absl::StrJoin(parameter.words, " ")));
  }
  if (parameter.placeholder == kFile) return " -r -F";
  return parameter.placeholder == kFolder ? " -x -a '(__fish_complete_directories)'" : " -x";
}

std::string Option(const Parameter& option) {
  std::string text;
  for (const std::string& name : option.names) {
    const bool is_long = name[1] == '-';
    absl::StrAppend(&text, is_long ? " -l " : " -s ", name.substr(is_long ? 2 : 1));
  }
  return absl::StrCat(text, option.takes_value() ? Values(option) : "");
}

}  // namespace

std::string FishCompletion(const CommandTree& root) {
  const std::vector<NamedCommand> all = AllCommands(root);
  std::string paths;
  for (const auto& [path, command] : all) {
    if (!path.empty()) absl::StrAppend(&paths, paths.empty() ? "" : " ", Quoted(path));
  }
  std::string script = absl::StrReplaceAll(kHead, {{"NAME", root.name}, {"COMMANDS", paths}});
  for (const auto& [path, command] : all) {
    // The root's options go with every command.
    const std::string at =
        absl::StrCat(" -n ", Quoted(absl::StrCat("__", root.name, "_at ", Quoted(path))));
    const auto line = [&](const std::string& where, const std::string& what,
                          const std::string& help) {
      absl::StrAppend(&script, "complete -c ", root.name, where, what, " -d ", Quoted(help), "\n");
    };
    for (const CommandTree& child : command->commands) line(at, " -a " + child.name, child.help);
    for (const Parameter& option : command->options) {
      line(path.empty() ? "" : at, Option(option), option.help);
    }
    for (const Parameter& argument : command->arguments) {
      if (argument.placeholder == kFile) line(at, " -F", argument.help);
      if (argument.placeholder == kFolder) {
        line(at, " -a '(__fish_complete_directories)'", argument.help);
      }
    }
  }
  return script;
}

}  // namespace kvbridge::usage
