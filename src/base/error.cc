#include "base/error.h"

#include <cstring>

namespace untied {

void fail_check(const char* file, int line, const char* condition, const std::string& detail) {
  const char* inside = std::strstr(file, "/src/");
  throw InternalError("{} [{}:{}: {}]", detail, inside ? inside + 1 : file, line, condition);
}

}  // namespace untied
