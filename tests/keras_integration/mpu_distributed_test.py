"""MPUOptimizer on several workers: nobody waits for a worker that overflowed, and all stay the same, bit for bit."""

import numpy as np
import pytest

from tests.distributed import harness, mpu_workers

MODULE = "tests.distributed.mpu_workers"
SECONDS = 150
LIBRARIES = ("keras", "tf_keras")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * SECONDS)]
every_library = pytest.mark.parametrize("library", LIBRARIES)


def run_workers(function, workers=2, **arguments):
    options = {name: arguments.pop(name) for name in ("logical_cpus", "expect_failure") if name in arguments}
    return harness.run_workers(f"{MODULE}:{function}", workers, arguments, timeout=SECONDS, **options)


def run_single(function, **arguments):
    options = {name: arguments.pop(name) for name in ("logical_cpus",) if name in arguments}
    return harness.run_single(f"{MODULE}:{function}", arguments, timeout=SECONDS, **options)


def each_run(results, check):
    """Checks every run and reports all that fail, not only the first."""
    failures = []
    for name in results[0]:
        try:
            of_workers = [result[name] for result in results]
            for index, result in enumerate(of_workers):
                assert "error" not in result, f"worker {index}:\n{result['error']}"
            check(name, of_workers)
        except AssertionError as error:
            failures.append(f"=== {name}\n{error}")
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)


def check_same_bits(mine, theirs, keys=("weights", "variables")):
    for key in keys:
        for one, other in zip(mine[key], theirs[key], strict=True):
            assert one.tobytes() == other.tobytes(), f"{key} differ"


#: Scale and skipped steps after each of the six steps; it grows after three good ones.
ONE_BAD = [1024, 1024, 512, 512, 512, 1024], [0, 0, 1, 1, 1, 1]
TWO_BAD = [1024, 512, 512, 512, 256, 256], [0, 1, 1, 1, 2, 2]
BAD_WINDOW = [1024, 1024, 1024, 512, 512, 512], [0, 0, 0, 1, 1, 1]
STEPS_THAT_CHANGE_NOTHING = {"fit_nan": {1, 4}, "accumulated": {0, 2, 3, 4}}


def check_bad_step(name, results):
    for other in results[1:]:
        check_same_bits(results[0], other, ("weights", "variables", "by_step"))
    result = results[0]
    scales, skipped = TWO_BAD if name == "fit_nan" else BAD_WINDOW if "accumulated" in name else ONE_BAD
    assert result["scales"] == scales
    assert result["skipped_by_step"] == skipped
    unchanged = STEPS_THAT_CHANGE_NOTHING.get("accumulated" if "accumulated" in name else name, {2})
    for step in range(1, mpu_workers.STEPS):
        is_same = result["by_step"][step].tobytes() == result["by_step"][step - 1].tobytes()
        assert is_same == (step in unchanged), f"weights after step {step}"
    assert all(np.all(np.isfinite(w.astype("float32"))) for w in result["weights"])
    check_report(results)


def check_report(results):
    """MPUMonitor's, where `fit` ran."""
    reports = [{n: v for n, v in result.get("history", {}).items() if n != "loss"} for result in results]
    assert all(report == reports[0] for report in reports)
    if reports[0]:
        assert reports[0]["loss_scale"] == [results[0]["scale"]]
        assert reports[0]["skipped_steps"] == [results[0]["skipped"]]
        assert 0 < reports[0]["non_finite_gradients"][0] < 1


@every_library
def test_one_worker_overflows(library):
    """R57, R58: every worker skips the same step, and a window that overflowed is cleared."""
    each_run(run_workers("bad_steps", library=library), check_bad_step)


def test_one_replica_overflows_of_two_workers_with_two_devices():
    results = run_workers("bad_steps", library="keras", only=["fit_inf", "fit_accumulated"], logical_cpus=2)
    each_run(results, check_bad_step)


@every_library
def test_one_worker_overflows_under_tensorflows_strategy(library):
    results = run_workers("bad_steps", library=library, kind="stock", only=["loop_nan", "loop_accumulated"])
    each_run(results, check_bad_step)


@every_library
def test_one_replica_overflows_under_mirrored_strategy(library):
    only = ["fit_inf", "fit_accumulated", "loop_nan", "loop_eager"]
    each_run([run_single("bad_steps", library=library, kind="mirrored", only=only, logical_cpus=2)], check_bad_step)


@every_library
def test_keras_loss_scale_optimizer_does_not_hang(library):
    """The strategy's part: with the library's own optimizer, one worker's overflow is everyone's too."""
    first, second = run_workers("keras_loss_scale_optimizer", library=library)
    check_same_bits(first, second, ("weights",))
    assert first["scale"] == second["scale"] == 512.0


@every_library
def test_every_optimizer_trains(library):
    def check(name, results):
        check_same_bits(*results)
        assert results[0]["iterations"] == 16 and results[0]["skipped"] == 0
        assert np.isfinite(results[0]["history"][0])
        changed = [np.any(a != b) for a, b in zip(results[0]["before"], results[0]["weights"], strict=True)]
        assert all(changed), "some weights did not change"

    each_run(run_workers("every_optimizer", library=library), check)


@every_library
def test_two_workers_train_as_one_process(library):
    """Clipping above all: of the sum, not of each worker's part. The exchange is exact here."""
    alone = mpu_workers.comparisons(library, "none")

    def check(name, results):
        check_same_bits(*results)
        for mine, theirs in zip(results[0]["weights"], alone[name]["weights"], strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)

    each_run(run_workers("comparisons", library=library, kind="epgc"), check)


def check_resumes(name, results):
    for result in results:
        check_same_bits(result["stopped"], result["loaded"])
        check_same_bits(result["whole"], result["resumed"])
        for key in ("scale", "good", "skipped", "iterations"):
            assert result["whole"][key] == result["resumed"][key]
        if name != "in_window":
            assert result["loaded"]["good"] == 1 and result["loaded"]["scale"] == 512.0
        else:
            assert result["loaded"]["iterations"] == 1


@every_library
def test_resumes_to_the_same_bits_on_one_worker(library, tmp_path):
    each_run([run_single("resumes", library=library, kind="none", folder=str(tmp_path))], check_resumes)


@every_library
def test_resumes_to_the_same_bits_on_two_workers(library, tmp_path):
    each_run(run_workers("resumes", library=library, kind="epgc", folder=str(tmp_path)), check_resumes)
