"""What peers.py makes of the workers' times, and what it says without a peer."""

import sys

import pytest

from benchmarks import exchange, peers

MILLI = 1e-3


def test_a_library_that_cannot_be_imported():
    assert "No module named 'no_such_library'" in peers.why_missing(sys.executable, "no_such_library")
    with pytest.raises(
        SystemExit, match=r"--horovod /no/python cannot import horovod.tensorflow \(.*give an environment"
    ):
        peers.commands(peers.parse_arguments(["--horovod", "/no/python"]))


def test_what_is_not_given_is_left_out():
    assert list(peers.commands(peers.parse_arguments([]))) == ["product"]


def test_rounds_are_put_together(monkeypatch):
    """Times of all rounds; bytes counted for the product, and those of a ring for others."""
    answers = {
        "product": {"EPGC-8": {"seconds": 1.0, "times": [1.0, 3.0], "bytes": 77}},
        "horovod": {"Horovod float16": [2.0]},
    }
    monkeypatch.setattr(peers, "commands", lambda arguments: {name: [name] for name in answers})
    monkeypatch.setattr(exchange, "run", lambda command, workers, rate: answers[command[0]])
    rows = peers.measure(peers.parse_arguments(["--rounds", "2", "--workers", "4", "--elements", "1000"]), None)
    assert rows["EPGC-8"] == {"times": [1.0, 3.0, 1.0, 3.0], "bytes": 77}
    assert rows["Horovod float16"] == {"times": [2.0, 2.0], "bytes": 2 * 3 * 250 * 2}


def test_table():
    """Medians, ratios to the formats, and the time over that of the bytes on the link."""
    rows = {
        "EPGC-8": {"times": [10 * MILLI, 20 * MILLI, 90 * MILLI], "bytes": 1_000_000},
        "Horovod float32": {"times": [50 * MILLI] * 3, "bytes": 4_000_000},
    }
    arguments = peers.parse_arguments(["--rounds", "1", "--repeats", "3"])
    lines = peers.table(rows, arguments, 1e8).splitlines()
    assert lines[0] == "25.6 M values, 2 workers on links of 800 Mbit/s, medians of 3"
    assert lines[2].split() == ["EPGC-8", "20.0", "2.00", "1.00"]
    assert lines[3].split() == ["Horovod", "float32", "50.0", "1.25", "2.50"]
