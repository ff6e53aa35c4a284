# Compiler options that every target of the project shares, as the interface target `untied_options`.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

add_library(untied_options INTERFACE)
target_include_directories(untied_options INTERFACE ${PROJECT_SOURCE_DIR}/src)

set(flags -Wall -Wextra -Wno-missing-field-initializers -Wno-unknown-pragmas)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND flags -march=${UNTIED_MARCH})
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 sees overlapping copies in std::string's operator+.
  list(APPEND flags -Wno-restrict)
endif()
if(UNTIED_WERROR)
  list(APPEND flags -Werror)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # These follow data flow after inlining, and g++ 12 is often wrong about them (in fmt, in Eigen): warnings only.
    list(APPEND flags -Wno-error=array-bounds -Wno-error=maybe-uninitialized -Wno-error=stringop-overflow
                      -Wno-error=stringop-overread)
  endif()
endif()
if(UNTIED_SANITIZE)
  list(APPEND flags -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
                    -Wno-maybe-uninitialized)
  target_link_options(untied_options INTERFACE -fsanitize=address,undefined)
endif()
target_compile_options(untied_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${flags}>")
