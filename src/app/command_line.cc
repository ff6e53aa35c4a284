#include "app/command_line.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/format.h"

namespace untied {
namespace {

// An option with the text of its values, and where that was written: "--lr", "run.toml:3: lr".
struct Setting {
  const Option* option;
  std::vector<std::string> values;
  std::string where;
};

bool is_option(const std::string& word) { return word.starts_with("--"); }

// The option at args[at] with its values; `at` moves past them.
Setting take_option(const std::vector<std::string>& args, std::size_t& at, const CommandInfo& command) {
  const std::string& word = args[at++];
  const std::size_t equals = word.find('=');
  const std::string where = word.substr(0, equals);
  const Option& option = find_option(where.substr(2), where);
  if (!option.commands.has(command.command)) throw ConfigError("{}: not an option of `untied {}`", where, command.name);

  std::vector<std::string> values;
  if (equals != std::string::npos) {
    values.push_back(word.substr(equals + 1));
  } else if (option.arity == Option::Arity::kFlag) {
    values.push_back("true");
  } else {
    const std::size_t most = option.arity == Option::Arity::kOne ? 1 : args.size();
    while (at < args.size() && !is_option(args[at]) && values.size() < most) values.push_back(args[at++]);
  }
  return {&option, std::move(values), where};
}

// The values of a TOML node as one would type them. A string option takes strings only: `out = 5` is a slip.
std::vector<std::string> text_of(const toml::node& node, const Option& option, const std::string& where) {
  if (const toml::array* array = node.as_array()) {
    std::vector<std::string> values;
    if (option.arity == Option::Arity::kMany)
      for (const toml::node& element : *array)
        for (std::string& value : text_of(element, option, where)) values.push_back(std::move(value));
    if (!values.empty()) return values;
  } else if (const auto* text = node.as_string()) {
    return {text->get()};
  } else if (!option.text) {
    if (const auto* number = node.as_integer()) return {format("{}", number->get())};
    if (const auto* number = node.as_floating_point()) return {format("{}", number->get())};
    if (const auto* flag = node.as_boolean()) return {flag->get() ? "true" : "false"};
  }
  std::ostringstream kind;
  kind << node.type();
  throw ConfigError("{}: a TOML {} is not {}", where, kind.str(), option.legal);
}

void flatten(const toml::table& table, const std::string& prefix, const std::string& file,
             std::vector<Setting>& settings) {
  for (const auto& [key, node] : table) {
    const std::string name = prefix + std::string(key.str());
    if (const toml::table* section = node.as_table()) {
      flatten(*section, name + "-", file, settings);
      continue;
    }
    const std::string where = format("{}:{}: {}", file, node.source().begin.line, name);
    const Option& option = find_option(name, where);
    if (name == "config") throw ConfigError("{}: a file cannot name another", where);
    settings.push_back({&option, text_of(node, option, where), where});
  }
}

std::vector<Setting> read_file(const std::string& file) {
  if (!std::filesystem::is_regular_file(file)) throw ConfigError("--config: there is no file '{}'", file);
  std::vector<Setting> settings;
  try {
    flatten(toml::parse_file(file), "", file, settings);
  } catch (const toml::parse_error& error) {
    throw ConfigError("{}:{}: {}", file, error.source().begin.line, error.description());
  }
  return settings;
}

// Settings of one source: each option at most once.
void apply_settings(const std::vector<Setting>& settings, Invocation& invocation) {
  std::set<std::string> seen;
  for (const auto& [option, values, where] : settings) {
    if (!seen.insert(option->name).second) throw ConfigError("{}: given twice", where);
    if (values.empty()) throw ConfigError("{}: needs a value, {}", where, option->legal);
    if (!option->set(invocation, values))
      throw ConfigError("{}: '{}' is not {}", where, fmt::join(values, " "), option->legal);
  }
  invocation.given.merge(seen);
}

std::vector<std::string> action_names(const CommandInfo& command) {
  std::vector<std::string> names;
  for (const Action& action : command.actions) names.push_back(action.name);
  return names;
}

bool needs(const Action& action, const std::string& option) {
  return std::find(action.required.begin(), action.required.end(), option) != action.required.end();
}

// `untied model inspect DIR` is short for --model DIR.
bool takes_operand(Command command, const Action& action) {
  return command == Command::kModel && needs(action, "model");
}

toml::array toml_array(const std::vector<std::string>& values) {
  toml::array array;
  for (const std::string& value : values) array.push_back(value);
  return array;
}

std::string usage_of(const Option& option) {
  return "--" + option.name + (option.placeholder.empty() ? "" : " " + option.placeholder);
}

}  // namespace

const CommandInfo& find_command(const std::string& name) {
  std::vector<std::string> names;
  for (const CommandInfo& command : commands()) {
    if (command.name == name) return command;
    names.push_back(command.name);
  }
  throw ConfigError("{}: no such command; the nearest is {}", name, nearest(name, names));
}

Invocation parse_command_line(const std::vector<std::string>& args) {
  const CommandInfo& command = find_command(args.at(0));
  Invocation invocation{.command = command.command};
  std::size_t at = 1;
  if (const std::vector<std::string> actions = action_names(command); !actions.front().empty()) {
    if (at == args.size() || is_option(args[at]))
      throw ConfigError("{}: needs one of {}", command.name, fmt::join(actions, ", "));
    invocation.action = args[at++];
    if (std::find(actions.begin(), actions.end(), invocation.action) == actions.end())
      throw ConfigError("{} {}: no such action; the nearest is {}", command.name, invocation.action,
                        nearest(invocation.action, actions));
  }

  std::vector<Setting> settings;
  while (at < args.size()) {
    if (is_option(args[at])) {
      settings.push_back(take_option(args, at, command));
    } else if (takes_operand(command.command, action_of(invocation))) {
      settings.push_back({&find_option("model", "--model"), {args[at]}, args[at]});
      ++at;
    } else {
      throw ConfigError("'{}': options start with two dashes", args[at]);
    }
  }
  apply_settings(settings, invocation);
  if (!invocation.config.empty()) {
    apply_settings(read_file(invocation.config), invocation);
    apply_settings(settings, invocation);
  }
  return invocation;
}

std::string print_config(const Invocation& invocation) {
  std::ostringstream text;
  std::string group;
  for (const Option& option : options()) {
    const std::vector<std::string> values = option.get(invocation);
    if (!option.commands.has(invocation.command) || values.empty()) continue;
    if (option.name == "config" || option.name == "print-config") continue;  // this text takes their place
    if (needs(action_of(invocation), option.name) && !invocation.given.contains(option.name)) continue;
    if (std::exchange(group, option.group) != option.group) text << "# " << option.group << "\n";
    text << option.name << " = ";
    if (option.arity == Option::Arity::kMany) text << toml_array(values);
    else if (option.text || values.front() == "auto") text << toml::value(values.front());
    else text << values.front();
    text << "\n";
  }
  return text.str();
}

std::string help() {
  std::string text =
      "untied trains Hugging Face Llama models at long context, and plans such runs.\n\n"
      "usage: untied COMMAND [options]\n\n";
  for (const CommandInfo& command : commands()) text += format("  {:8} {}\n", command.name, command.summary);
  return text +
         "\n`untied COMMAND --help` lists a command's options; `untied --version` prints the version.\n"
         "\n"
         "exit codes: 0 ok, 1 failed while running, 2 wrong options, 3 does not fit, 4 bad checkpoint or data,\n"
         "5 device or communication, 6 out of memory, 7 not finite, 75 stopped by a signal after saving\n";
}

std::string help(const CommandInfo& command) {
  std::string text = format("untied {}: {}\n\n", command.name, command.summary);
  for (const Action& action : command.actions) {
    text += format("{} untied {}{}{}", &action == &command.actions.front() ? "usage:" : "      ", command.name,
                   action.name.empty() ? "" : " ", action.name);
    for (const std::string& name : action.required) {
      const Option& option = find_option(name, name);
      text += " " + (name == "model" && takes_operand(command.command, action) ? option.placeholder : usage_of(option));
    }
    text += " [options]\n";
  }
  constexpr std::size_t kColumn = 34;
  std::string group;
  for (const Option& option : options()) {
    if (!option.commands.has(command.command)) continue;
    if (std::exchange(group, option.group) != option.group) text += format("\n{}\n", option.group);
    const std::vector<std::string> defaults = option.get({});
    const bool shown =
        option.arity == Option::Arity::kOne && !defaults.empty() && !needs(command.actions[0], option.name);
    const std::string usage = usage_of(option);
    const bool wide = usage.size() >= kColumn;
    if (wide) text += format("  {}\n", usage);
    text += format("  {:{}}{}{}\n", wide ? "" : usage, kColumn, option.help,
                   shown ? format(" [{}]", defaults.front()) : "");
  }
  return text + "\nSizes: 131072, 128K, 1M (binary). Bytes: 80GB (10^9), 80GiB (2^30). In [brackets]: the default.\n";
}

}  // namespace untied
