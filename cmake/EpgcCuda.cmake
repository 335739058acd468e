# CUDA kernels are built where nvcc of CUDA 12.1 or newer is found. Sets EPGC_CUDA_SOURCES (empty for a build without a
# GPU) and EPGC_CUDA_VERSION.

option(EPGC_CUDA "Build the CUDA kernels where nvcc is found" ON)

set(EPGC_CUDA_VERSION "")
set(EPGC_CUDA_SOURCES "")

# Code for every GPU generation in use that this nvcc knows, and the newest one's PTX, which drivers compile for later
# ones. CMAKE_CUDA_ARCHITECTURES and the environment variable CUDAARCHS choose others.
function(epgc_cuda_architectures result)
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE known RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${CMAKE_CUDA_COMPILER} does not list the architectures it knows; pass "
      "-DCMAKE_CUDA_ARCHITECTURES=..., or -DEPGC_CUDA=OFF for a build without CUDA.")
  endif()
  set(chosen "")
  foreach(arch 70 75 80 86 89 90)
    if(known MATCHES "compute_${arch}\n")
      list(APPEND chosen ${arch}-real)
      set(newest ${arch})
    endif()
  endforeach()
  set(${result} ${chosen} ${newest}-virtual PARENT_SCOPE)
endfunction()

if(EPGC_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
endif()

if(CMAKE_CUDA_COMPILER)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    epgc_cuda_architectures(CMAKE_CUDA_ARCHITECTURES)
  endif()
  # The library must load where no CUDA is installed.
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
endif()

if(CMAKE_CUDA_COMPILER AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.1)
  file(GLOB EPGC_CUDA_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/../ops/cuda/*.cu.cc)
  set(EPGC_CUDA_VERSION ${CMAKE_CUDA_COMPILER_VERSION})
  message(STATUS "tf_epgc: CPU and CUDA ${EPGC_CUDA_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}")
elseif(CMAKE_CUDA_COMPILER)
  message(STATUS "tf_epgc: CPU only; CUDA ${CMAKE_CUDA_COMPILER_VERSION} is older than 12.1")
else()
  message(STATUS "tf_epgc: CPU only")
endif()
