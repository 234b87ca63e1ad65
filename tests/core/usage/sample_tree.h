// A command line with one of everything.
#pragma once

#include "core/usage/command_tree.h"

namespace kvbridge::usage {

inline CommandTree SampleTree() {
  const Parameter format = {.names = {"--format"},
                            .placeholder = "TEXT",
                            .words = {"table", "json"},
                            .preset = "table",
                            .help = "Of the data",
                            .group = "Options"};
  const Parameter quiet = {
      .names = {"-q", "--quiet"}, .help = "It's [silent]: no notes", .group = "Options"};
  const Parameter out = {.names = {"-o", "--out"},
                         .placeholder = kFile,
                         .help = "Page to write",
                         .group = "Options",
                         .needs = {"--plane"},
                         .excludes = {"--dry-run"},
                         .required = true};
  const Parameter folders = {.names = {"folders"},
                             .placeholder = kFolder,
                             .help = "Folders",
                             .required = true,
                             .repeats = true};
  return {.name = "tool",
          .help = "Does things",
          .footer = "Exit codes: 0 ok;\n.not a request",
          .options = {format, quiet},
          .commands = {{.name = "route",
                        .help = "Of routes",
                        .commands = {{.name = "set-all",
                                      .help = "Set them",
                                      .options = {out},
                                      .arguments = {folders}}}}}};
}

}  // namespace kvbridge::usage
