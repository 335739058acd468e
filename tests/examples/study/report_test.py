"""Tests of examples/study/report.py."""

import json

import cells
import pytest
import report


def record(accuracy, **settings):
    cell = {**cells.DEFAULTS, **settings}
    return {"cell": cell, "result": {"accuracy": accuracy, "curve": [accuracy / 2, accuracy]}}


RECORDS = [
    record(0.50, seed=1),
    record(0.54, seed=2),
    record(0.53, seed=1, bits=8),
    record(0.57, seed=2, bits=8),
    record(0.40, seed=1, bits=9, rounding="truncate", mpu=True, scaling="none", simulate=True),
    record(0.52, seed=2, workers=0),
]


def fields(records):
    lines = report.table(report.by_network(records)["resnet8"]).splitlines()
    return [[field.strip() for field in line.strip("|").split("|")] for line in lines]


def test_table():
    heads, _, *rows = fields(RECORDS)
    assert heads[6] == "Accuracy"
    assert rows[0] == ["float32", "-", "-", "float32", "2", "2", "0.5200 ± 0.0283", "-", "-"]
    assert rows[1] == ["EPGC-8", "nearest", "block", "packed", "2", "2", "0.5500 ± 0.0283", "+0.0300 ± 0.0000", "above"]
    assert rows[2][:6] == ["EPGC-9", "truncate", "none + MPU", "simulated", "2", "1"]
    assert rows[2][6:] == ["0.4000", "-0.1000", "below"]
    assert rows[3][3:5] == ["plain Keras", "1"] and rows[3][7:] == ["-0.0200", "within"]


def test_curves():
    lines = report.curves(report.by_network(RECORDS)["resnet8"]).splitlines()
    assert lines[0] == "| After epoch | 1 | 2 |"
    assert lines[2:] == ["| float32 | 0.260 | 0.520 |", "| EPGC-8 | 0.275 | 0.550 |"]


def test_without_float32_there_is_nothing_to_compare_with():
    *_, row = fields(RECORDS[2:4])
    assert row[-2:] == ["-", "-"]


def test_of_two_results_of_a_cell_the_last_counts():
    *_, row = fields([RECORDS[0], record(0.9, seed=1)])
    assert row[5:7] == ["1", "0.9000"]


def test_program(tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    detection = {
        "cell": {**cells.DEFAULTS, "task": "detection", "network": "ssd"},
        "result": {"map": 0.8, "curve": [0.8]},
    }
    lines = [*RECORDS, detection, {"cell": cells.DEFAULTS, "error": "broke"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert report.main([str(path)]) == 0
    text = capsys.readouterr().out
    assert text.index("## resnet8") < text.index("## ssd") < text.index("mAP@0.5")


def test_no_results(tmp_path, capsys):
    assert report.main([str(tmp_path / "none.jsonl")]) == 1
    assert "holds no results" in capsys.readouterr().err


def test_plots(tmp_path):
    pytest.importorskip("matplotlib")
    report.plot(tmp_path / "plots", "resnet8", report.by_network(RECORDS)["resnet8"])
    assert (tmp_path / "plots" / "resnet8.png").read_bytes().startswith(b"\x89PNG")
