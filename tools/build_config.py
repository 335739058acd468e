"""Says, as JSON, what a build against the TensorFlow of this Python needs.

CMake and Bazel both ask this script, so that there is one answer to "which flags". Everything about
TensorFlow comes from `tf.sysconfig`; nothing is guessed. Where something is missing, the JSON is
`{"error": "<one sentence>"}`.
"""

import importlib.util
import json
import os
import sys
import sysconfig


def _strip(flags, prefix):
    return [flag[len(prefix) :] for flag in flags if flag.startswith(prefix)]


def _without(flags, prefix):
    return [flag for flag in flags if not flag.startswith(prefix)]


def _missing(package):
    return (
        f"{package} is not installed for the Python that builds ({sys.executable}): install it there "
        f"(pip install {package}), then run pip install --no-build-isolation ."
    )


def tensorflow_config():
    """Flags and version of the installed TensorFlow."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import tensorflow as tf

    compile_flags = tf.sysconfig.get_compile_flags()
    link_flags = tf.sysconfig.get_link_flags()
    return {
        "tf_version": tf.__version__,
        "tf_cxx11_abi": int(tf.sysconfig.CXX11_ABI_FLAG),
        "tf_include_dirs": _strip(compile_flags, "-I"),
        "tf_compile_flags": _without(compile_flags, "-I"),
        "tf_library_dirs": _strip(link_flags, "-L"),
        "tf_link_flags": _without(link_flags, "-L"),
    }


def python_config():
    """Header folders of Python and pybind11."""
    import pybind11

    return {
        "python": sys.executable,
        "python_include_dir": sysconfig.get_path("include"),
        "pybind11_include_dir": pybind11.get_include(),
    }


def build_config():
    """Everything, or an error."""
    for package in ("tensorflow", "pybind11"):
        if importlib.util.find_spec(package) is None:
            return {"error": _missing(package)}
    return {**python_config(), **tensorflow_config()}


if __name__ == "__main__":
    print(json.dumps(build_config(), indent=2))
