"""The exchange between real processes equals `simulate_all_reduce` bit for bit, on every worker."""

import numpy as np
import pytest
import tensorflow as tf

from tests.distributed import exchange_workers
from tests.distributed.harness import run_workers

FORMATS = [{"bits": bits} for bits in (8, 9, 11, 16)]
CASES = (
    [{"options": options} for options in FORMATS]
    + [{"options": options, "op": "MEAN"} for options in FORMATS]
    + [{"options": {**options, "scaling": "none"}} for options in FORMATS if options["bits"] != 9]
    + [{"options": {**options, "rounding": "truncate"}} for options in FORMATS]
    + [{"options": options, "special": special} for options in FORMATS for special in (np.nan, np.inf, -np.inf)]
    + [{"options": {**options, "bytes_per_pack": 9000}} for options in FORMATS]
)
#: Stochastic cases count exchanges, so that they come last and in this order.
STOCHASTIC = [{"options": {"bits": 8, "rounding": "stochastic"}, "steps": 1}]


def same_bits(a, b):
    """Whether two arrays, or tuples of arrays, hold the same bytes."""
    if isinstance(a, tuple):
        return all(same_bits(x, y) for x, y in zip(a, b, strict=True))
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


class ExchangeTest(tf.test.TestCase):
    def check(self, workers, cases, logical_cpus=None, graph=True):
        results = run_workers(
            "tests.distributed.exchange_workers:exchange",
            workers=workers,
            kwargs={"cases": cases, "graph": graph},
            logical_cpus=logical_cpus,
            timeout=200,
        )
        expected = exchange_workers.simulate(cases, workers * (logical_cpus or 1))
        for worker, by_case in enumerate(results):
            for case, by_replica, right in zip(cases, by_case, expected, strict=True):
                self.assertLen(by_replica, logical_cpus or 1)
                for values in by_replica:
                    for i, (value, wanted) in enumerate(zip(values, right, strict=True)):
                        self.assertTrue(same_bits(value, wanted), f"worker {worker}, {case}, gradient {i}")

    def test_two_workers(self):
        self.check(2, CASES + STOCHASTIC)

    @pytest.mark.slow
    def test_three_workers(self):
        self.check(3, CASES + STOCHASTIC)

    @pytest.mark.slow
    def test_four_workers(self):
        self.check(4, CASES + STOCHASTIC)

    @pytest.mark.slow
    def test_two_workers_of_two_replicas(self):
        self.check(2, CASES[:8] + STOCHASTIC, logical_cpus=2)

    def test_two_local_replicas(self):
        self.check(1, CASES[:8], logical_cpus=2)

    @pytest.mark.slow
    def test_eager(self):
        self.check(2, CASES[:4] + STOCHASTIC, graph=False)

    def test_uneven_and_no_rows(self):
        self.check(2, [{"options": {"bits": 8}, "rows": rows} for rows in ([4, 2], [3, 0], [0, 0])])

    def test_non_finite_reaches_everybody(self):
        """R122: NaN, Inf and the ends of the range on one worker."""
        for case in [c for c in CASES if "special" in c]:
            (result,) = exchange_workers.simulate([case], 2)
            for gradient in result[:2]:
                self.assertFalse(np.isfinite(gradient.reshape(-1)[-1]), case)

    def test_nothing_to_send(self):
        """Tensors without elements, alone in their call: a collective of no bytes crashes the runtime."""
        for shapes in run_workers("tests.distributed.exchange_workers:empty", workers=2, timeout=60):
            self.assertEqual(shapes, [(0, 5), (0, 3), (3, 0), (0, 5), (0, 3), (0, 3), (0,), (0, 2)])

    def test_bytes_on_the_wire(self):
        """Counted by the kernel on the workers' sockets, for a model of 10 M parameters."""
        shapes = [(3, 3, 256, 512), (4096, 2000), (512,), (2000, 300), (300,)]
        elements = sum(int(np.prod(shape)) for shape in shapes)
        for workers in (2, 3):
            results = run_workers(
                "tests.distributed.exchange_workers:bytes_of_a_step",
                workers=workers,
                kwargs={"formats": [32, 16, 11, 9, 8], "shapes": shapes},
                timeout=120,
            )
            for bits in (32, 16, 11, 9, 8):
                sent = np.mean([result[bits] for result in results])
                self.assertAllClose(sent, 2 * (workers - 1) / workers * elements * bits / 8, rtol=0.05, msg=f"{bits}")


if __name__ == "__main__":
    tf.test.main()
