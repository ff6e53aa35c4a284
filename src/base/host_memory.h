// How much memory the host has for this process: the machine's, or less where a container is given less.
#pragma once

#include "base/size.h"

namespace untied {

dim_t host_memory();            // bytes in all
dim_t available_host_memory();  // bytes that can be taken now without driving anything out

}  // namespace untied
