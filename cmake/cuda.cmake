# What the cuda backend needs to be built: nvcc, the CUDA run time (static), the headers of cuBLASLt, cuDNN, its C++ interface and
# NCCL. The libraries themselves are found when the program runs (src/device/cuda/shared_library.h). Sets UNTIED_HAS_CUDA.
# With UNTIED_CUDA=AUTO a missing piece is a warning and the backend is left out; with ON it is an error.
#
# A piece in an unusual place: -DCUDNN_ROOT=DIR, -DNCCL_ROOT=DIR, -DCUDNN_FRONTEND_ROOT=DIR (DIR/include); an unpacked wheel is fine.
set(UNTIED_HAS_CUDA OFF)
if(UNTIED_CUDA)
  set(missing "")
  find_program(NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
  if(NVCC)
    get_filename_component(CUDAToolkit_ROOT "${NVCC}" REALPATH)
    get_filename_component(CUDAToolkit_ROOT "${CUDAToolkit_ROOT}/../.." ABSOLUTE)
    find_package(CUDAToolkit QUIET)
  endif()
  set(roots ${CUDAToolkit_ROOT} ${CUDAToolkit_TARGET_DIR})
  find_path(CUBLASLT_HEADERS cublasLt.h HINTS ${roots} PATH_SUFFIXES include)
  find_path(CUDNN_HEADERS cudnn.h HINTS ${CUDNN_ROOT} ${roots} PATH_SUFFIXES include)
  find_path(NCCL_HEADERS nccl.h HINTS ${NCCL_ROOT} ${roots} PATH_SUFFIXES include)
  # Header only; a copy in the repository comes first, then the one that scripts/setup fetched.
  find_path(CUDNN_FRONTEND_HEADERS cudnn_frontend.h
            HINTS ${PROJECT_SOURCE_DIR}/third_party/cudnn-frontend ${CUDNN_FRONTEND_ROOT}
                  ${PROJECT_SOURCE_DIR}/build/third_party/cudnn-frontend ${roots}
            PATH_SUFFIXES include)

  if(NOT NVCC)
    list(APPEND missing "nvcc (CUDA toolkit 12.4 or newer): put it on PATH or set CUDA_HOME")
  elseif(NOT TARGET CUDA::cudart_static)
    list(APPEND missing "libcudart_static.a, in the toolkit of ${NVCC}")
  endif()
  if(NOT CUBLASLT_HEADERS)
    list(APPEND missing "cuBLASLt (cublasLt.h), in the toolkit of nvcc")
  endif()
  if(NOT CUDNN_HEADERS)
    list(APPEND missing "cuDNN 9 (cudnn.h): set CUDNN_ROOT")
  endif()
  if(NOT CUDNN_FRONTEND_HEADERS)
    list(APPEND missing "cudnn-frontend 1 (cudnn_frontend.h): run scripts/setup cuda, or set CUDNN_FRONTEND_ROOT")
  endif()
  if(NOT NCCL_HEADERS)
    list(APPEND missing "NCCL 2 (nccl.h): set NCCL_ROOT")
  endif()

  if(NOT missing)
    set(UNTIED_HAS_CUDA ON)
    set(CMAKE_CUDA_COMPILER ${NVCC})
    set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
    set(CMAKE_CUDA_ARCHITECTURES OFF)  # -gencode below says it, with the `a` that Hopper's own instructions need
    enable_language(CUDA)
    # CMake 3.25 does not know that nvcc has C++20.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_EXTENSIONS OFF)
  else()
    list(JOIN missing "\n  " missing)
    if(UNTIED_CUDA STREQUAL "AUTO")
      message(WARNING "No cuda backend in this build. Missing:\n  ${missing}")
    else()
      message(FATAL_ERROR "The cuda backend (UNTIED_CUDA=${UNTIED_CUDA}) needs:\n  ${missing}")
    endif()
  endif()
endif()

if(UNTIED_HAS_CUDA)
  target_compile_definitions(untied_options INTERFACE UNTIED_HAS_CUDA)
  foreach(arch ${UNTIED_CUDA_ARCH})
    target_compile_options(untied_options INTERFACE
      "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-gencode arch=compute_${arch},code=sm_${arch}>")
  endforeach()
  target_compile_options(untied_options INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-lineinfo;-Xcompiler=-Wall,-Wno-unknown-pragmas>")
  if(UNTIED_WERROR)
    target_compile_options(untied_options INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings>")
  endif()

  # For the few files that see CUDA types; src/CMakeLists.txt links it to them alone.
  add_library(untied_cuda_libraries INTERFACE)
  target_include_directories(untied_cuda_libraries SYSTEM INTERFACE
    ${CUDAToolkit_INCLUDE_DIRS} ${CUBLASLT_HEADERS} ${CUDNN_HEADERS} ${CUDNN_FRONTEND_HEADERS} ${NCCL_HEADERS})
  target_link_libraries(untied_cuda_libraries INTERFACE
    CUDA::cudart_static Threads::Threads ${CMAKE_DL_LIBS})
endif()
