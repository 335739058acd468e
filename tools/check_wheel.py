"""Builds the wheel, looks at what it would install, and imports it from a folder of its own.

The other tests run on an editable install; this shows that a user's `pip install` gets the same parts.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

IMPORTS = """
import pathlib, sys
import tf_epgc, tf_epgc._core, tf_epgc.keras_integration
import tensorflow as tf
from tf_epgc import _build_info

for module in (tf_epgc, tf_epgc._core, tf_epgc.keras_integration, _build_info):
    assert pathlib.Path(module.__file__).is_relative_to(sys.argv[1]), f"{module.__file__} is not in {sys.argv[1]}"
tf.load_op_library(_build_info.OP_LIBRARY)
"""


def _pip(*arguments):
    subprocess.run([sys.executable, "-m", "pip", *arguments, "-q", "-q", "--disable-pip-version-check"], check=True)


def build_wheel(folder):
    """Path of the wheel, built into `folder`."""
    _pip("wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    return next(pathlib.Path(folder).glob("tf_epgc-*.whl"))


def problems(wheel):
    """What is wrong with the wheel's contents, a sentence each."""
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    found = [f"{top} would be at the top of site-packages" for top in tops if not top.startswith("tf_epgc")]
    found += [f"{name} should not be in the wheel" for name in names if pathlib.PurePath(name).name == "BUILD"]
    for part in ("_build_info.py", "_core.", "_epgc_ops.so", "keras_integration/__init__.py", "version.py"):
        if not any(name.startswith(f"tf_epgc/{part}") for name in names):
            found.append(f"tf_epgc/{part} is missing")
    return found


def main():
    """Returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="epgc_wheel_") as folder:
        wheel = build_wheel(folder)
        found = problems(wheel)
        if found:
            print("\n".join(f"{wheel.name}: {problem}" for problem in found), file=sys.stderr)
            return 1
        target = os.path.join(folder, "installed")
        _pip("install", "--no-deps", "--target", target, str(wheel))
        path = os.pathsep.join([str(ROOT / "tools" / "without_editable"), target])
        environment = {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
        subprocess.run([sys.executable, "-c", IMPORTS, target], cwd=folder, env=environment, check=True)
        print(f"{wheel.name}: as it should be")
    return 0


if __name__ == "__main__":
    sys.exit(main())
