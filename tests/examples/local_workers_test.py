"""Tests of examples/local_workers.py."""

import argparse
import json

import local_workers
import pytest

from tf_epgc import launcher


def ended(index, returncode=0, weights="abc", stopped=False, result=True):
    line = local_workers._RESULT + json.dumps({"accuracy": 0.5 + index, "weights": weights})
    return launcher.WorkerResult(index, returncode, f"noise\n{line if result else ''}\n", 1, 1, stopped)


def start(monkeypatch, workers):
    monkeypatch.setattr(launcher, "launch", lambda *args, **kwargs: workers)
    return local_workers.start("program.py", ["--bits", "8"], len(workers))


def test_the_result_is_that_of_worker_0(monkeypatch):
    result = start(monkeypatch, [ended(0), ended(1)])
    assert result.pop("seconds") >= 0
    assert result == {"accuracy": 0.5, "workers": 2, "identical": True}


def test_weights_are_compared(monkeypatch):
    assert not start(monkeypatch, [ended(0), ended(1, weights="abd")])["identical"]


def test_the_worker_that_failed_is_named(monkeypatch):
    with pytest.raises(RuntimeError, match=r"worker 1 failed \(exit code 3\)"):
        start(monkeypatch, [ended(0, -9, stopped=True), ended(1, 3)])


def test_a_worker_without_result(monkeypatch):
    with pytest.raises(RuntimeError, match="worker 1 ended without a result"):
        start(monkeypatch, [ended(0), ended(1, result=False)])


@pytest.mark.parametrize("identical, code", [(True, 0), (False, 1)])
def test_exit_code(monkeypatch, capsys, identical, code):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr(local_workers, "start", lambda *args: {"identical": identical})
    assert local_workers.main("program.py", None, argparse.Namespace(workers=2), []) == code
    assert json.loads(capsys.readouterr().out) == {"identical": identical}


def test_failure_is_one_message(monkeypatch, capsys):
    def fail(*args):
        raise RuntimeError("worker 0 failed")

    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr(local_workers, "start", fail)
    assert local_workers.main("/a/program.py", None, argparse.Namespace(workers=2), []) == 1
    assert capsys.readouterr().err == "program.py: worker 0 failed\n"


@pytest.mark.parametrize("tf_config, workers", [("{}", 2), (None, 0)])
def test_trains_here_in_a_cluster_or_without_workers(monkeypatch, capsys, tf_config, workers):
    if tf_config:
        monkeypatch.setenv("TF_CONFIG", tf_config)
    else:
        monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.delenv(local_workers._MARK, raising=False)
    assert (
        local_workers.main(
            "program.py", lambda options: {"a": 1, "weights": "b"}, argparse.Namespace(workers=workers), []
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out) == {"a": 1}


def test_on_local_workers_lines_are_marked(monkeypatch, capsys):
    monkeypatch.setenv(local_workers._MARK, "1")
    local_workers.say("epoch 1")
    line = capsys.readouterr().out.rstrip("\n")
    local_workers._show(1, line)
    assert capsys.readouterr().out == ""
    local_workers._show(0, line)
    assert capsys.readouterr().out == "epoch 1\n"
