// Which program this is. The build writes the definition (cmake/version.cmake), so that a commit rebuilds one file.
#pragma once

namespace untied {

const char* version();  // "0.1.0+g1a2b3c4d5-dirty"

}  // namespace untied
