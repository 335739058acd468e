# CUDA kernels are built where there are sources in ops/cuda and nvcc is found. Sets EPGC_CUDA_SOURCES (empty for a
# build without a GPU) and EPGC_CUDA_VERSION.

option(EPGC_CUDA "Build the CUDA kernels where nvcc is found" ON)

set(EPGC_CUDA_VERSION "")
set(EPGC_CUDA_SOURCES "")
file(GLOB _cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/ops/cuda/*.cu.cc)
if(EPGC_CUDA AND _cuda_sources)
  include(CheckLanguage)
  check_language(CUDA)
endif()

if(CMAKE_CUDA_COMPILER)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES all-major)
  endif()
  enable_language(CUDA)
  set(EPGC_CUDA_SOURCES ${_cuda_sources})
  set(EPGC_CUDA_VERSION ${CMAKE_CUDA_COMPILER_VERSION})
  message(STATUS "tf_epgc: CPU and CUDA ${EPGC_CUDA_VERSION}")
else()
  message(STATUS "tf_epgc: CPU only")
endif()
