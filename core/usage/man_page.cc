#include "core/usage/man_page.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

#include "core/usage/inherited.h"

namespace kvbridge::usage {
namespace {

// Text as it stands: no character of it is a request or a typographer's dash.
std::string Plain(const std::string& text) {
  const std::string escaped = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  const bool request = !text.empty() && (text[0] == '.' || text[0] == '\'');
  return absl::StrCat(request ? "\\&" : "",
                      absl::StrReplaceAll(escaped, {{"\n.", "\n\\&."}, {"\n'", "\n\\&'"}}));
}
std::string Bold(const std::string& text) { return absl::StrCat("\\fB", Plain(text), "\\fR"); }
std::string Italic(const std::string& text) { return absl::StrCat("\\fI", Plain(text), "\\fR"); }

std::string Heading(const std::string& text) {
  return absl::StrCat(".SH ", absl::AsciiStrToUpper(text), "\n");
}

std::string Joined(const std::vector<std::string>& names, const char* separator) {
  return absl::StrJoin(names, separator,
                       [](std::string* out, const std::string& name) { out->append(Bold(name)); });
}

// "-o, --out FILE", and below what it is for.
std::string Entry(const Parameter& parameter, bool argument) {
  const std::string head =
      argument ? Italic(parameter.names.front()) : Joined(parameter.names, ", ");
  std::string text = absl::StrCat(".TP\n", head);
  if (!argument && parameter.takes_value()) {
    absl::StrAppend(&text, " ", Italic(parameter.placeholder));
  }
  absl::StrAppend(&text, parameter.repeats ? " ...\n" : "\n", Plain(parameter.help), ".\n");
  if (!parameter.words.empty()) {
    absl::StrAppend(&text, "One of ", Joined(parameter.words, ", "), ".\n");
  }
  if (!parameter.preset.empty()) {
    absl::StrAppend(&text, "Default: ", Bold(parameter.preset), ".\n");
  }
  if (parameter.required && !argument) absl::StrAppend(&text, "Required.\n");
  if (!parameter.needs.empty()) {
    absl::StrAppend(&text, "Goes with ", Joined(parameter.needs, ", "), ".\n");
  }
  if (!parameter.excludes.empty()) {
    absl::StrAppend(&text, "Not with ", Joined(parameter.excludes, ", "), ".\n");
  }
  return text;
}

// Options under their headings, in the order of --help. `more` goes behind a heading.
std::string OptionSections(const std::vector<Parameter>& options, const std::string& more) {
  std::vector<std::string> groups;
  for (const Parameter& option : options) {
    if (std::find(groups.begin(), groups.end(), option.group) == groups.end()) {
      groups.push_back(option.group);
    }
  }
  std::string text;
  for (const std::string& group : groups) {
    absl::StrAppend(&text, Heading(absl::StrCat(group, more)));
    for (const Parameter& option : options) {
      if (option.group == group) absl::StrAppend(&text, Entry(option, false));
    }
  }
  return text;
}

std::string Synopsis(const std::string& name, const CommandTree& command) {
  std::string line = Bold(name);
  for (const Parameter& option : command.options) {
    if (!option.required) continue;
    absl::StrAppend(&line, " ", Bold(option.names.back()), " ", Italic(option.placeholder));
  }
  absl::StrAppend(&line, " [", Italic("OPTIONS"), "]");
  for (const Parameter& argument : command.arguments) {
    const std::string word =
        absl::StrCat(Italic(argument.names.front()), argument.repeats ? " ..." : "");
    absl::StrAppend(&line,
                    argument.required ? absl::StrCat(" ", word) : absl::StrCat(" [", word, "]"));
  }
  if (!command.commands.empty()) {
    const bool alone = command.arguments.empty();
    absl::StrAppend(&line, alone ? "" : absl::StrCat("\n.br\n", Bold(name)), " ", Italic("COMMAND"),
                    " ...");
  }
  return absl::StrCat(Heading("Synopsis"), line, "\n");
}

// The page's name of a command: "kvbridge-artifact-load".
std::string PageName(const CommandTree& root, const std::string& path) {
  return absl::StrReplaceAll(absl::StrCat(root.name, path.empty() ? "" : " ", path), {{" ", "-"}});
}

std::string Reference(const std::string& page, int section) {
  return absl::StrCat(Bold(page), "(", section, ")");
}

std::string Commands(const std::string& page, const CommandTree& command, int section) {
  if (command.commands.empty()) return "";
  std::string text = Heading("Commands");
  for (const CommandTree& child : command.commands) {
    absl::StrAppend(&text, ".TP\n", Reference(absl::StrCat(page, "-", child.name), section), "\n",
                    Plain(child.help), ".\n");
  }
  return text;
}

std::string Page(const CommandTree& root, const NamedCommand& named, int section,
                 const std::string& version) {
  const auto& [path, command] = named;
  const std::string page = PageName(root, path);
  const bool below = !path.empty();
  // A flag must not be hyphenated.
  std::string text =
      absl::StrCat(".TH ", Plain(absl::AsciiStrToUpper(page)), " ", section, " \"\" \"",
                   Plain(absl::StrCat(root.name, " ", version)), "\"\n.nh\n.ad l\n",
                   Heading("Name"), Plain(page), " \\- ", Plain(command->help), "\n",
                   Synopsis(absl::StrCat(root.name, below ? " " : "", path), *command));
  if (!command->arguments.empty()) {
    absl::StrAppend(&text, Heading("Arguments"));
    for (const Parameter& argument : command->arguments) {
      absl::StrAppend(&text, Entry(argument, true));
    }
  }
  absl::StrAppend(&text, Commands(page, *command, section), OptionSections(command->options, ""),
                  OptionSections(InheritedOptions(root, *command), " of every command"));
  if (!root.footer.empty()) absl::StrAppend(&text, Heading("Notes"), Plain(root.footer), "\n");
  if (below) {
    const size_t space = path.rfind(' ');
    const std::string parent = space == std::string::npos ? "" : path.substr(0, space);
    absl::StrAppend(&text, Heading("See also"), Reference(PageName(root, parent), section), "\n");
  }
  return text;
}

}  // namespace

std::vector<ManPage> ManPages(const CommandTree& root, int section, const std::string& version) {
  std::vector<ManPage> pages;
  for (const NamedCommand& named : AllCommands(root)) {
    pages.push_back({.file = absl::StrCat(PageName(root, named.path), ".", section),
                     .text = Page(root, named, section, version)});
  }
  return pages;
}

}  // namespace kvbridge::usage
