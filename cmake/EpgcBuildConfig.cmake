# Asks the Python that builds for TensorFlow's flags (tools/build_config.py): EPGC_TF_*.
# Asked anew at each configure, so that another TensorFlow in the same place is noticed.

message(STATUS "tf_epgc: asking ${Python_EXECUTABLE} for TensorFlow's flags")
execute_process(
  COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/build_config.py
  OUTPUT_VARIABLE _config
  ERROR_VARIABLE _stderr
  RESULT_VARIABLE _result)
if(NOT _result EQUAL 0)
  message(FATAL_ERROR "${Python_EXECUTABLE} cannot import TensorFlow:\n${_stderr}")
endif()

string(JSON _error ERROR_VARIABLE _no_error GET "${_config}" error)
if(_no_error STREQUAL "NOTFOUND")
  message(FATAL_ERROR "${_error}")
endif()

# Sets `variable` to the entry `key` of the configuration: a string, or a list.
function(epgc_config variable key)
  string(JSON type TYPE "${_config}" ${key})
  set(value "")
  if(type STREQUAL "ARRAY")
    string(JSON length LENGTH "${_config}" ${key})
    if(length GREATER 0)
      math(EXPR last "${length} - 1")
      foreach(i RANGE ${last})
        string(JSON item GET "${_config}" ${key} ${i})
        list(APPEND value "${item}")
      endforeach()
    endif()
  else()
    string(JSON value GET "${_config}" ${key})
  endif()
  set(${variable} "${value}" PARENT_SCOPE)
endfunction()

epgc_config(EPGC_TF_VERSION tf_version)
epgc_config(EPGC_TF_CXX11_ABI tf_cxx11_abi)
epgc_config(EPGC_TF_INCLUDE_DIRS tf_include_dirs)
epgc_config(EPGC_TF_COMPILE_FLAGS tf_compile_flags)
epgc_config(EPGC_TF_LIBRARY_DIRS tf_library_dirs)
epgc_config(EPGC_TF_LINK_FLAGS tf_link_flags)
set(EPGC_COMPILER "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")

message(STATUS "tf_epgc: TensorFlow ${EPGC_TF_VERSION}, ${EPGC_COMPILER}")
