"""Tests of examples/digits_demo.py."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

from tf_epgc import launcher

PATH = pathlib.Path(__file__).parents[2] / "examples" / "digits_demo.py"


def load():
    spec = importlib.util.spec_from_file_location("digits_demo", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


demo = load()


def run_of(bits, bytes_a_step=1000.0, identical=True):
    return demo.Run(bits, 0.975, bytes_a_step, identical, 8.25)


def ended(index, returncode=0, weights="abc", accuracy=0.9, bytes_a_step=100.0, stopped=False):
    text = demo.RESULT_MARK + json.dumps(dict(weights=weights, accuracy=accuracy, bytes_a_step=bytes_a_step))
    return launcher.WorkerResult(index, returncode, f"noise\n{text}\n", 1, 1, stopped)


def test_table_compares_with_float32():
    lines = demo.table([run_of(32, 600000.0), run_of(8, 150000.0)]).splitlines()
    assert lines[0].split() == [
        "format",
        "test",
        "accuracy",
        "bytes/step/worker",
        "fewer",
        "bytes",
        "replicas",
        "seconds",
    ]
    assert lines[1].split() == ["float32", "0.9750", "600,000", "1.00x", "identical", "8.2"]
    assert lines[2].split() == ["EPGC-8", "0.9750", "150,000", "4.00x", "identical", "8.2"]


def test_table_without_float32_has_no_ratio():
    assert "  -  " in demo.table([run_of(8)])


def test_table_shouts_when_replicas_differ():
    assert "DIFFERENT" in demo.table([run_of(8, identical=False)])


def test_summary_takes_the_mean_of_the_workers():
    run = demo.summarize(11, [ended(0, bytes_a_step=100.0), ended(1, bytes_a_step=300.0)], 5.0)
    assert run == demo.Run(11, 0.9, 200.0, True, 5.0)


def test_summary_compares_the_weights():
    assert not demo.summarize(11, [ended(0, weights="a"), ended(1, weights="b")], 5.0).identical


def test_summary_names_the_worker_that_failed():
    with pytest.raises(RuntimeError, match=r"worker 1 failed with EPGC-11 \(exit code 3\)"):
        demo.summarize(11, [ended(0, -9, stopped=True), ended(1, 3)], 5.0)


def test_output_without_a_result():
    with pytest.raises(RuntimeError, match="ended without a result"):
        demo.report("nothing here")


@pytest.mark.parametrize("identical, code", [(True, 0), (False, 1)])
def test_exit_code_tells_whether_replicas_are_identical(monkeypatch, capsys, identical, code):
    monkeypatch.setattr(demo, "train_on_workers", lambda bits, options: run_of(bits, identical=identical))
    assert demo.main(["--formats", "32", "8"]) == code
    assert "EPGC-8" in capsys.readouterr().out


def test_a_failed_run_is_one_message(monkeypatch, capsys):
    def fail(bits, options):
        raise RuntimeError("worker 0 failed")

    monkeypatch.setattr(demo, "train_on_workers", fail)
    assert demo.main([]) == 1
    assert capsys.readouterr().err == "digits_demo: worker 0 failed\n"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--formats", "7"], "invalid choice: 7"),
        (["--epochs", "0"], "0 is too small; it must be 1 or more"),
        (["--workers", "3"], "--workers is 3; it must divide the batches"),
    ],
)
def test_wrong_arguments(capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        demo.parse(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_defaults():
    options = demo.parse([])
    assert (options.formats, options.workers, options.worker) == ([32, 16, 11, 9, 8], 2, False)


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_the_program_trains_and_counts():
    """Two formats from end to end: coded gradients are fewer bytes on the wire, and training still works."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path or os.getcwd() for path in sys.path))
    done = subprocess.run(
        [sys.executable, str(PATH), "--formats", "32", "8", "--epochs", "6"],
        text=True,
        capture_output=True,
        timeout=270,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "EPGC-8   epoch 6/6: loss" in done.stdout
    rows = {
        line.split()[0]: line.split()
        for line in done.stdout.splitlines()
        if line.rstrip()[-1:].isdigit() and ("identical" in line or "DIFFERENT" in line)
    }
    sent = {name: float(row[2].replace(",", "")) for name, row in rows.items()}
    parameters = 151306
    assert sent["float32"] == pytest.approx(4 * parameters, rel=0.03)
    assert re.fullmatch(r"[34]\.\d\dx", rows["EPGC-8"][3])
    assert sent["EPGC-8"] == pytest.approx(parameters, rel=0.12)
    assert all(float(row[1]) > 0.9 and row[4] == "identical" for row in rows.values())
