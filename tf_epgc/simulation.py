"""`simulate_all_reduce`: what several workers would get, in one process; the exchange with a loop for its transport."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tf_epgc.exchange import (
    ExchangeConfig,
    PackCodec,
    add_in_order,
    check_gradients,
    codec_of_slices,
    decode_rows,
    first_sparse_index,
    is_sparse,
    map_by_sparsity,
    pack_codecs,
    pad_rows,
    plan_exchange,
    sum_duplicate_rows,
)
from tf_epgc.formats import CodecConfig
from tf_epgc.packing import DEFAULT_MIN_ELEMENTS, checked_min_elements


def _simulate_dense(by_replica: Sequence[Sequence[tf.Tensor]], config: ExchangeConfig, step, scale: float):
    count = len(by_replica)
    results: list = [None] * len(by_replica[0])
    plan = plan_exchange(by_replica[0], config)
    for positions, codec in pack_codecs(plan, config, count, step, scale):
        sent = tf.stack([codec.pack([values[i] for i in positions], r) for r, values in enumerate(by_replica)])
        codes = tf.concat([codec.reduce(sent[:, shard], shard) for shard in range(count)], axis=0)
        for i, result in zip(positions, codec.unpack(codes, [by_replica[0][i] for i in positions]), strict=True):
            results[i] = result
    for i in plan.exact:
        results[i] = add_in_order(tf.stack([values[i] for values in by_replica]), count, scale)
    return results


def _simulate_slices(by_replica: Sequence[tf.IndexedSlices], codec: PackCodec) -> tf.IndexedSlices:
    local = [sum_duplicate_rows(slices) for slices in by_replica]
    lengths = tf.stack([tf.shape(slices.indices)[0] for slices in local])
    rows = tf.maximum(tf.reduce_max(lengths), 1)
    padded = [pad_rows(slices.values, rows) for slices in local]
    indices = tf.stack([pad_rows(slices.indices, rows) for slices in local])
    codes = tf.stack([codec.pack_rows(values, r) for r, values in enumerate(padded)])
    dtype = by_replica[0].values.dtype
    values, indices = decode_rows(codec, codes, indices, lengths, padded[0], dtype, len(local))
    return tf.IndexedSlices(values, indices, by_replica[0].dense_shape)


def _check_same(by_replica: Sequence[Sequence]) -> None:
    first = by_replica[0]
    check_gradients(first)
    for r, values in enumerate(by_replica):
        if len(values) != len(first):
            raise ValueError(
                f"Replica {r} has {len(values)} gradients, replica 0 has {len(first)}; give each the same ones."
            )
        for i, (a, b) in enumerate(zip(first, values, strict=True)):
            if is_sparse(a) != is_sparse(b) or a.dtype != b.dtype or (not is_sparse(a) and a.shape != b.shape):
                raise ValueError(
                    f"Gradient {i} is {a.dtype.name} of shape {a.shape} on replica 0 but {b.dtype.name} of shape "
                    f"{b.shape} on replica {r}; give every replica the same ones."
                )


def simulate_all_reduce(
    gradients: Sequence,
    bits: int = 11,
    rounding: str = "nearest",
    scaling: str | None = None,
    reduce_op: str = "SUM",
    min_elements: int = DEFAULT_MIN_ELEMENTS,
    bytes_per_pack: int | None = None,
    seed: int = 0,
    step=0,
):
    """What N workers would get from `EPGCMirroredStrategy`, bit for bit, in one process.

    Args:
        gradients: A list with one entry a replica, in replica order: a list of tensors and `tf.IndexedSlices` in
            the order of the variables, or a single one.
        bits: 8, 9, 11 or 16; 32 adds in float32, in replica order.
        rounding: `"truncate"`, `"nearest"` or `"stochastic"`.
        scaling: `"block"`, `"none"` or None for the format's default.
        reduce_op: `"SUM"` or `"MEAN"`.
        min_elements: Smaller tensors travel as float32.
        bytes_per_pack: As the strategy's `communication_options` have it; None for the strategy's own choice.
        seed: Of stochastic rounding.
        step: The number of exchanges done before, which stochastic rounding depends on.

    Returns:
        The reduced gradients: a list like one replica's, or a single one.

    Raises:
        ValueError: For settings that are not supported, no replicas, or replicas that do not match.
        TypeError: If a gradient is not floating.

    Example:

    >>> workers = [[tf.constant([1.0, 2.0])], [tf.constant([0.5, 0.25])]]
    >>> [g.numpy() for g in tf_epgc.simulate_all_reduce(workers, bits=8, min_elements=0)]
    [array([1.5, 2. ], dtype=float32)]
    """
    single, by_replica = _by_replica(gradients)
    count = len(by_replica)
    scale = 1.0 / count if _parse_reduce_op(reduce_op) == tf.distribute.ReduceOp.MEAN else 1.0
    config = ExchangeConfig(
        CodecConfig(bits, rounding, scaling, seed), checked_min_elements(min_elements), bytes_per_pack
    )
    results = _simulate(by_replica, config, tf.convert_to_tensor(step, tf.int64), scale) if count > 1 else by_replica[0]
    return results[0] if single else results


def _parse_reduce_op(reduce_op) -> tf.distribute.ReduceOp:
    try:
        return tf.distribute.ReduceOp(getattr(reduce_op, "value", reduce_op).upper())
    except (AttributeError, ValueError):
        raise ValueError(f"reduce_op={reduce_op!r} is not supported; use 'SUM' or 'MEAN'.") from None


def _by_replica(gradients: Sequence) -> tuple[bool, list[list]]:
    """Whether each replica has a single gradient, and the list of each; checked."""
    if not isinstance(gradients, (list, tuple)):
        raise ValueError(f"gradients is a {type(gradients).__name__}; give a list with one entry for each replica.")
    if not gradients:
        raise ValueError("gradients is empty; give one entry for each replica.")
    single = not isinstance(gradients[0], (list, tuple))
    for r, entry in enumerate(gradients):
        if isinstance(entry, dict) or isinstance(entry, (list, tuple)) == single:
            raise ValueError(
                f"Replica {r}'s gradients are a {type(entry).__name__}; give each replica a list of tensors, or each a "
                "single one."
            )
    by_replica = [_as_tensors([entry] if single else entry) for entry in gradients]
    _check_same(by_replica)
    return single, by_replica


def _as_tensors(values: Sequence) -> list:
    """Tensors, also inside of `tf.IndexedSlices`, which takes lists and arrays as they are."""
    return [
        tf.IndexedSlices(
            *(None if part is None else tf.convert_to_tensor(part) for part in (v.values, v.indices, v.dense_shape))
        )
        if is_sparse(v)
        else None
        if v is None
        else tf.convert_to_tensor(v)
        for v in values
    ]


def _simulate(by_replica: Sequence[Sequence], config: ExchangeConfig, step, scale: float) -> list:
    first = by_replica[0]
    dense_at = [i for i, v in enumerate(first) if not is_sparse(v)]
    sparse_at = [i for i, v in enumerate(first) if is_sparse(v)]

    def dense(_):
        return _simulate_dense([[values[i] for i in dense_at] for values in by_replica], config, step, scale)

    def sparse(slices, number):
        index = first_sparse_index(first) + number
        codec = PackCodec(codec_of_slices(slices, config), index, len(by_replica), step, scale)
        return _simulate_slices([values[sparse_at[number]] for values in by_replica], codec)

    return map_by_sparsity(first, dense, sparse)
