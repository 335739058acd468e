"""Runs the whole Keras matrix and writes what came of it as a table.

    python -m tests.distributed.keras_matrix_table docs/keras_matrix.md

Each case runs in one process without a strategy, then on two workers with `EPGCMirroredStrategy(bits=32)`. A cell has
the largest difference between the two, relative or absolute, whichever is smaller, in weights, logs, evaluations and
predictions. Weights of the workers are compared bit for bit.
"""

import argparse
import sys

import numpy as np
import tensorflow as tf

from tests.distributed import keras_matrix, keras_matrix_test

HEAD = """# Keras on two workers, case by case

Written by `make matrix` (`tests/distributed/keras_matrix_table.py`) with TensorFlow {tensorflow}, Keras {keras} and
tf_keras {tf_keras}. Every case is trained in one process and on two workers with `bits=32`; a cell has the largest
difference in weights, logs, evaluations and predictions, where "=" is at most 1e-5. Weights of the workers were the
same, bit for bit, in every case that does not say otherwise. The cases are `keras_*.py` in `tests/distributed`, under
these names; `make test` checks them. A "-" is a case that the library does not have.

| section | case | Keras 3 | tf_keras | why it differs |
|---|---|---|---|---|
"""


def difference(actual, expected) -> float:
    """The largest one, relative or absolute."""
    actual, expected = keras_matrix_test.leaves(actual), keras_matrix_test.leaves(expected)
    if actual.keys() != expected.keys():
        return float("inf")
    largest = 0.0
    for name, wanted in expected.items():
        if wanted.shape != actual[name].shape:
            return float("inf")
        distance = np.abs(actual[name].astype(float) - wanted.astype(float))
        largest = max(largest, float(np.max(distance / np.maximum(1.0, np.abs(wanted.astype(float))), initial=0.0)))
    return largest


def cell(case, library, reference, results) -> str:
    """What came of one case."""
    if library not in case.libraries:
        return "-"
    if any("error" in result for result in (reference, *results)):
        return "**fails**"
    try:
        keras_matrix_test.check_workers_agree(results)
    except AssertionError:
        return "**workers differ**"
    left_out = () if library in case.own_logs else ("history", "batch_logs")
    parts = [{name: part for name, part in r.items() if name not in left_out} for r in (results[0], reference)]
    distance = difference(*parts)
    if distance <= 1e-5:
        return "="
    return f"{'' if case.tolerance is None or distance <= case.tolerance else '**differs** '}{distance:.1g}"


def rows(section):
    """The lines of one section."""
    runs = {}
    for library in keras_matrix.LIBRARIES:
        if keras_matrix.cases_of(section, library):
            runs[library] = (
                keras_matrix_test.single(section, library),
                keras_matrix_test.workers(section, library, 32),
            )
    for case in keras_matrix.CASES.values():
        if case.section != section:
            continue
        cells = [
            cell(case, library, runs[library][0][case.name], [each[case.name] for each in runs[library][1]])
            if library in case.libraries
            else "-"
            for library in keras_matrix.LIBRARIES
        ]
        yield f"| {section} | {case.name} | {' | '.join(cells)} | {case.why} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", help="the file to write")
    path = parser.parse_args().path
    import keras
    import tf_keras

    lines = []
    for section in keras_matrix.SECTIONS:
        for line in rows(section):
            print(line, flush=True)
            lines.append(line)
    with open(path, "w") as file:
        file.write(HEAD.format(tensorflow=tf.__version__, keras=keras.__version__, tf_keras=tf_keras.__version__))
        file.write("\n".join(lines) + "\n")
    return 1 if any("**" in line for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
