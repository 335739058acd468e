"""What the tests of the ops share: settings and tensors."""

import numpy as np
import tensorflow as tf

SETTINGS = [
    (bits, rounding, scaling)
    for bits in (8, 9, 11, 16)
    for rounding in ("truncate", "nearest", "stochastic")
    for scaling in ("none", "block")
] + [(32, "nearest", "none")]


def tensors(seed=0):
    """Several dtypes and sizes, with every kind of special value."""
    generator = np.random.default_rng(seed)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -3e38, 65536.0, 2.0**-17], np.float32)
    values = [
        generator.normal(size=(45, 50)).astype(np.float32) * 1e-4,
        special,
        generator.normal(size=(0, 3)).astype(np.float32),
        np.float32(2.5),
        generator.normal(size=(33,)).astype(np.float16),
        generator.normal(size=(70,)),
    ]
    return [tf.constant(v) for v in values] + [tf.cast(generator.normal(size=(40,)), tf.bfloat16)]
