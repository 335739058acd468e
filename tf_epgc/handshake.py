"""Comparing workers before they train together: their settings at start-up, their variables before the first step."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

#: Longest description that is exchanged, in bytes; a longer one is cut.
_MESSAGE_BYTES = 1024


class WorkerMismatchError(RuntimeError):
    """Workers of one cluster have different settings or variables; raised on every one of them."""


def _to_words(text: str) -> np.ndarray:
    data = text.encode()[:_MESSAGE_BYTES]
    return np.frombuffer(data.ljust(_MESSAGE_BYTES, b"\0"), np.int32)


def _to_text(words: np.ndarray) -> str:
    return words.astype(np.int32).tobytes().rstrip(b"\0").decode(errors="replace")


def _gather_texts(gather: Callable, text: str) -> list[str]:
    return [_to_text(row) for row in gather(tf.constant(_to_words(text))).numpy()]


def compare_settings(gather: Callable[[tf.Tensor], tf.Tensor], settings: dict) -> None:
    """Compares the workers' settings.

    Args:
        gather: All-gathers an int32 vector; blocks.
        settings: Names and values, the same on all workers if all is well.

    Raises:
        WorkerMismatchError: Naming each setting that differs and every worker's value.
    """
    texts = _gather_texts(gather, json.dumps(settings, sort_keys=True))
    if len(set(texts)) == 1:
        return
    everybody = [json.loads(text) for text in texts]
    differing = []
    for name in sorted(set().union(*everybody)):
        values = [worker.get(name) for worker in everybody]
        if any(value != values[0] for value in values):
            listed = ", ".join(f"worker {i} has {value!r}" for i, value in enumerate(values))
            differing.append(f"{name} ({listed})")
    raise WorkerMismatchError(
        "The workers were started with different settings: "
        + "; ".join(differing)
        + ". Give every worker the same arguments and the same installation of tf_epgc."
    )


def describe_variable(variable) -> str:
    shape = variable.shape.as_list() if variable.shape.rank is not None else " of unknown shape"
    return f"{variable.name} {tf.as_dtype(variable.dtype).name}{shape}"


def _digest(text: str) -> np.ndarray:
    return np.frombuffer(hashlib.sha256(text.encode()).digest()[:8], np.int32)


def compare_variables(gather: Callable[[tf.Tensor], tf.Tensor], descriptions: Sequence[str]) -> None:
    """Compares the workers' variables: names, dtypes and shapes in the order of their creation.

    Args:
        gather: As for `compare_settings`.
        descriptions: `describe_variable` of each.

    Raises:
        WorkerMismatchError: Naming the first variable that differs on every worker.
    """
    whole = np.append(_digest("\n".join(descriptions)), np.int32(len(descriptions)))
    rows = gather(tf.constant(whole)).numpy()
    if (rows == rows[0]).all():
        return
    digests = np.zeros([int(rows[:, 2].max()), 2], np.int32)
    for i, description in enumerate(descriptions):
        digests[i] = _digest(description)
    everybody = gather(tf.constant(digests.reshape(-1))).numpy().reshape([len(rows), -1, 2])
    first = int(np.argmax((everybody != everybody[0]).any(axis=(0, 2))))
    mine = descriptions[first] if first < len(descriptions) else "no such variable"
    listed = ", ".join(f"worker {i} has {text}" for i, text in enumerate(_gather_texts(gather, mine)))
    raise WorkerMismatchError(
        f"The workers built different models: variable {first} differs ({listed}). Every worker must create the same "
        "variables in the same order."
    )
