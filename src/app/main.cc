// The program: help, or one subcommand; the only place where an error becomes a line on stderr and an exit code.
#include <algorithm>
#include <cstdio>
#include <new>
#include <string>
#include <vector>

#include "app/command_line.h"
#include "app/commands.h"
#include "app/validate.h"
#include "base/error.h"
#include "base/format.h"
#include "base/version.h"

namespace untied {
namespace {

constexpr int (*kRun[])(const Invocation&) = {run_train, run_plan, run_verify, run_bench, run_data, run_model};

bool asks_for_help(const std::string& word) { return word == "--help" || word == "-h"; }

int print(const std::string& text) {
  fmt::print("{}", text);
  return 0;
}

int run(const std::vector<std::string>& args) {
  if (args.empty() || asks_for_help(args[0])) return print(help());
  if (args[0] == "--version") return print(format("untied {}\n", version()));
  const CommandInfo& command = find_command(args[0]);
  if (std::any_of(args.begin(), args.end(), asks_for_help)) return print(help(command));

  const Invocation invocation = parse_command_line(args);
  if (invocation.run.print_config) return print(print_config(invocation));
  validate(invocation);
  return kRun[static_cast<int>(command.command)](invocation);
}

int report(ExitCode code, std::string what) {
  std::replace(what.begin(), what.end(), '\n', ' ');
  fmt::print(stderr, "untied: {}\n", what);
  return static_cast<int>(code);
}

int run_and_report(const std::vector<std::string>& args) {
  try {
    const int code = run(args);
    if (std::fflush(stdout) != 0) throw RunError("cannot write to stdout");
    return code;
  } catch (const ConfigError& error) {
    const auto& table = commands();
    const bool known = std::any_of(table.begin(), table.end(), [&](const auto& row) { return row.name == args[0]; });
    return report(error.code(), format("{} (see `untied {}--help`)", error.what(), known ? args[0] + " " : ""));
  } catch (const Error& error) {
    return report(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return report(ExitCode::kOutOfMemory, "out of host memory");
  } catch (const std::exception& error) {
    return report(ExitCode::kFailure, error.what());
  }
}

}  // namespace
}  // namespace untied

int main(int argc, char** argv) { return untied::run_and_report({argv + 1, argv + argc}); }
