# Checks the compiler and defines `epgc_options`, the flags of every C++ file of ours.

if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR CMAKE_CXX_COMPILER_VERSION VERSION_LESS 9)
  message(FATAL_ERROR
    "tf_epgc needs g++ 9 or newer, and the compiler found is ${CMAKE_CXX_COMPILER_ID} "
    "${CMAKE_CXX_COMPILER_VERSION} (${CMAKE_CXX_COMPILER}): install a newer g++, or name one with CXX=g++-12.")
endif()

# No -m flag: the instruction set is chosen at run time. Nothing that changes the results of float arithmetic.
# Bazel reads the same file.
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/../tools/compile_flags.txt EPGC_COMPILE_FLAGS)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/../tools/compile_flags.txt)
add_library(epgc_options INTERFACE)
target_compile_options(epgc_options INTERFACE ${EPGC_COMPILE_FLAGS})

# Compiles `target` with our flags, as code that goes into a shared library and exports nothing by itself.
function(epgc_target target)
  target_link_libraries(${target} PRIVATE epgc_options)
  set_target_properties(${target} PROPERTIES
    POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON)
endfunction()
