"""What plot.py reads of results, and that it draws them."""

import json
import subprocess
import sys

import pytest

from benchmarks import plot


@pytest.fixture
def results(tmp_path):
    path = tmp_path / "exchange.json"
    rows = {"float32": {"times": [0.03, 0.01, 0.02], "bytes": 4_000_000}, "no_sync": {"times": [0.005], "bytes": 0}}
    runs = [{"rate": None, "results": rows}, {"rate": 1e9, "results": rows}]
    path.write_text(json.dumps({"arguments": {"elements": 2_000_000, "workers": 2}, "runs": runs}))
    return path


def test_a_panel_a_link(results):
    (loopback, bars), (links, limited) = plot.read_panels([results])
    assert (loopback, links) == ("2.0 M values, 2 workers, loopback", "2.0 M values, 2 workers, 8 Gbit/s")
    assert bars["float32"] == {"median": 0.02, "fastest": 0.01, "slowest": 0.03, "limit": None}
    assert limited["float32"]["limit"] == 0.004
    assert limited["no_sync"]["limit"] is None


def test_draws(results, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "exchange.png"
    plot.draw(plot.read_panels([results]), picture)
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 5000


def test_refuses_other_files(tmp_path):
    path = tmp_path / "other.json"
    path.write_text("{}")
    done = subprocess.run([sys.executable, plot.__file__, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == "plot: the files must be what exchange.py or peers.py have written with --json\n"
