"""How peers.py starts workers, what it makes of their times, and what it says without a peer."""

import json
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
        "product": {"EPGC-8": {"times": [1.0, 3.0], "bytes": 77}},
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


def test_all_workers_get_the_same_sizes(monkeypatch):
    monkeypatch.setattr(peers, "why_missing", lambda python, module: "")
    words = ["--horovod", "one", "--torch", "two", "--elements", "640", "--tensors", "4", "--repeats", "7"]
    started = peers.commands(peers.parse_arguments(words))
    for command in started.values():
        sizes = dict(zip(command[2:], command[3:], strict=False))
        assert (sizes["--elements"], sizes["--tensors"], sizes["--repeats"]) == ("640", "4", "7")
    assert started["horovod"][0] == "one" and started["horovod"][1].endswith("horovod_worker.py")
    assert started["torch"][0] == "two" and started["torch"][1].endswith("torch_worker.py")
    assert started["product"][0] == sys.executable and started["product"][-1] == "--worker"


def test_a_missing_library_is_one_sentence(monkeypatch):
    monkeypatch.setitem(peers.PEERS, "torch", ("no_such_library", "torch_worker.py"))
    with pytest.raises(SystemExit) as error:
        peers.commands(peers.parse_arguments(["--torch", sys.executable]))
    text = str(error.value)
    assert "\n" not in text
    assert f"--torch {sys.executable} cannot import no_such_library" in text and "ModuleNotFoundError" in text


def test_an_interpreter_that_ends_without_a_word():
    assert peers.why_missing("false", "json") == "exit code 1"


def test_results_are_found_in_a_worker_s_output():
    text = json.dumps({"DDP float32": [1.5]})
    program = f"print('I am a warning'); print({exchange.RESULT_MARK!r} + '{text}')"
    assert exchange.run([sys.executable, "-c", program], 2, None) == {"DDP float32": [1.5]}


@pytest.mark.parametrize(("workers", "sent"), [(2, 4000), (4, 6000)])
def test_bytes_of_a_ring(workers, sent):
    assert peers.ring_bytes("Horovod float32", workers, 1000) == sent
    assert peers.ring_bytes("DDP float16 hook", workers, 1000) == sent // 2
    assert peers.ring_bytes("DDP, no_sync", workers, 1000) == 0


def test_a_pass_without_exchange_has_no_limit():
    rows = {"LPDU": {"times": [0.00125], "bytes": 1000}, "DDP, no_sync": {"times": [0.005], "bytes": 0}}
    _, _, product, alone = peers.table(rows, peers.parse_arguments([]), 1e6).splitlines()
    assert product.split() == ["LPDU", "1.2", "1.25", "1.00"]
    assert alone.split() == ["DDP,", "no_sync", "5.0", "4.00"]
