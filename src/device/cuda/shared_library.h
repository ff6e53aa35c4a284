// A vendor's library that is found when it is first wanted, not when the program starts: the program runs everywhere, and says
// in one line what is missing where.
//
// A file that uses such a library defines its functions, by FORWARD, as calls through one of these.
#pragma once

#include <string>

namespace untied {

class SharedLibrary {
 public:
  // `file` as the loader looks for it; `remedy` completes "... : ".
  SharedLibrary(const char* file, const char* remedy) : file_(file), remedy_(remedy) {}
  // Throws DeviceError when the library, or a function of it, is not there.
  void* find(const char* function);

  template <class Function>
  Function* get(const char* function) {
    return reinterpret_cast<Function*>(find(function));
  }

 private:
  const char *const file_, *const remedy_;
};

}  // namespace untied

// Defines the library's function `name` as a call to what `library()` finds.
#define FORWARD(library, result, name, parameters, arguments)                                    \
  extern "C" result name parameters {                                                            \
    static auto* const function = library().get<std::remove_reference_t<decltype(name)>>(#name); \
    return function arguments;                                                                   \
  }
