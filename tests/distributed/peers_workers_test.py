"""How peers.py starts workers and reads what they print, and the rows that have no bytes."""

import json
import sys

import pytest

from benchmarks import exchange, peers


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
