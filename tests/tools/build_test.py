"""What the build takes from TensorFlow, and what it refuses before it starts."""

import os
import re
import subprocess
import sys
from unittest import mock

import pytest
import tensorflow as tf

TOOLS = os.path.join(os.path.dirname(__file__), os.pardir, os.pardir, "tools")

# Bazel's tests have no tools/ beside them; `make test` runs these.
pytestmark = pytest.mark.skipif(not os.path.exists(os.path.join(TOOLS, "check_host.py")), reason="no tools/ here")


@pytest.fixture(autouse=True)
def _tools_on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)


def test_abi_and_language_level_are_the_wheels():
    """R97, R98: string ABI and C++ level come from TensorFlow's own answer, whatever it is."""
    import build_config

    flags = ["-I/tensorflow/include", "-D_GLIBCXX_USE_CXX11_ABI=0", "--std=c++42"]
    with mock.patch.object(tf.sysconfig, "get_compile_flags", lambda: flags):
        config = build_config.tensorflow_config()
    assert config["tf_compile_flags"] == flags[1:]
    assert config["tf_include_dirs"] == ["/tensorflow/include"]
    assert config["tf_cxx11_abi"] == int(tf.sysconfig.CXX11_ABI_FLAG)


def test_our_flags_set_neither():
    """R97, R98: nothing of ours overrides them for the op library."""
    with open(os.path.join(TOOLS, "compile_flags.txt")) as file:
        ours = file.read()
    assert "std=" not in ours and "ABI" not in ours


@pytest.mark.parametrize("version, said", [("8.5.0", "g[+][+] 8.5.0 is too old: install g[+][+] 9"), ("9.1.0", None)])
def test_the_compiler_is_checked_first(tmp_path, version, said):
    """R98: before anything is installed or compiled."""
    compiler = tmp_path / "g++"
    compiler.write_text(f"#!/bin/sh\necho {version}\n")
    compiler.chmod(0o755)
    command = [sys.executable, os.path.join(TOOLS, "check_host.py")]
    ended = subprocess.run(command, env={**os.environ, "CXX": str(compiler)}, capture_output=True, text=True)
    assert (ended.returncode != 0) == (said is not None)
    if said:
        assert re.search(said, ended.stderr)


def test_a_compiler_that_is_missing(tmp_path):
    command = [sys.executable, os.path.join(TOOLS, "check_host.py")]
    environment = {**os.environ, "CXX": str(tmp_path / "none")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode != 0 and "there is no g++" in ended.stderr
