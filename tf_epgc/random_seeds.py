"""Random seeds of several workers: alike where data is shuffled before it is split, their own inside of replicas.

Every worker shuffles the whole data set and takes its share of each batch. Without a seed each would shuffle in an
order of its own, so that some rows were used twice and others never.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tf_epgc._tf_compat import global_seed, set_global_seed, using_seed
from tf_epgc.start_up import report


class SharedSeed:
    """Gives all workers one global seed, drawn anew for each run, unless the script has set one.

    Args:
        gather: All-gathers an int32 vector between workers; blocks.
    """

    def __init__(self, gather: Callable[[tf.Tensor], tf.Tensor]):
        self._gather = gather
        self._has_warned = False
        own = np.frombuffer(os.urandom(4), np.int32) & 0x7FFFFFFF
        agreed = int(gather(tf.constant(own)).numpy()[0, 0])
        self._agreed = agreed if global_seed() is None else None
        if self._agreed is not None:
            set_global_seed(self._agreed)

    def hidden(self):
        """Inside, random ops are as without a seed: replicas' noise must not be the same, which nobody asked for."""
        if self._agreed is None or global_seed() != self._agreed:
            return contextlib.nullcontext()
        return using_seed(None)

    def compare(self) -> None:
        """Warns, once, if the script has given workers different seeds."""
        seed = global_seed()
        words = np.frombuffer(np.int64(-1 if seed is None else int(seed)).tobytes(), np.int32)
        seeds = self._gather(tf.constant(words)).numpy().view(np.int64)[:, 0]
        if (seeds == seeds[0]).all() or self._has_warned:
            return
        self._has_warned = True
        listed = ", ".join(f"worker {i} has {'none' if s == -1 else s}" for i, s in enumerate(seeds))
        report(
            f"warning: the workers have different random seeds ({listed}), so that shuffled data is split differently: "
            "some rows are used twice and others never; set the same seed on every worker."
        )
