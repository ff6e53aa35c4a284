// Errors by cause. Each cause has one exit code of the command-line contract; `main` alone turns an error into a line and a code.
#pragma once

#include <stdexcept>
#include <string>

#include "base/format.h"

namespace untied {

enum class ExitCode : int {
  kOk = 0,
  kFailure = 1,     // failed while running, or `verify` disagrees
  kUsage = 2,       // wrong options or run configuration
  kDoesNotFit = 3,  // the plan exceeds the memory that is there
  kBadInput = 4,    // checkpoint or data
  kDevice = 5,      // device or communication
  kOutOfMemory = 6,
  kNotFinite = 7,  // loss or gradient
  kStopped = 75,   // by a signal, after saving
};

// The base of everything thrown on purpose. what() is one line: what, where, what would be legal.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

template <ExitCode kCode>
class ErrorOf : public Error {
 public:
  template <class... Args>
  explicit ErrorOf(fmt::format_string<Args...> text, Args&&... args)
      : Error(kCode, format(text, std::forward<Args>(args)...)) {}
};

using ConfigError = ErrorOf<ExitCode::kUsage>;
using DoesNotFitError = ErrorOf<ExitCode::kDoesNotFit>;
using InputError = ErrorOf<ExitCode::kBadInput>;
using DeviceError = ErrorOf<ExitCode::kDevice>;
using OutOfMemoryError = ErrorOf<ExitCode::kOutOfMemory>;
using NotFiniteError = ErrorOf<ExitCode::kNotFinite>;
using RunError = ErrorOf<ExitCode::kFailure>;
using InternalError = ErrorOf<ExitCode::kFailure>;  // a broken invariant: a defect of the program

[[noreturn]] void fail_check(const char* file, int line, const char* condition, const std::string& detail);

}  // namespace untied

// Always on. Throws InternalError with place, condition and the formatted detail.
#define CHECK(condition, ...)                                                              \
  do {                                                                                     \
    if (!(condition)) [[unlikely]]                                                         \
      ::untied::fail_check(__FILE__, __LINE__, #condition, ::untied::format(__VA_ARGS__)); \
  } while (false)
