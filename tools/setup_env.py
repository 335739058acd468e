"""Installs what pyproject.toml asks for into the environment of this Python, around one TensorFlow.

    python tools/setup_env.py            TensorFlow, what building needs, and the extra `test`
    python tools/setup_env.py dev        only the dependency group `dev`

A TensorFlow that is there already (`tensorflow` or `tensorflow-cpu`) stays as it is. Else the environment variable
TENSORFLOW says what to install (such as "tensorflow-cpu==2.20.*"), and the extra `tensorflow` without it.
"""

import importlib.metadata
import os
import pathlib
import subprocess
import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

PYPROJECT = pathlib.Path(__file__).resolve().parent.parent / "pyproject.toml"


def _say(text):
    print(f"==> {text}", flush=True)


def _pip_install(*arguments):
    command = [sys.executable, "-m", "pip", "install", "-q", "-q", "--disable-pip-version-check", *arguments]
    if subprocess.call(command) != 0:
        sys.exit(f"setup: pip could not install {' '.join(arguments)}; its own message is above.")


def installed_tensorflow():
    """The requirement that the installed TensorFlow fulfils, or None."""
    for name in ("tensorflow", "tensorflow-cpu"):
        try:
            return f"{name}=={importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            pass
    return None


def _tf_keras_for(tensorflow):
    """The tf_keras of the same minor version."""
    major, minor = tensorflow.split("==")[1].split(".")[:2]
    return f"tf_keras=={major}.{minor}.*"


def install_group(name):
    """Installs one dependency group."""
    group = tomllib.loads(PYPROJECT.read_text())["dependency-groups"][name]
    _say(f"installing {', '.join(group)}")
    _pip_install(*group)


def install_all():
    """Installs TensorFlow, what building needs, and what the tests need."""
    pyproject = tomllib.loads(PYPROJECT.read_text())
    extras = pyproject["project"]["optional-dependencies"]
    if installed_tensorflow() is None:
        wanted = os.environ.get("TENSORFLOW") or extras["tensorflow"][0]
        _say(f"installing {wanted} (hundreds of megabytes)")
        _pip_install(wanted)
    tensorflow = installed_tensorflow()
    others = pyproject["build-system"]["requires"] + pyproject["dependency-groups"]["build"]
    others += [name for name in extras["test"] if name != "tf_keras"]
    _say(f"installing {', '.join(others)}")
    _pip_install(tensorflow, *others)
    # tf_keras depends on the package `tensorflow`, which must not be laid over tensorflow-cpu.
    _say(f"installing {_tf_keras_for(tensorflow)}")
    _pip_install("--no-deps", _tf_keras_for(tensorflow))


if __name__ == "__main__":
    if sys.argv[1:]:
        for argument in sys.argv[1:]:
            install_group(argument)
    else:
        install_all()
