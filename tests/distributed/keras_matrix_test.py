"""Keras 3 and tf_keras train on two workers what they train on one, with the exact and with a coded exchange."""

import concurrent.futures
import functools

import numpy as np
import pytest

from tests.distributed import fork_server, harness, keras_matrix

TARGET = "tests.distributed.keras_matrix:run_section"
SECONDS = 280

#: What these test does not depend on the format.
EXACT_ONLY = (
    "inputs",
    "optimizers",
    "precision",
    "execution",
    "callbacks",
    "saving",
    "reports",
    "structures",
    "loops",
    "mixtures",
)


#: Whose gradients tf_keras hands over in another way than Keras 3; the others differ in what is not coded.
CODED_TF_KERAS = ("mlp", "sparse", "custom")


def each_section(left_out=(), tf_keras=keras_matrix.SECTIONS):
    return pytest.mark.parametrize(
        "section, library",
        [
            (section, library)
            for section in keras_matrix.SECTIONS
            for library in keras_matrix.LIBRARIES
            if keras_matrix.cases_of(section, library)
            and section not in left_out
            and (library == "keras" or section in tf_keras)
        ],
    )


@functools.cache
def single(section, library):
    """The section in one process without a strategy."""
    return harness.run_single(TARGET, dict(section=section, library=library, kind="none"), timeout=SECONDS)


@functools.cache
def workers(section, library, bits, count=2):
    """The section on so many workers: one dict of results a worker."""
    arguments = dict(section=section, library=library, kind=keras_matrix.KIND, bits=bits)
    return harness.run_workers(TARGET, workers=count, kwargs=arguments, timeout=SECONDS)


def single_and_workers(section, library, bits, count=2):
    """Both at the same time: start-up and waiting leave processors idle."""
    fork_server.address()  # started once, before two threads ask for it
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        alone = pool.submit(single, section, library)
        together = workers(section, library, bits, count)
        return alone.result(), together


def leaves(value, path=""):
    """Flattens a result: name -> array."""
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, (list, tuple)):
        pairs = enumerate(value)
    else:
        return {path: np.asarray(value)}
    return {name: leaf for key, part in pairs for name, leaf in leaves(part, f"{path}/{key}").items()}


def check_close(actual, expected, tolerance):
    actual, expected = leaves(actual), leaves(expected)
    assert actual.keys() == expected.keys()
    for name in actual:
        np.testing.assert_allclose(actual[name], expected[name], rtol=tolerance, atol=tolerance, err_msg=name)


def check_ran(results):
    for result in results:
        if "error" in result:
            raise AssertionError(result["error"])


def check_workers_agree(results):
    """Weights bit for bit; logs and predictions too, but for sums in another order."""
    first, *others = results
    for other in others:
        for mine, theirs in zip(first["weights"], other["weights"], strict=True):
            assert mine.tobytes() == theirs.tobytes(), "weights differ between workers"
        check_close(other, first, 1e-6)


def check_finite(result):
    for name, leaf in leaves(result).items():
        assert np.all(np.isfinite(leaf)), f"{name} is not finite"


def check_same_as_single(case, library, result, reference):
    left_out = () if library in case.own_logs else ("history", "batch_logs")
    check_close(
        {name: part for name, part in result.items() if name not in left_out},
        {name: part for name, part in reference.items() if name not in left_out},
        case.tolerance,
    )


def check_loss_falls(result):
    history = result["history"]
    losses = history.get("own_loss") or history["loss"]
    assert losses[-1] < losses[0], f"the loss went from {losses[0]} to {losses[-1]}"


def check_was_coded(result, reference):
    """Else the test would pass with an exchange that never codes anything. Five bits of mantissa show in the result."""
    pairs = zip(result["weights"], reference["weights"], strict=True)
    assert any(np.any(np.abs(mine - theirs) > 1e-5) for mine, theirs in pairs), "the gradients were not coded"


def each_case(section, library, check):
    """Checks every case and reports all that fail, not only the first."""
    failures = []
    for case in keras_matrix.cases_of(section, library):
        try:
            check(case)
        except AssertionError as error:
            failures.append(f"=== {library} {section}/{case.name}\n{error}")
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)


def check_like_one_process(section, library, count):
    alone, together = single_and_workers(section, library, 32, count)

    def check(case):
        reference, results = alone[case.name], [results[case.name] for results in together]
        check_ran([reference, *results])
        check_workers_agree(results)
        check_finite(results[0])
        if case.tolerance is not None:
            check_same_as_single(case, library, results[0], reference)

    each_case(section, library, check)


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
@each_section()
def test_exact_exchange_trains_like_one_process(section, library):
    check_like_one_process(section, library, 2)


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
@pytest.mark.parametrize(
    "section, library, count", [("mlp", "keras", 3), ("mlp", "tf_keras", 3), ("sparse", "keras", 4)]
)
def test_more_workers(section, library, count):
    """Batches of 16 are 6 + 5 + 5 on three."""
    check_like_one_process(section, library, count)


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS)
@each_section(left_out=EXACT_ONLY, tf_keras=CODED_TF_KERAS)
def test_coded_exchange_trains_and_keeps_the_workers_alike(section, library):
    alone, together = single_and_workers(section, library, 11)

    def check(case):
        reference, results = alone[case.name], [results[case.name] for results in together]
        check_ran([reference, *results])
        check_workers_agree(results)
        check_finite(results[0])
        if "history" in results[0]:
            check_was_coded(results[0], reference)
        if case.trains:
            check_loss_falls(results[0])

    each_case(section, library, check)
