"""Refuses, in one sentence, a machine on which `make setup` cannot work. Runs under any Python from 3.6."""

import importlib.util
import os
import subprocess
import sys
import sysconfig

OLDEST_GXX = 9


def _compiler_problem(compiler):
    try:
        version = subprocess.check_output([compiler, "-dumpfullversion", "-dumpversion"], universal_newlines=True)
    except (OSError, subprocess.CalledProcessError):
        return f"there is no g++ ({compiler}): install g++ {OLDEST_GXX} or newer, or name one with CXX=..."
    if int(version.split(".")[0]) < OLDEST_GXX:
        return f"g++ {version.strip()} is too old: install g++ {OLDEST_GXX} or newer, or name one with CXX=..."
    return None


def _python_problem():
    version = ".".join(map(str, sys.version_info[:2]))
    if not (3, 10) <= sys.version_info[:2] <= (3, 13):
        return f"Python {version} ({sys.executable}) does not fit: name a Python 3.10 to 3.13 with PYTHON=..."
    if importlib.util.find_spec("ensurepip") is None:
        return "this Python cannot make virtual environments: install its venv package (Debian: python3-venv)."
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        return "this Python has no C headers (Python.h): install them (Debian: python3-dev)."
    return None


def problem():
    """The first thing that is wrong, or None."""
    return _python_problem() or _compiler_problem(os.environ.get("CXX", "g++"))


if __name__ == "__main__":
    found = problem()
    sys.exit("make setup: " + found if found else 0)
