# Sets PLO_HAS_CUDA, and finds what the CUDA device is built with. Without nvcc
# the CUDA device is absent: framework/runtime/no_cuda.cc answers for it.
set(PLO_HAS_CUDA OFF)
if(NOT PLO_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  list(APPEND CMAKE_PROGRAM_PATH /usr/local/cuda/bin)
  find_program(PLO_NVCC nvcc)
  if(PLO_NVCC AND NOT CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_COMPILER ${PLO_NVCC})
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES ${PLO_CUDA_ARCHITECTURES})
    enable_language(CUDA)
    # CMake 3.25 does not know that nvcc speaks C++20.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    find_package(CUDAToolkit REQUIRED)
    find_library(PLO_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR}
                 REQUIRED)
    find_path(PLO_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS}
              REQUIRED)
    add_library(plo_nccl INTERFACE)
    target_link_libraries(plo_nccl INTERFACE ${PLO_NCCL_LIBRARY})
    target_include_directories(plo_nccl SYSTEM INTERFACE ${PLO_NCCL_INCLUDE})
    # Without cuDNN and its header-only front end, which
    # scripts/install_dependencies fetches, attention runs on our own kernels.
    find_library(PLO_CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
    find_path(PLO_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
    find_path(PLO_CUDNN_FRONTEND_INCLUDE cudnn_frontend.h
              HINTS ${PROJECT_SOURCE_DIR}/.cache/cudnn_frontend-1.32.0/include)
    if(PLO_CUDNN_LIBRARY AND PLO_CUDNN_INCLUDE AND PLO_CUDNN_FRONTEND_INCLUDE)
      add_library(plo_cudnn INTERFACE)
      # The front end can compile kernels of its own, by nvrtc.
      target_link_libraries(plo_cudnn INTERFACE CUDA::cudart CUDA::nvrtc
                                                ${PLO_CUDNN_LIBRARY})
      target_include_directories(plo_cudnn SYSTEM INTERFACE
        ${PLO_CUDNN_INCLUDE} ${PLO_CUDNN_FRONTEND_INCLUDE})
      target_compile_definitions(plo_cudnn INTERFACE
        CUDNN_FRONTEND_SKIP_JSON_LIB)
    endif()
    message(STATUS "cuDNN front end: ${PLO_CUDNN_FRONTEND_INCLUDE}")
    set(PLO_HAS_CUDA ON)
  elseif(PLO_CUDA STREQUAL "ON")
    message(FATAL_ERROR "PLO_CUDA is ON, but there is no nvcc")
  endif()
endif()
message(STATUS "CUDA device: ${PLO_HAS_CUDA}")
