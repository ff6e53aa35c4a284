// From words and files to an Invocation, and back: four walks over the table of options.
#pragma once

#include <string>
#include <vector>

#include "app/options.h"

namespace untied {

// The arguments without the program's name. Reads --config FILE too: a key of the file, its path joined by dashes, is
// an option's name (`context = "128K"`; `[eval] every = 10` is --eval-every). The command line wins. A file may hold
// options of other subcommands, so that one file serves train, plan and verify. Throws ConfigError: one line that names
// the option (and the file's line), what was found and what would be legal.
Invocation parse_command_line(const std::vector<std::string>& args);

const CommandInfo& find_command(const std::string& name);  // throws ConfigError

// A TOML file that reproduces the run; defaults are written out, as later versions may have others.
std::string print_config(const Invocation& invocation);

std::string help();
std::string help(const CommandInfo& command);

}  // namespace untied
