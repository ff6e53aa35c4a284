# Run at every build: writes OUTPUT, the source of version(), and touches it only when the version has changed.
# 0.1.0 from a tarball, 0.1.0+g1a2b3c4 from a checkout, with -dirty when files differ from the commit.
execute_process(
  COMMAND git --no-optional-locks describe --always --dirty --abbrev=9 --match "v*.*.*"
  WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(described MATCHES "^v([0-9].*)$")
  set(version "${CMAKE_MATCH_1}")
elseif(described)
  set(version "${VERSION}+g${described}")
else()
  set(version "${VERSION}")
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT [[
#include "base/version.h"

namespace untied {
const char* version() { return "@version@"; }
}  // namespace untied
]])
