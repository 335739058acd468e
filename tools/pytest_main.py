"""Runs pytest on one test file, as the main program of a Bazel py_test.

Starts Python anew: the environment is then the same in this process and in those that the tests start.
"""

import os
import sys

NO_TESTS_SELECTED = 5


def main(test_file):
    """Runs the tests of `test_file` that are not slow, and returns the exit code."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    os.environ["PYTHONPATH"] = os.pathsep.join([os.path.join(root, "tools", "without_editable"), root])
    os.environ.setdefault("HOME", os.environ["TEST_TMPDIR"])
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    command += [f"--rootdir={root}", f"--config-file={os.path.join(root, 'pyproject.toml')}"]
    command += [f"--junitxml={os.environ['XML_OUTPUT_FILE']}", os.path.join(root, test_file)]
    code = os.spawnv(os.P_WAIT, sys.executable, command)
    return 0 if code == NO_TESTS_SELECTED else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
