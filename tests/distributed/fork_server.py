"""Starts workers as copies of a process that has imported TensorFlow: importing is most of what a short test does.

The launcher starts `fork_client.py` as the worker. That hands its environment and its output to the server, which forks
twice: a keeper, which kills the worker when the client goes, and the worker, a process and session of its own whose
runtime has not started. Whatever is drawn at random when modules are imported is drawn again.
"""

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

CLIENT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fork_client.py")

_START_SECONDS = 120.0
_POLL_SECONDS = 0.02
_MESSAGE_BYTES = 1 << 20


def module_path() -> str:
    """`PYTHONPATH` for processes that must find the same modules as this one, wherever pytest was started."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)


@functools.cache
def address() -> str:
    """Starts the server, once in a process; returns the path of its socket."""
    folder = tempfile.TemporaryDirectory(prefix="epgc_fork_")
    path = os.path.join(folder.name, "socket")
    environment = {
        **os.environ,
        "PYTHONPATH": module_path(),
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    }
    environment.pop("TF_CONFIG", None)
    command = [sys.executable, "-m", "tests.distributed.fork_server", path]
    server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, start_new_session=True)
    atexit.register(folder.cleanup)
    atexit.register(server.kill)
    end = time.monotonic() + _START_SECONDS
    while not os.path.exists(path):
        if server.poll() is not None or time.monotonic() > end:
            server.kill()
            raise RuntimeError(f"The server that starts workers ended with {server.poll()} before it was ready.")
        time.sleep(_POLL_SECONDS)
    return path


def serve(path: str) -> None:
    """Forks a worker for every client, until the process that started the server is gone."""
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    import tf_epgc  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers need not be waited for
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path + ".part")
    listening.listen(64)
    os.rename(path + ".part", path)
    while True:
        ready, _, _ = select.select([listening, sys.stdin], [], [])
        if sys.stdin in ready:  # closed: nobody writes to it
            return
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os._exit(_keep(connection))
        connection.close()


def _keep(connection) -> int:
    """Forks the worker, waits for its end or for that of the client, and tells the client how it ended."""
    message, outputs, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, 1)
    while not message.endswith(b"\n"):
        part = connection.recv(_MESSAGE_BYTES)
        if not part:  # the client was ended before it had asked
            return 0
        message += part
    worker = os.fork()
    if worker == 0:
        connection.close()
        _become_worker(json.loads(message), outputs[0])
    os.close(outputs[0])
    ended = 0
    while not ended:
        ended, status = os.waitpid(worker, os.WNOHANG)
        if not ended and select.select([connection], [], [], _POLL_SECONDS)[0]:
            os.kill(worker, signal.SIGKILL)
            _end_group(worker)
            os.waitpid(worker, 0)
            return 0
    _end_group(worker)
    connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    return 0


def _end_group(worker: int) -> None:
    """Ends what a worker has started, as the launcher does with a process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker, signal.SIGKILL)


def _become_worker(job, output: int) -> None:
    """Runs the harness's job in this process, and ends it."""
    import random

    import numpy as np

    code = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.clear()
        os.environ.update(job["environment"])
        os.chdir(job["cwd"])
        random.seed()
        np.random.seed()
        from tests.distributed import harness

        harness._work(job["folder"])
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
