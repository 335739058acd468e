"""`tf-epgc`, run as a user would: in a process of its own where TensorFlow or workers are needed."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from tf_epgc import cli, doctor, performance
from tf_epgc.performance import calibration

ESTIMATE = ["estimate", "--model", "ResNet50", "--compute", "180ms"]


def run_cli(*arguments, env=None, timeout=120):
    environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    command = [sys.executable, "-m", "tf_epgc.cli", *arguments]
    return subprocess.run(
        command, env={**environment, **(env or {})}, capture_output=True, text=True, timeout=timeout, check=False
    )


class TestEstimate:
    def test_table(self, capsys):
        assert cli.main([*ESTIMATE, "--link", "10Gbit/s"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "ResNet50: 25.6 M values, 8 workers, 10 Gbit/s, 180ms"
        assert [line.split()[0] for line in lines[3:8]] == ["float32", "LPDU", "EPGC-11", "EPGC-9", "EPGC-8"]
        assert lines[-1].endswith("use bits=11.")

    def test_stay_with_float32(self, capsys):
        assert cli.main([*ESTIMATE, "--link", "100Gbit/s"]) == 0
        assert capsys.readouterr().out.splitlines()[-1].endswith("stay with float32.")

    def test_json_is_the_models_answer(self, capsys):
        assert cli.main([*ESTIMATE, "--link", "1Gbit/s", "--workers", "4", "--bits", "8", "--json"]) == 0
        row = json.loads(capsys.readouterr().out)["rows"][1]
        machine = performance.ideal_machine(1.25e8)
        network, exchange = performance.network("ResNet50"), performance.Exchange(8)
        assert row["efficiency"] == performance.predict(network, machine, 4, 0.18, exchange).efficiency
        assert row["speed_up"] == pytest.approx(performance.speed_up(network, machine, 4, 0.18, exchange))

    def test_machine_file_and_network_file(self, tmp_path, capsys):
        performance.Machine(1e8, 1e-4, 1e-3, codecs={8: performance.CodecRates(1e9)}).save(tmp_path / "m.json")
        (tmp_path / "net.csv").write_text("name,elements\na,1000000\nb,2000000\n")
        files = ["--file", str(tmp_path / "net.csv"), "--machine", str(tmp_path / "m.json")]
        assert cli.main(["estimate", *files, "--compute", "0.1s", "--link", "1Gbit/s"]) == 0
        assert "3.0 M values, 8 workers, 1 Gbit/s" in capsys.readouterr().out

    def test_answers_in_a_second(self):
        start = time.perf_counter()
        assert run_cli(*ESTIMATE, "--link", "10Gbit/s").returncode == 0
        assert time.perf_counter() - start < 5  # about 0.3 s where nothing else runs

    @pytest.mark.parametrize(
        "arguments,text",
        [
            ([*ESTIMATE], "neither --machine nor --link"),
            ([*ESTIMATE, "--link", "10"], "'10' is not a link rate"),
            (["estimate", "--model", "ResNet50", "--compute", "180", "--link", "1Gbit/s"], "'180' is not a time"),
            (["estimate", "--model", "rubbish", "--compute", "1s", "--link", "1Gbit/s"], "'rubbish' is not known"),
            ([*ESTIMATE, "--machine", "nowhere.json"], "nowhere.json"),
            (["launch", "nowhere.py"], "no file 'nowhere.py'"),
            (["bench", "-n", "1"], "between workers"),
            (["bench", "--calibrate", "/no/such/folder/m.json"], "does not exist"),
        ],
    )
    def test_errors_are_one_sentence(self, arguments, text, capsys, monkeypatch):
        monkeypatch.delenv("TF_CONFIG", raising=False)
        assert cli.main(arguments) == 2
        error = capsys.readouterr().err
        assert text in error and error.count("\n") == 1 and "Traceback" not in error

    @pytest.mark.parametrize("arguments", [[], ["rubbish"], [*ESTIMATE, "--workers", "0"], [*ESTIMATE, "--bits", "10"]])
    def test_wrong_arguments(self, arguments, capsys):
        with pytest.raises(SystemExit) as exit_:
            cli.main(arguments)
        assert exit_.value.code == 2
        assert "tf-epgc" in capsys.readouterr().err


class TestLaunch:
    def test_runs_workers(self, tmp_path):
        script = tmp_path / "hello.py"
        script.write_text("import json, os, sys\nprint(json.loads(os.environ['TF_CONFIG'])['task'], sys.argv[1:])\n")
        result = run_cli("launch", "-n", "3", str(script), "--rate", "0.1")
        assert result.returncode == 0
        assert all(f"[worker {i}]" in result.stdout for i in range(3))
        assert result.stdout.count("['--rate', '0.1']") == 3

    def test_a_failed_worker(self, tmp_path):
        script = tmp_path / "fail.py"
        script.write_text("raise SystemExit(3)")
        result = run_cli("launch", "-n", "1", str(script))
        assert result.returncode == 1
        assert "worker 0 ended with exit code 3" in result.stderr

    def test_time_limit(self, tmp_path):
        script = tmp_path / "sleep.py"
        script.write_text("import time\ntime.sleep(60)")
        result = run_cli("launch", "-n", "2", "--timeout", "1", str(script), timeout=30)
        assert result.returncode == 2
        assert "not done after 1 s" in result.stderr


def lines_of(text, timeout=0.5):
    return [(check.what, check.good, check.text) for check in doctor.check_tf_config(text, timeout)]


class TestTfConfig:
    def test_not_set(self):
        assert lines_of(None)[0][1] is None

    @pytest.mark.parametrize(
        "text,part",
        [
            ("{", "is no JSON"),
            ("{}", "lacks"),
            ('{"cluster": {"worker": ["a:1"]}}', 'lacks {"task"'),
            ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}', "task index 1"),
            ('{"cluster": {"worker": ["a:1", "a:1"]}, "task": {"type": "worker", "index": 1}}', "twice"),
        ],
    )
    def test_wrong(self, text, part):
        [(_, good, message)] = lines_of(text)
        assert good is False and part in message

    def test_addresses(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with socket.create_server(("127.0.0.1", 0)) as other:
                free = other.getsockname()[1]
            workers = [f"127.0.0.1:{free}", f"127.0.0.1:{port}", "127.0.0.1", f"localhost:{free}"]
            config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": 0}}
            rows = lines_of(json.dumps(config))
        assert [good for _, good, _ in rows] == [True, True, True, False, None]
        assert "this one" in rows[1][2] and "answers" in rows[2][2] and "nothing listens" in rows[4][2]


@pytest.mark.slow
class TestWithTensorFlow:
    def test_doctor(self):
        result = run_cli("doctor")
        assert result.returncode == 0, result.stdout + result.stderr
        assert "1.1 in 8 bits is 1" in result.stdout and "instruction set" in result.stdout

    def test_doctor_says_what_is_wrong(self):
        result = run_cli("doctor", env={"TF_CONFIG": "{}", "EPGC_FORCE_ISA": "rubbish"})
        assert result.returncode == 1
        assert "FAILED TF_CONFIG: lacks" in result.stdout and "FAILED instruction set" in result.stdout

    def test_bench_writes_what_estimate_reads(self, tmp_path):
        path = tmp_path / "machine.json"
        result = run_cli("bench", "-n", "2", "--elements", "100000", "--calibrate", str(path))
        assert result.returncode == 0, result.stdout + result.stderr
        machine = performance.load_machine(path)
        assert machine.workers == 2 and set(machine.codecs) == {8, 9, 11, 16, 32}
        assert 1e6 < machine.bandwidth < 1e12
        assert run_cli(*ESTIMATE, "--machine", str(path)).returncode == 0


class TestFitLatency:
    def test_recovers_what_the_model_assumes(self):
        latency, op = 2e-4, 1e-3
        for workers in (2, 4, 8):
            once, twice = op + (workers - 1) * latency, op + 2 * (workers - 1) * latency
            assert calibration.fit_latency(workers, once, once, twice) == pytest.approx((latency, op))

    def test_never_negative(self):
        assert calibration.fit_latency(2, 1e-3, 1e-3, 5e-4) == (0.0, 1e-3)
        latency, op = calibration.fit_latency(2, 1e-3, 1e-3, 5e-3)
        assert latency == pytest.approx(1e-3) and op == pytest.approx(0.0)


def test_fit_line():
    assert calibration.fit_line((1000, 0.003), (2000, 0.005)) == pytest.approx((2e-6, 1e-3))
