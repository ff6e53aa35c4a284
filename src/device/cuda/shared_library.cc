#include "device/cuda/shared_library.h"

#include <dlfcn.h>

#include "base/error.h"

namespace untied {

void* SharedLibrary::find(const char* function) {
  // Counted by the loader: one copy, which stays until the program ends.
  void* const library = dlopen(file_, RTLD_NOW | RTLD_LOCAL);
  if (!library) throw DeviceError("{} cannot be loaded ({}): {}", file_, dlerror(), remedy_);
  void* const found = dlsym(library, function);
  if (!found) throw DeviceError("{} is too old, it has no {}: {}", file_, function, remedy_);
  return found;
}

}  // namespace untied
