# Third-party libraries; docs/dependencies.md says why each. All come from Debian packages (scripts/setup installs them).
# Nothing beyond libc is left to be found at run time: one file is the program.
find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Eigen3 REQUIRED NO_MODULE)
if(UNTIED_TESTS)
  find_package(GTest REQUIRED)
endif()

# Debian has fmt as a shared library only. Its headers are used without it; src/base/fmt_library.cc is the library.
find_package(fmt REQUIRED)
add_library(untied_fmt INTERFACE)
get_target_property(fmt_headers fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
target_include_directories(untied_fmt SYSTEM INTERFACE ${fmt_headers})
# fmt 9 gives up constexpr when it sees nvcc, and does not compile in C++20 then. nvcc 13 is up to it.
target_compile_definitions(untied_fmt INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)

# The same for toml++: headers only.
find_path(TOMLPLUSPLUS_HEADERS toml++/toml.h REQUIRED)
add_library(untied_toml INTERFACE)
target_include_directories(untied_toml SYSTEM INTERFACE ${TOMLPLUSPLUS_HEADERS})
target_compile_definitions(untied_toml INTERFACE TOML_HEADER_ONLY=1)

# OpenMP, with g++'s run-time library linked statically. A compiler without OpenMP builds everything single threaded.
find_package(OpenMP COMPONENTS CXX)
add_library(untied_openmp INTERFACE)
if(OpenMP_CXX_FOUND)
  execute_process(COMMAND ${CMAKE_CXX_COMPILER} -print-file-name=libgomp.a
                  OUTPUT_VARIABLE libgomp OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND IS_ABSOLUTE "${libgomp}" AND EXISTS "${libgomp}")
    target_compile_options(untied_openmp INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${OpenMP_CXX_FLAGS}>)
    target_link_libraries(untied_openmp INTERFACE ${libgomp} Threads::Threads)
  else()
    target_link_libraries(untied_openmp INTERFACE OpenMP::OpenMP_CXX)
  endif()
endif()
