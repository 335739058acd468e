"""Builds the CUDA kernels by themselves, once for all tests that ask for it."""

import importlib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


def _run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, f"{' '.join(command)} failed:\n{done.stdout[-5000:]}"
    return done.stdout


def _cmake():
    """Returns the path of the cmake package's program, or of one on the PATH that is new enough, or None."""
    if importlib.util.find_spec("cmake") is not None:
        return os.path.join(importlib.import_module("cmake").CMAKE_BIN_DIR, "cmake")
    program = shutil.which("cmake")
    if program is None:
        return None
    version = re.search(r"version (\d+)\.(\d+)", _run(program, "--version"))
    return program if tuple(map(int, version.groups())) >= (3, 26) else None


class Build:
    """The build folder and what the compiler said."""

    def __init__(self, cmake, folder):
        configure = [cmake, "-S", str(ROOT / "ops"), "-B", str(folder)]
        _run(*configure, f"-DPython_EXECUTABLE={sys.executable}", "-DCMAKE_CUDA_FLAGS=-Xptxas=-v")
        self.log = _run(cmake, "--build", str(folder), "--parallel", str(os.cpu_count()))
        self.module_path = next(pathlib.Path(folder).glob("epgc_cuda*.so"))

    def module(self):
        spec = importlib.util.spec_from_file_location("epgc_cuda", self.module_path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


@pytest.fixture(scope="session")
def cuda_build(tmp_path_factory):
    if not (ROOT / "ops/cuda").exists():
        pytest.skip("the sources are not here")
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not on the PATH")
    cmake = _cmake()
    if cmake is None:
        pytest.skip("no cmake of 3.26 or newer")
    return Build(cmake, tmp_path_factory.mktemp("cuda"))
