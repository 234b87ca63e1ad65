#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

#include "core/usage/completion.h"
#include "core/usage/inherited.h"

namespace kvbridge::usage {
namespace {

constexpr char kScript[] = R"sh(# bash completion for NAME, written by `NAME completion bash`

# The commands below a command.
_NAME_commands() {
  case $1 in
COMMANDS  esac
}

_NAME_options() {
  case $1 in
OPTIONS  esac
}

# What a value may be, of an option by its name, of an argument by its place: words, @file, @dir, or
# @text, which is anything. Nothing for an option that takes no value.
_NAME_value() {
  case $1/$2 in
VALUES    *) if [[ -n $1 && $2 == -* ]]; then _NAME_value "" "$2"; fi ;;
  esac
}

_NAME() {
  local cur=${COMP_WORDS[COMP_CWORD]} path="" option="" last="" place=0 value i word
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if [[ $word == [=:] ]]; then # readline splits words there; the value goes on
      option=$last
    elif [[ -n $option ]]; then
      option=""
    elif [[ $word == -* ]]; then
      last=$word
      if [[ -n $(_NAME_value "$path" "$word") ]]; then option=$word; fi
    elif [[ " $(_NAME_commands "$path") " == *" $word "* ]]; then
      path=${path:+$path }$word place=0
    else
      place=$((place + 1))
    fi
  done
  if [[ $cur == [=:] ]]; then option=$last cur=""; fi

  if [[ -n $option ]]; then
    value=$(_NAME_value "$path" "$option")
  elif [[ $cur == -* ]]; then
    value=$(_NAME_options "$path")
  else
    value=$(_NAME_value "$path" "$place")
    if ((place == 0)); then value="$(_NAME_commands "$path") $value"; fi
  fi
  mapfile -t COMPREPLY < <(compgen -W "${value%%@*}" -- "$cur")
  case $value in
    *@file) mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$cur") ;;
    *@dir) mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -d -- "$cur") ;;
    *) return ;;
  esac
  compopt -o filenames 2>/dev/null
}

complete -F _NAME NAME
)sh";

std::string ValueWords(const Parameter& parameter) {
  if (!parameter.words.empty()) return absl::StrJoin(parameter.words, " ");
  if (parameter.placeholder == kFile) return "@file";
  return parameter.placeholder == kFolder ? "@dir" : "@text";
}

// A branch of a case. `tail` is a pattern.
std::string Branch(const std::string& literal, const std::string& tail, const std::string& words) {
  return absl::StrCat("    \"", literal, "\"", tail, ") echo \"", words, "\" ;;\n");
}

}  // namespace

std::string BashCompletion(const CommandTree& root) {
  std::string commands, options, values;
  for (const auto& [path, command] : AllCommands(root)) {
    if (!command->commands.empty()) {
      const auto name = [](std::string* out, const CommandTree& child) { out->append(child.name); };
      absl::StrAppend(&commands, Branch(path, "", absl::StrJoin(command->commands, " ", name)));
    }
    std::string names;
    const std::vector<Parameter> inherited = InheritedOptions(root, *command);
    for (const Parameter& option : inherited) {
      absl::StrAppend(&names, names.empty() ? "" : " ", absl::StrJoin(option.names, " "));
    }
    for (const Parameter& option : command->options) {
      for (const std::string& name : option.names) {
        absl::StrAppend(&names, names.empty() ? "" : " ", name);
        if (!option.takes_value()) continue;
        absl::StrAppend(&values, Branch(absl::StrCat(path, "/", name), "", ValueWords(option)));
      }
    }
    absl::StrAppend(&options, Branch(path, "", names));
    for (size_t place = 0; place < command->arguments.size(); ++place) {
      const Parameter& argument = command->arguments[place];
      absl::StrAppend(&values, argument.repeats ? Branch(path + "/", "[0-9]*", ValueWords(argument))
                                                : Branch(absl::StrCat(path, "/", place), "",
                                                         ValueWords(argument)));
    }
  }
  return absl::StrReplaceAll(
      kScript,
      {{"NAME", root.name}, {"COMMANDS", commands}, {"OPTIONS", options}, {"VALUES", values}});
}

}  // namespace kvbridge::usage
