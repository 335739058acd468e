"""Runs an example as a user does, for the tests of the examples."""

import json
import os
import pathlib
import subprocess
import sys

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
SECONDS = 150


def run(program, *arguments):
    """Runs `examples/program` in a process of its own.

    Returns:
        What it wrote to stdout, as lines.

    Raises:
        AssertionError: If it fails; the text holds its output.
    """
    path = os.pathsep.join([str(EXAMPLES.parent), *(path for path in sys.path if path)])
    environment = {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment.pop("TF_CONFIG", None)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / program), *arguments],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"{program} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout.splitlines()


def result_of(lines):
    """The result in the last line, and the lines of progress before it."""
    return json.loads(lines[-1]), lines[:-1]
