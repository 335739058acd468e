"""The emulated hosts, the step that is measured on them, and what the table's script does without them."""

import dataclasses
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from benchmarks import emulated_cluster, link, step, table1
from tests.distributed import fork_server
from tf_epgc import launcher

needs_hosts = pytest.mark.skipif(bool(emulated_cluster.why_not()), reason=f"no hosts: {emulated_cluster.why_not()}")

_SEND = """
import json, os, socket, sys, time
config = json.loads(os.environ["TF_CONFIG"])
address = config["cluster"]["worker"][0].rsplit(":", 1)
address = (address[0], int(address[1]))
if config["task"]["index"] == 0:
    with socket.create_server(address) as server:
        connection, _ = server.accept()
        received, start = 0, None
        while data := connection.recv(1 << 20):
            start = start or time.perf_counter()
            received += len(data)
        print("rate", received / (time.perf_counter() - start))
else:
    for _ in range(100):
        try:
            connection = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.05)
    connection.sendall(bytes(int(sys.argv[1])))
    connection.close()
"""


def is_held(pid):
    """Whether the process that holds a namespace still runs."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children():
    """Numbers of the processes that this one has started."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return {int(pid) for pid in file.read().split()}


@needs_hosts
class TestHosts:
    def test_link_rate_and_clean_up(self, tmp_path):
        script = tmp_path / "send.py"
        script.write_text(_SEND)
        before = children()
        with emulated_cluster.EmulatedCluster(2, 5e6) as hosts:
            assert len(children() - before) == 3
            for rate in (5e6, 2e7):
                hosts.set_rate(rate)
                results = hosts.launch([sys.executable, str(script), str(int(rate))], timeout=60)
                assert not any(result.returncode for result in results), results
                measured = float(results[0].output.split()[-1])
                assert 0.8 * rate < measured < 1.02 * rate
        assert children() == before

    def test_clean_up_after_an_exception(self):
        before = children()
        with pytest.raises(KeyError), emulated_cluster.EmulatedCluster(2, 1e6):
            raise KeyError
        assert children() == before

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_clean_up_after_a_signal(self, tmp_path, number):
        script = tmp_path / "sleep.py"
        script.write_text("import os, time\nprint(os.environ['EMULATED_HOST'], flush=True)\ntime.sleep(60)")
        # A shell's background jobs ignore SIGINT, and so would all that they start.
        heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        program = [sys.executable, "-c", heed + "from benchmarks import emulated_cluster; emulated_cluster.main()"]
        command = [*program, "--hosts", "2", "--rate", "1Mbit/s", str(script)]
        environment = {**os.environ, "PYTHONPATH": fork_server.module_path()}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        try:
            holder = int(process.stdout.readline().split()[-1])
            assert is_held(holder)
            process.send_signal(number)
            process.wait(30)
        finally:
            process.kill()
            process.stdout.close()
        end = time.monotonic() + 10
        while is_held(holder) and time.monotonic() < end:
            time.sleep(0.05)
        assert not is_held(holder)

    def test_any_program(self):
        command = [sys.executable, emulated_cluster.__file__, "--hosts", "2", "sh", "-c", "echo at $EMULATED_HOST"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert len(set(re.findall(r"at (\d+)", done.stdout))) == 2

    def test_hosts_out_of_range(self):
        with pytest.raises(ValueError, match="hosts"):
            emulated_cluster.EmulatedCluster(0)


class TestWithoutHosts:
    def test_loopback_says_why(self, monkeypatch, capsys, tmp_path):
        monkeypatch.setattr(emulated_cluster, "why_not", lambda: "no root")
        script = tmp_path / "hello.py"
        script.write_text("import os\nprint(os.environ['TF_CONFIG'])")
        with emulated_cluster.cluster(2, 1e6) as hosts:
            results = hosts.launch([sys.executable, str(script)], timeout=60)
        assert "no root" in capsys.readouterr().err
        assert all("127.0.0.1" in result.output for result in results)

    def test_table_refuses(self, monkeypatch):
        monkeypatch.setattr(emulated_cluster, "why_not", lambda: "no root")
        monkeypatch.setattr(sys, "argv", ["table1.py"])
        with pytest.raises(SystemExit, match="no root"):
            table1.main()


def cell(bits, predicted, measured):
    return table1.Cell("VGG16", 8, bits, 1e7, predicted, measured, 1 / predicted - 1, 1 / measured - 1, 100)


def test_plain_sockets_on_loopback():
    command = [sys.executable, link.__file__, "--rate", "1Mbit/s", "--bytes", "1000", "--repeats", "3"]
    results = launcher.launch(command, 3, timeout=60)
    assert [result.returncode for result in results] == [0, 0, 0]
    assert re.search(r"^0\.00 MB to each of 2: [\d.]+ ms, limit [\d.]+$", results[0].output, re.MULTILINE)


def test_charts_have_a_line_a_format():
    larger = dataclasses.replace(cell(8, 0.9, 0.9), workers=16, measured=None)
    lines = table1.charts([cell(8, 0.95, 0.94), larger]).splitlines()
    assert '    title "VGG16, 80 Mbit/s, predicted"' in lines
    assert '    x-axis "workers" [8, 16]' in lines
    assert "    line [95.0, 90.0]" in lines


def test_markdown_says_how_far_off():
    text = table1.markdown([cell(32, 0.80, 0.79), cell(8, 0.95, 0.95)])
    assert "| VGG16 | 8 | 80 Mbit/s | EPGC-8 | 95.00% | 95.00% | +16.00 |" in text
    assert "at most 1.00 points" in text and "within 10 % in 2 of 2 cells" in text


def test_rate_search_stays_between_what_encloses():
    """Two fast links hide most, so that their slope says little of the slow one."""
    rate = table1.next_rate([(60.8, 0.078), (40.1, 0.110), (21.7, 0.565)], 0.190)
    assert 30 < rate < 40


@pytest.mark.parametrize("hidden", [0.0, 0.6])
def test_rate_search_converges(hidden):
    wanted, tried, rate = 0.25, [], 1e7
    for _ in range(5):
        tried.append((rate, max(6e6 / rate - hidden, 0.001)))
        rate = table1.next_rate(tried, wanted)
    assert rate == pytest.approx(6e6 / (wanted + hidden), rel=0.02)


@pytest.mark.slow
class TestStep:
    def test_waits_and_exchanges(self):
        started = time.monotonic()
        with emulated_cluster.cluster(2, 1.25e8) as hosts, step.Session(hosts, 2, "ResNet50", 100_000) as session:
            bits = [step.NO_EXCHANGE, 32, 8]
            times = session.call("measure", timeout=200, compute=0.3, bits=bits, steps=3)
            assert len(times) == 2
            medians = step.medians(times)
            assert list(medians) == bits
            # It never ends early; how late it is depends on what else the machine does.
            assert all(0.299 < seconds < 1.5 for seconds in medians.values())
        assert time.monotonic() - started < 200

    def test_a_worker_that_fails_is_shown(self):
        with emulated_cluster.cluster(1) as hosts, step.Session(hosts, 1, "rubbish", 100) as session:
            with pytest.raises(step.SessionFailed, match="'rubbish' is not known"):
                session.call("measure", timeout=90, compute=0.1, bits=[0], steps=1)
