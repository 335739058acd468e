"""Tests of examples/study/run.py."""

import json
import os
import threading
import types

import cells
import pytest
import run

WANTED = ["--groups", "resnet", "--seeds", "1"]


@pytest.fixture
def examples(monkeypatch):
    """Stands in for the examples: notes each command, and answers what `answers` says, by number of bits."""
    told = types.SimpleNamespace(commands=[], answers={})

    def start(command, **_):
        told.commands.append(command)
        code, out = told.answers.get(bits(command), (0, json.dumps({"accuracy": 0.5})))
        return types.SimpleNamespace(returncode=code, stdout=f"epoch 1\n{out}\n", stderr="it broke")

    monkeypatch.setattr(run.subprocess, "run", start)
    return told


def bits(command):
    return int(command[command.index("--bits") + 1])


def test_each_cell_is_written(examples, tmp_path):
    out = str(tmp_path / "results.jsonl")
    assert run.main(["--out", out, *WANTED]) == 0
    records = run.records(out)
    assert [record["cell"] for record in records] == cells.cells(["resnet"], [1])
    assert all(record["result"] == {"accuracy": 0.5} for record in records)


def test_goes_on_where_it_stopped_and_tries_failures_again(examples, tmp_path, capsys):
    out = str(tmp_path / "results.jsonl")
    examples.answers[9] = (3, "")
    assert run.main(["--out", out, *WANTED]) == 1
    assert "FAILED" in capsys.readouterr().out
    assert "exit code 3: it broke" in run.records(out)[3]["error"]
    examples.commands.clear()
    examples.answers.clear()
    assert run.main(["--out", out, *WANTED]) == 0
    assert [bits(command) for command in examples.commands] == [9]
    assert len(run.finished(out)) == 5


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"cell": {}, "error": ""}\n{"cell": {"bi')
    assert len(run.records(str(path))) == 1


def test_a_cell_that_takes_too_long(monkeypatch, tmp_path):
    def start(command, timeout, **_):
        raise run.subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(run.subprocess, "run", start)
    record = run.run(cells.DEFAULTS, run.parse(["--timeout", "5"]))
    assert record["error"] == "took longer than 5.0 seconds"


def test_data_and_settings_reach_the_examples():
    options = run.parse(["--cifar", "c.npz", "--mnist", "m.npz", "--set", "epochs=1"])
    [classification, detection] = (
        run.command(cells.cells([group], [1])[0], options) for group in ("resnet", "detection")
    )
    assert classification[-2:] == ["--data", "c.npz"]
    assert detection[-4:] == ["--digits", "m.npz", "--backgrounds", "c.npz"]
    assert classification[classification.index("--epochs") + 1] == "1"


def test_settings_need_a_value(capsys):
    with pytest.raises(SystemExit):
        run.parse(["--set", "epochs"])
    assert "write each as NAME=VALUE" in capsys.readouterr().err


def test_only_some_formats(examples, tmp_path):
    assert run.main(["--out", str(tmp_path / "a"), *WANTED, "--bits", "8", "32"]) == 0
    assert [bits(command) for command in examples.commands] == [32, 8]


def test_dry_run(examples, tmp_path, capsys):
    out = str(tmp_path / "results.jsonl")
    assert run.main(["--out", out, "--dry-run", *WANTED]) == 0
    assert not os.path.exists(out) and not examples.commands
    assert "classification.py" in capsys.readouterr().out


def test_waits_while_the_pause_file_is_there(monkeypatch, tmp_path):
    monkeypatch.setattr(run, "PAUSE_SECONDS", 0.01)
    pause = tmp_path / "pause"
    pause.touch()
    waiting = threading.Thread(target=run.wait_while, args=[str(pause)])
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    pause.unlink()
    waiting.join(10)
    assert not waiting.is_alive()
    run.wait_while(None)
