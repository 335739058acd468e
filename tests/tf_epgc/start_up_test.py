"""What a worker does before it joins the cluster: it waits for the others, with a limit, and names them."""

import contextlib
import io
import json
import os
import socket
import struct
import sys
import threading
import time
from unittest import mock

import tensorflow as tf
from absl.testing import parameterized

from tests.distributed.harness import run_workers
from tf_epgc import start_up

WORKERS = "tests.distributed.start_up_workers:"


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class AddressTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters("host", "host:", "host:0000", "host:70000", ":80", "host:http")
    def test_refused(self, address):
        with self.assertRaisesRegex(ValueError, f"gives Worker 1 the address '{address}'; use 'host:port' with a port"):
            start_up.split_address("Worker 1", address)

    def test_split(self):
        self.assertEqual(start_up.split_address("Worker 0", "a.b:80"), ("a.b", 80))
        self.assertEqual(start_up.split_address("Worker 0", "[::1]:80"), ("::1", 80))


class WaitTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.addresses = [(f"Worker {i}", f"127.0.0.1:{port}") for i, port in enumerate(free_ports(3))]

    def test_everybody_comes(self):
        joined = []

        def join(worker):
            start_up.wait_for_workers(self.addresses, worker, 20.0)
            self.listen(worker, b"\0\0\x18\4\0")  # as TensorFlow's server does
            joined.append(worker)

        threads = [threading.Timer(0.3 * i, join, (i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            self.assertFalse(thread.is_alive())
        self.assertCountEqual(joined, range(3))

    def test_missing_workers_are_named(self):
        with self.assertRaisesRegex(
            start_up.WorkersMissingError,
            r"Worker 0 waited 1 s for Worker 1 at 127.0.0.1:\d+ \(connection refused\), Worker 2 at .*; start every",
        ):
            start_up.wait_for_workers(self.addresses, 0, 0.9)

    def test_name_that_does_not_resolve(self):
        addresses = [self.addresses[0], ("Worker 1", "no-such-host.invalid:80")]
        with self.assertRaisesRegex(start_up.WorkersMissingError, r"its name cannot be resolved"):
            start_up.wait_for_workers(addresses, 0, 0.5)

    def listen(self, worker, answer, waits_for_greeting=False):
        """Something at a worker's address that speaks first, as TensorFlow's server does, or closes, or is silent."""
        server = socket.create_server(start_up.split_address(*self.addresses[worker]))
        self.addCleanup(server.close)
        kept = []

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    kept.append(server.accept()[0])
                    if waits_for_greeting:
                        kept[-1].recv(100)
                    if answer is not None:
                        kept[-1].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
                        kept[-1].sendall(answer)
                        time.sleep(0.1)  # on a busy machine the reset can overtake the answer
                        kept.pop().close()

        threading.Thread(target=serve, daemon=True).start()

    def test_a_worker_runs_already(self):
        """R76: one worker alone was started again; the others' servers are TensorFlow's."""
        self.listen(2, b"\0\0\x18\4\0")
        with self.assertRaisesRegex(
            start_up.WorkersMissingError,
            r"Worker 2 at 127.0.0.1:\d+ is already running since an earlier start, .*; end all workers and start all",
        ):
            start_up.wait_for_workers(self.addresses, 0, 60.0)

    def test_an_answer_before_a_reset_is_heard(self):
        """Whether the reset comes after the greeting or before it."""
        self.listen(1, b"\0\0\x18\4\0", waits_for_greeting=True)
        self.listen(2, b"\0\0\x18\4\0")
        connect = socket.create_connection

        def connect_and_wait(address, timeout):
            connection = connect(address, timeout)
            time.sleep(0.5)
            return connection

        with mock.patch.object(socket, "create_connection", connect_and_wait):
            for worker in (1, 2):
                address = start_up.split_address(*self.addresses[worker])
                self.assertEqual(start_up._greet(address, b"expected\n", b"own\n"), start_up._STRANGER)

    def test_others_that_do_not_answer(self):
        self.listen(1, b"")
        self.listen(2, None)
        with mock.patch.object(start_up, "_ANSWER_SECONDS", 0.3):
            with self.assertRaisesRegex(
                start_up.WorkersMissingError, r"Worker 1 at .*connection (closed|reset by peer).*Worker 2 .*timed out"
            ):
                start_up.wait_for_workers(self.addresses, 0, 1.0)

    def test_one_knows_of_another_that_it_cannot_reach(self):
        """What has greeted this worker is there, though it has gone on to join the cluster by now."""
        threads = [
            threading.Thread(target=self.greet_until_answered, args=(i, start_up.split_address(*self.addresses[0])))
            for i in (1, 2)
        ]
        for thread in threads:
            thread.start()
        start_up.wait_for_workers(self.addresses, 0, 20.0)
        for thread in threads:
            thread.join(20)
            self.assertFalse(thread.is_alive())

    def greet_until_answered(self, worker, address):
        while start_up._greet(address, b"tf_epgc worker 0\n", f"tf_epgc worker {worker}\n".encode()):
            time.sleep(0.05)

    def test_own_port_in_use(self):
        port = int(self.addresses[0][1].rpartition(":")[2])
        with socket.create_server(("127.0.0.1", port)):
            with self.assertRaisesRegex(
                start_up.WorkersMissingError, "Worker 0 cannot listen .*address already in use"
            ):
                start_up.wait_for_workers(self.addresses, 0, 5.0)


class LostWorkersTest(tf.test.TestCase):
    def test_what_the_end_of_a_process_says(self):
        lost = tf.errors.UnavailableError(None, None, "Collective ops is aborted by: Socket closed")
        own = tf.errors.InvalidArgumentError(None, None, "Incompatible shapes at /job:worker/replica:0/task:0")
        for error, count in [(lost, 1), (own, 0), (ValueError("Socket closed"), 0)]:
            shown = []
            with mock.patch.object(sys, "excepthook", lambda *error, shown=shown: shown.append(error)):
                start_up._explain_lost_workers()
                with contextlib.redirect_stderr(io.StringIO()) as written:
                    sys.excepthook(type(error), error, None)
            self.assertEqual(shown, [(type(error), error, None)])
            self.assertEqual(written.getvalue().count("end all workers and start all of them again"), count)


class ProcessTest(tf.test.TestCase):
    def run_alone(self, target, cluster, **options):
        config = json.dumps({"cluster": {"worker": cluster}, "task": {"type": "worker", "index": 0}})
        return run_workers(WORKERS + target, 1, tf_config=False, env={"TF_CONFIG": config}, timeout=60, **options)[0]

    def test_one_of_two_is_started(self):
        """R78: the missing worker is named, and the wait ends."""
        ports = free_ports(2)
        failure = self.run_alone("one_strategy", [f"localhost:{p}" for p in ports], expect_failure=True)
        self.assertEqual(failure.kind, "WorkersMissingError")
        self.assertIn(f"Worker 1 at localhost:{ports[1]} (connection refused)", failure.message)

    def test_port_zero(self):
        """R78: refused at once."""
        failure = self.run_alone("one_strategy", ["localhost:0000", "localhost:12345"], expect_failure=True)
        self.assertEqual(failure.kind, "ValueError")
        self.assertIn("gives Worker 0 the address 'localhost:0000'", failure.message)

    def test_an_op_has_run(self):
        """R85: the message says what to move; and nothing that the package does on import is such an op."""
        failures = run_workers(WORKERS + "too_late", expect_failure=True, timeout=60, fresh=True)
        for failure in failures:
            self.assertEqual(failure.kind, "RuntimeError")
            self.assertIn("must be created before the first TensorFlow op runs", failure.message)

    def test_two_start_late(self):
        for result in run_workers(WORKERS + "late", timeout=60, fresh=True):
            self.assertEqual((result["replicas"], result["again"]), (2, 2))
            self.assertRegex(result["elsewhere"], "of the cluster .* since an earlier strategy.*use one cluster")

    def test_cluster_set_too_late(self):
        """R86: a TF_CONFIG that comes after the strategy is noticed."""
        os.environ.pop("TF_CONFIG", None)
        result = run_workers(WORKERS + "config_changes", 1, tf_config=False, timeout=60)[0]
        self.assertEqual(result.count("TF_CONFIG has changed since the strategy was created, which has 1 worker"), 1)


if __name__ == "__main__":
    tf.test.main()
