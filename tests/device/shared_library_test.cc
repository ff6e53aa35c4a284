// What a missing or old vendor library is told as. Needs no GPU.
#ifdef UNTIED_HAS_CUDA

#include "device/cuda/shared_library.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace untied {
namespace {

std::string failure_of(SharedLibrary library, const char* function) {
  try {
    library.find(function);
  } catch (const DeviceError& error) {
    EXPECT_EQ(error.code(), ExitCode::kDevice);
    return error.what();
  }
  return "";
}

TEST(SharedLibrary, FindsFunctions) {
  SharedLibrary math("libm.so.6", "install libc");
  EXPECT_EQ(math.get<double(double)>("floor")(2.5), 2);
}

TEST(SharedLibrary, SaysWhatIsMissingAndWhatToDo) {
  const std::string missing = failure_of({"libnot-there.so.9", "install it"}, "f");
  EXPECT_EQ(missing.find("libnot-there.so.9 cannot be loaded"), 0u) << missing;
  EXPECT_NE(missing.find(": install it"), std::string::npos) << missing;
  EXPECT_EQ(missing.find('\n'), std::string::npos);
  EXPECT_EQ(failure_of({"libm.so.6", "install a newer one"}, "not_a_function"),
            "libm.so.6 is too old, it has no not_a_function: install a newer one");
}

}  // namespace
}  // namespace untied

#endif
