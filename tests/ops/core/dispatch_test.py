"""Which instruction set runs: the best one, or the one that EPGC_FORCE_ISA names."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tf_epgc import _core

REPORT = """
import numpy
from tf_epgc import _core
print(_core.active_isa())
print(_core.pack([numpy.arange(100, dtype=numpy.float32)], 1, 11, "nearest", "none").sum())
"""


def run_with(forced, program=REPORT):
    """Runs a program in a process whose EPGC_FORCE_ISA is `forced`."""
    environment = {name: value for name, value in os.environ.items() if name != "EPGC_FORCE_ISA"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    if forced is not None:
        environment["EPGC_FORCE_ISA"] = forced
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_something_runs_and_scalar_always():
    isas = _core.runnable_isas()
    assert isas[-1] == "scalar"
    assert isas == [isa for isa in ("avx512", "avx2", "scalar") if isa in isas]


@pytest.mark.parametrize("forced", _core.runnable_isas())
def test_forced_one_runs(forced):
    result = run_with(forced)
    assert result.stdout.split()[:1] == [forced], result.stderr


@pytest.mark.parametrize("unset", [None, ""])
def test_best_one_runs_by_default(unset):
    assert run_with(unset).stdout.split()[:1] == [_core.runnable_isas()[0]]


@pytest.mark.parametrize("call", ["active_isa()", "pack([], 1, 8, 'nearest', 'none')"])
def test_unknown_name_is_an_error(call):
    result = run_with("mmx", f"from tf_epgc import _core; _core.{call}")
    assert result.returncode != 0
    assert "RuntimeError" in result.stderr and "EPGC_FORCE_ISA is 'mmx'" in result.stderr
    for isa in _core.runnable_isas():
        assert f"'{isa}'" in result.stderr


def test_importing_and_listing_work_with_an_unknown_name():
    result = run_with("mmx", "from tf_epgc import _core; print(*_core.runnable_isas())")
    assert result.stdout.split() == _core.runnable_isas(), result.stderr


def test_every_pass_refuses_an_unknown_name():
    program = """
import numpy
from tf_epgc import _core
words = numpy.zeros((1, 8), numpy.uint32)
for call in (
    lambda: _core.pack([], 1, 8, "nearest", "none"),
    lambda: _core.reduce(words, 32, 8, "nearest", "none"),
    lambda: _core.unpack(words, [(32,)], ["float32"], 8, "none"),
    lambda: _core.quantize(numpy.zeros(3, numpy.float32), 8, "nearest", "none"),
):
    try:
        call()
    except RuntimeError as error:
        print("refused")
"""
    assert run_with("AVX2", program).stdout.split() == ["refused"] * 4  # names are in lower case


def test_setting_an_unknown_one_is_an_error(isa):
    with pytest.raises(ValueError, match="instruction set is 'neon'"):
        _core.set_isa_for_test("neon")
    assert _core.active_isa() == isa


def test_the_set_one_runs(isa):
    assert _core.active_isa() == isa
    np.testing.assert_array_equal(_core.quantize(np.ones(3, np.float32), 8, "nearest", "none"), np.ones(3))
