# Finds the pybind11 of the Python that builds, which find_package(Python) has found.

execute_process(
  COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir
  OUTPUT_VARIABLE pybind11_dir
  OUTPUT_STRIP_TRAILING_WHITESPACE
  RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${Python_EXECUTABLE} has no pybind11: install it there, or name another Python with "
    "-DPython_EXECUTABLE=...")
endif()
set(PYBIND11_FINDPYTHON ON)
find_package(pybind11 CONFIG REQUIRED PATHS ${pybind11_dir} NO_DEFAULT_PATH)
