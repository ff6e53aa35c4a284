// What can be asked for: the subcommands, and one table of options. The command line, the TOML file, --print-config and
// --help (app/command_line.h) all walk the table, so a new option is one new row in options.cc.
#pragma once

#include <functional>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "train/config.h"

namespace untied {

enum class Command { kTrain, kPlan, kVerify, kBench, kData, kModel };

class Commands {  // a set of them
 public:
  constexpr Commands(std::initializer_list<Command> commands) {
    for (Command command : commands) bits_ |= 1u << static_cast<int>(command);
  }
  constexpr bool has(Command command) const { return bits_ >> static_cast<int>(command) & 1u; }
  friend constexpr Commands operator|(Commands a, Commands b) {
    a.bits_ |= b.bits_;
    return a;
  }

 private:
  unsigned bits_ = 0;
};

// The command line and the TOML file, parsed: each value is legal by itself; app/validate.h says what goes together.
struct Invocation {
  Command command = Command::kTrain;
  std::string action;  // of bench, data and model: "attention", "inspect"
  RunConfig run;
  std::string config;  // the TOML file
  bool json = false;
  std::string html, trace;
  int emulate_ranks = 0;
  bool profile = false;
  double seconds = 4;           // of sustained work in each row of a bench
  std::set<std::string> given;  // names of the options that the user set, here or in the file
};

struct Option {
  // How many values follow: none or =true|false, one, one or more.
  enum class Arity { kFlag, kOne, kMany };

  std::string group;  // heading of the help
  std::string name;   // without dashes; also the TOML key
  Commands commands;  // that take it
  std::string help;
  std::string placeholder;  // "N", "cpu|cuda"
  std::string legal;        // completes "'x' is not ..."
  Arity arity = Arity::kOne;
  bool text = false;  // a string in TOML, not a number or a truth value
  std::function<bool(Invocation&, const std::vector<std::string>&)> set;  // false when a value is not legal
  std::function<std::vector<std::string>(const Invocation&)> get;  // as one would type it; empty when it has none
};

const std::vector<Option>& options();
// Throws ConfigError, starting with `where` and naming the nearest option, when there is none of this name.
const Option& find_option(const std::string& name, const std::string& where);

// What a command can be told to do. train, plan and verify have one action without a name.
struct Action {
  std::string name;
  std::vector<std::string> required;  // options
};
struct CommandInfo {
  Command command;
  std::string name, summary;
  std::vector<Action> actions;
};
const std::vector<CommandInfo>& commands();
const CommandInfo& info(Command command);
const Action& action_of(const Invocation& invocation);

// The candidate with the smallest edit distance to `text`.
std::string nearest(std::string_view text, const std::vector<std::string>& candidates);

}  // namespace untied
