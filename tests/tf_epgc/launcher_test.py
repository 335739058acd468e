"""Tests of tf_epgc.launcher."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tf_epgc import launcher

GRANDCHILD = """
    import subprocess, sys, time
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print("pids", {os.getpid()}, child.pid)
"""


def python(code):
    """The command that runs `code` in a new Python."""
    return [sys.executable, "-c", "import json, os, sys, time\n" + textwrap.dedent(code)]


def is_alive(pid):
    """Whether the process runs; one that is dead and only waits to be reaped does not."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until_dead(pids, seconds=10):
    end = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    return [pid for pid in pids if is_alive(pid)]


def printed_pids(text):
    return [int(word) for line in text.splitlines() if line.startswith("pids") for word in line.split()[1:]]


def test_each_worker_gets_its_tf_config_and_its_own_output():
    results = launcher.launch(python("print(os.environ['TF_CONFIG']); print('err', file=sys.stderr)"), workers=3)
    configs = [json.loads(result.output.splitlines()[0]) for result in results]
    assert [result.index for result in results] == [0, 1, 2]
    assert [result.returncode for result in results] == [0, 0, 0]
    assert [config["task"] for config in configs] == [{"type": "worker", "index": index} for index in range(3)]
    addresses = [f"127.0.0.1:{result.port}" for result in results]
    assert len(set(addresses)) == 3
    assert all(config["cluster"] == {"worker": addresses} for config in configs)
    assert all("err" in result.output for result in results)


def test_without_tf_config(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    [result] = launcher.launch(python("print(os.environ.get('TF_CONFIG'))"), workers=1, tf_config=False)
    assert result.output == "None\n"
    assert result.port is None


def test_exit_codes_come_back():
    results = launcher.launch(python("sys.exit(json.loads(os.environ['TF_CONFIG'])['task']['index'] * 3)"), workers=2)
    assert [result.returncode for result in results] == [0, 3]


def test_a_signal_is_a_negative_exit_code():
    [result] = launcher.launch(python("os.kill(os.getpid(), 9)"), workers=1)
    assert result.returncode == -signal.SIGKILL
    assert not result.stopped


def test_environment_is_a_mapping_or_a_function(monkeypatch):
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    show = python("print(os.environ['NAME'], os.environ['TF_CPP_MIN_LOG_LEVEL'])")
    same = launcher.launch(show, env={"NAME": "x"})
    own = launcher.launch(show, env=lambda index: {"NAME": f"n{index}", "TF_CPP_MIN_LOG_LEVEL": "0"})
    assert [result.output for result in same] == ["x 2\n", "x 2\n"]
    assert [result.output for result in own] == ["n0 0\n", "n1 0\n"]


def test_the_log_level_of_the_user_is_kept(monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
    [result] = launcher.launch(python("print(os.environ['TF_CPP_MIN_LOG_LEVEL'])"), workers=1)
    assert result.output == "1\n"


def test_lines_are_handed_on_while_the_worker_runs():
    seen = []
    code = "print('first', flush=True); time.sleep(0.5); print('second'); print('no line end', end='')"
    launcher.launch(python(code), workers=1, on_line=lambda index, line: seen.append((index, line, time.monotonic())))
    assert [entry[:2] for entry in seen] == [(0, "first"), (0, "second"), (0, "no line end")]
    assert seen[1][2] - seen[0][2] > 0.3


def test_print_line_puts_the_worker_in_front(capsys):
    launcher.launch(python("print('hello')"), workers=2, on_line=launcher.print_line)
    assert sorted(capsys.readouterr().out.splitlines()) == ["[worker 0] hello", "[worker 1] hello"]


def test_output_that_is_not_text_is_kept_readable():
    [result] = launcher.launch(python(r"sys.stdout.buffer.write(b'a\xff\n')"), workers=1)
    assert result.output == "a\ufffd\n"


def test_much_output_keeps_the_last_lines():
    [result] = launcher.launch(python("[print(i) for i in range(30000)]"), workers=1)
    lines = result.output.splitlines()
    assert len(lines) == 10000
    assert lines[-1] == "29999"


def test_a_program_that_does_not_exist():
    [result] = launcher.launch(["/no/such/program"], workers=1)
    assert result.returncode == 127
    assert "cannot start '/no/such/program'" in result.output


def test_when_one_fails_the_others_are_ended_after_the_grace_period():
    code = "index = json.loads(os.environ['TF_CONFIG'])['task']['index']; time.sleep(600 * index); sys.exit(5)"
    start = time.monotonic()
    results = launcher.launch(python(code), workers=2, grace=0.5)
    assert 0.4 < time.monotonic() - start < 10
    assert [result.returncode for result in results] == [5, -signal.SIGKILL]
    assert [result.stopped for result in results] == [False, True]


def test_within_the_grace_period_the_others_may_finish():
    code = "index = json.loads(os.environ['TF_CONFIG'])['task']['index']; time.sleep(index); sys.exit(1 - index)"
    results = launcher.launch(python(code), workers=2, grace=20)
    assert [(result.returncode, result.stopped) for result in results] == [(1, False), (0, False)]


def test_timeout_names_who_was_running_and_shows_the_last_lines():
    code = """
        index = json.loads(os.environ['TF_CONFIG'])['task']['index']
        print('step', index, flush=True)
        time.sleep(600 * index)
    """
    with pytest.raises(launcher.LaunchTimeout, match=r"not done after 3 s: worker 1 of 2 still running") as caught:
        launcher.launch(python(code), workers=2, timeout=3)
    assert "Last lines of worker 1:\n  step 1" in str(caught.value)
    assert caught.value.running == (1,)
    assert [result.returncode for result in caught.value.results] == [0, -signal.SIGKILL]


def test_timeout_without_any_output():
    with pytest.raises(launcher.LaunchTimeout, match=r"\(nothing\)"):
        launcher.launch(python("time.sleep(600)"), workers=1, timeout=0.3)


def test_timeout_ends_children_of_workers_too():
    code = textwrap.dedent(GRANDCHILD.replace("{os.getpid()}", "os.getpid()")) + "time.sleep(600)"
    with pytest.raises(launcher.LaunchTimeout) as caught:
        launcher.launch(python(code), workers=2, timeout=4)
    pids = [pid for result in caught.value.results for pid in printed_pids(result.output)]
    assert len(pids) == 4
    assert wait_until_dead(pids) == []


def test_a_worker_that_ends_takes_its_children_along():
    start = time.monotonic()
    [result] = launcher.launch(python(GRANDCHILD.replace("{os.getpid()}", "os.getpid()")), workers=1)
    assert time.monotonic() - start < 10
    assert result.returncode == 0
    pids = printed_pids(result.output)
    assert len(pids) == 2
    assert wait_until_dead(pids) == []


def test_a_child_in_a_session_of_its_own_cannot_hold_the_launcher_up(monkeypatch):
    monkeypatch.setattr(launcher, "_DRAIN_SECONDS", 0.2)
    code = """
        import subprocess
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        print("pids", child.pid)
    """
    start = time.monotonic()
    [result] = launcher.launch(python(code), workers=1)
    assert time.monotonic() - start < 10
    [pid] = printed_pids(result.output)
    os.kill(pid, signal.SIGKILL)


def test_an_exception_while_waiting_leaves_no_worker():
    pids = []

    def on_line(_, line):
        pids.extend(printed_pids(line))
        if len(pids) == 2:
            raise KeyError("from on_line")

    with pytest.raises(KeyError):
        launcher.launch(python("print('pids', os.getpid(), flush=True); time.sleep(600)"), on_line=on_line)
    assert len(pids) == 2
    assert wait_until_dead(pids) == []


# A shell's background jobs ignore SIGINT, and so would all that they start.
LAUNCHING_PROGRAM = """
    import signal
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from tf_epgc import launcher
    worker = [sys.executable, "-c", "import os, time; print('pids', os.getpid(), flush=True); time.sleep(600)"]
    try:
        launcher.launch(worker, workers=2, on_line=lambda index, line: print(line, flush=True))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_the_launching_program(number):
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path or os.getcwd() for path in sys.path))
    with subprocess.Popen(python(LAUNCHING_PROGRAM), stdout=subprocess.PIPE, text=True, env=environment) as program:
        pids = printed_pids(program.stdout.readline()) + printed_pids(program.stdout.readline())
        try:
            assert len(pids) == 2
            assert all(map(is_alive, pids))
            program.send_signal(number)
            assert wait_until_dead(pids) == []
            rest = program.stdout.read()
        finally:
            program.kill()
    assert ("interrupted" in rest) == (number == signal.SIGINT)


def test_a_taken_port_starts_the_cluster_again_on_others(tmp_path):
    code = f"""
        config = json.loads(os.environ['TF_CONFIG'])
        with open(r'{tmp_path}/ports', 'a') as file:
            file.write(config['cluster']['worker'][0] + '\\n')
        first = os.path.getsize(r'{tmp_path}/ports') < 20
        sys.exit('bind failed: Address already in use' if first else 0)
    """
    [result] = launcher.launch(python(code), workers=1)
    assert result.returncode == 0
    tried = (tmp_path / "ports").read_text().split()
    assert len(tried) == 2
    assert tried[0] != tried[1]


def test_a_port_that_stays_taken_is_given_up():
    [result] = launcher.launch(python("sys.exit('Could not start gRPC server')"), workers=1)
    assert result.returncode == 1


def test_any_other_failure_is_not_tried_again(tmp_path):
    code = f"open(r'{tmp_path}/runs', 'a').write('x'); sys.exit(1)"
    launcher.launch(python(code), workers=1)
    assert (tmp_path / "runs").read_text() == "x"


def test_free_ports_differ_and_avoid_outgoing_connections():
    ports = launcher.free_ports(50)
    low, high = launcher._outgoing_range()
    assert len(set(ports)) == 50
    assert not any(low <= port <= high for port in ports)


def test_two_launchers_never_get_the_same_ports(monkeypatch):
    few = list(range(20000, 20010))
    monkeypatch.setattr(launcher, "_port_candidates", lambda: list(few))
    with launcher._reserved_ports(5) as first, launcher._reserved_ports(5) as second:
        assert not set(first) & set(second)
        with pytest.raises(RuntimeError, match="found 0 free loopback ports, 1 are needed"):
            launcher.free_ports(1)
    assert launcher.free_ports(10)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(command="python train.py"), "command is 'python train.py'; it must be a sequence of strings"),
        (dict(command=[]), "command is .*sequence of strings"),
        (dict(command=["x"], workers=0), "workers is 0; it must be a whole number of at least 1"),
        (dict(command=["x"], workers=1.5), "workers is 1.5"),
        (dict(command=["x"], workers=True), "workers is True"),
        (dict(command=["x"], timeout=0), "timeout is 0; it must be a positive number of seconds"),
        (dict(command=["x"], timeout=float("nan")), "timeout is nan"),
        (dict(command=["x"], grace=-1), "grace is -1; it must be a number of seconds, 0 or more"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        launcher.launch(**arguments)


def test_the_module_does_not_import_tensorflow():
    [result] = launcher.launch(
        python("import tf_epgc.launcher; print('tensorflow' in sys.modules)"),
        workers=1,
        env={"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
    )
    assert result.output == "False\n"
