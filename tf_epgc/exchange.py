"""The exchange of docs/wire_format.md, section 5, for one replica, and the same for all replicas in one process.

A pack is coded, sent and decoded by `PackCodec`, which knows no transport: `exchange_gradients` puts collectives
between its phases, `simulate_all_reduce` a loop over replicas. So the two cannot differ by a bit.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_epgc import ops
from tf_epgc.formats import EXACT, CodecConfig
from tf_epgc.packing import DEFAULT_BYTES_PER_PACK, DEFAULT_MIN_ELEMENTS, PackPlan, TensorSpec, plan_packs

_CODED_DTYPES = (tf.float32, tf.float16, tf.bfloat16, tf.float64)


@dataclasses.dataclass(frozen=True)
class ExchangeConfig:
    """Everything that every replica must agree on."""

    codec: CodecConfig
    min_elements: int = DEFAULT_MIN_ELEMENTS
    bytes_per_pack: int = DEFAULT_BYTES_PER_PACK


@dataclasses.dataclass(frozen=True)
class PackCodec:
    """The three codings of one pack.

    Args:
        config: How its values are coded.
        index: Of the pack in its exchange.
        replicas: How many take part.
        step: int64 scalar, which the random bits depend on.
        scale: What the sum is multiplied by.
    """

    config: CodecConfig
    index: int
    replicas: int
    step: tf.Tensor
    scale: float

    def pack(self, tensors: Sequence[tf.Tensor], replica: int, shards: int | None = None) -> tf.Tensor:
        stream = self.index * 2 * self.replicas + replica
        return ops.pack(tensors, self.config, self.replicas if shards is None else shards, self.step, stream)

    def reduce(self, rows: tf.Tensor, shard: int) -> tf.Tensor:
        stream = (self.index * 2 + 1) * self.replicas + shard
        return ops.reduce(rows, self.config, self.scale, self.step, stream)

    def unpack(self, codes: tf.Tensor, like: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return ops.unpack(codes, self.config, like)


@dataclasses.dataclass(frozen=True)
class Replica:
    """Who takes part in an exchange: replica `index` of `count`, joined by `collectives` (all_to_all, all_gather)."""

    index: int
    count: int
    collectives: object


def is_sparse(value) -> bool:
    return isinstance(value, tf.IndexedSlices)


def check_gradients(values: Sequence) -> None:
    """Refuses values that cannot be coded.

    Raises:
        TypeError: If one is not floating.
    """
    for value in values:
        if value.dtype not in _CODED_DTYPES:
            raise TypeError(
                f"A gradient has dtype {tf.as_dtype(value.dtype).name}; gradients must be float32, float16, bfloat16 "
                "or float64: all-reduce other values without GradientOptions."
            )


def _plan(values: Sequence[tf.Tensor], config: ExchangeConfig) -> PackPlan:
    specs = [TensorSpec(v.shape.num_elements(), v.dtype.name) for v in values]
    min_elements = sys.maxsize if config.codec.is_exact else config.min_elements
    return plan_packs(specs, min_elements, config.bytes_per_pack)


def _pack_codecs(plan: PackPlan, config: ExchangeConfig, replicas: int, step, scale: float):
    """Pairs of the positions of a pack's tensors and its `PackCodec`."""
    for index, positions in enumerate(plan.coded):
        yield positions, PackCodec(config.codec, index, replicas, step, scale)
    if plan.small:
        yield plan.small, PackCodec(EXACT, len(plan.coded), replicas, step, scale)


def _add_in_order(rows: tf.Tensor, count: int, scale: float) -> tf.Tensor:
    """Sum over the first axis, in replica order, times `scale`."""
    total = rows[0]
    for i in range(1, count):
        total += rows[i]
    return total if scale == 1.0 else total * tf.cast(scale, total.dtype)


def _exchange_dense(values: Sequence[tf.Tensor], config: ExchangeConfig, replica: Replica, step, scale: float):
    # What has no elements is its own sum, and a collective of no bytes would crash the runtime.
    results: list = [v if v.shape.num_elements() == 0 else None for v in values]
    plan = _plan(values, config)
    for positions, codec in _pack_codecs(plan, config, replica.count, step, scale):
        tensors = [values[i] for i in positions]
        if all(results[i] is not None for i in positions):
            continue
        rows = replica.collectives.all_to_all(codec.pack(tensors, replica.index), lane=codec.index)
        codes = replica.collectives.all_gather(codec.reduce(rows, replica.index), lane=codec.index)
        for i, result in zip(positions, codec.unpack(codes, tensors), strict=True):
            results[i] = result
    for i in plan.exact:
        if results[i] is not None:
            continue
        results[i] = _add_in_order(replica.collectives.all_gather(values[i]), replica.count, scale)
    return results


def sum_duplicate_rows(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Adds rows of equal index, in float32 at least, so that each row is sent and rounded once."""
    values = slices.values
    if values.dtype in (tf.float16, tf.bfloat16):
        values = tf.cast(values, tf.float32)
    indices, positions = tf.unique(slices.indices)
    summed = tf.math.unsorted_segment_sum(values, positions, tf.shape(indices)[0])
    summed.set_shape([None, *values.shape[1:]])
    return tf.IndexedSlices(summed, indices, slices.dense_shape)


def _pad_rows(tensor: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    missing = rows - tf.shape(tensor)[0]
    return tf.pad(tensor, [[0, missing]] + [[0, 0]] * (tensor.shape.rank - 1))


def _decode_rows(codec: PackCodec, codes, indices, lengths, like: tf.Tensor, dtype, replicas: int):
    """Decodes every replica's rows and strips the padding; returns values and indices, in replica order."""
    all_values, all_indices = [], []
    for i in range(replicas):
        decoded = codec.unpack(codes[i][tf.newaxis], [like])[0]
        all_values.append(decoded[: lengths[i]])
        all_indices.append(indices[i][: lengths[i]])
    values = tf.concat(all_values, 0)
    if codec.scale != 1.0:
        values *= tf.cast(codec.scale, values.dtype)
    return tf.cast(values, dtype), tf.concat(all_indices, 0)


def _codec_of_slices(slices: tf.IndexedSlices, config: ExchangeConfig) -> CodecConfig:
    elements = slices.shape.num_elements()  # of the variable; None if its shape is not known
    return EXACT if elements is not None and elements < config.min_elements else config.codec


def _exchange_slices(slices: tf.IndexedSlices, codec: PackCodec, replica: Replica) -> tf.IndexedSlices:
    """All-gathers coded rows: replicas may send different numbers of rows, none included."""
    if slices.values.shape[1:].num_elements() == 0:
        return slices  # rows without columns: nothing to add
    local = sum_duplicate_rows(slices)
    gather = functools.partial(replica.collectives.all_gather, lane=codec.index)
    lengths = gather(tf.shape(local.indices)[0])
    # At least one row, since a collective of no bytes would be a special case of the runtime.
    rows = tf.maximum(tf.reduce_max(lengths), 1)
    padded = _pad_rows(local.values, rows)
    indices = gather(_pad_rows(local.indices, rows))
    codes = gather(codec.pack([padded], replica.index, shards=1)[0])
    values, indices = _decode_rows(codec, codes, indices, lengths, padded, slices.values.dtype, replica.count)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _map_by_sparsity(values: Sequence, dense: Callable, sparse: Callable) -> list:
    """`dense` of the list of dense values, `sparse` of each other one and its number, in the order of `values`."""
    dense_at = [i for i, v in enumerate(values) if not is_sparse(v)]
    results: list = [None] * len(values)
    for i, result in zip(dense_at, dense([values[i] for i in dense_at]), strict=True):
        results[i] = result
    sparse_at = [i for i, v in enumerate(values) if is_sparse(v)]
    for number, i in enumerate(sparse_at):
        results[i] = sparse(values[i], number)
    return results


def exchange_gradients(values: Sequence, config: ExchangeConfig, replica: Replica, step, scale: float = 1.0) -> list:
    """All-reduces one replica's gradients.

    Args:
        values: Floating tensors and `tf.IndexedSlices`; as many, with the same shapes and dtypes, on every replica.
        config: The same on every replica.
        replica: Which one this is.
        step: int64 scalar, the same on every replica.
        scale: 1 for a sum, `1 / replicas` for a mean.

    Returns:
        The reduced values, the same bits on every replica.
    """
    first_sparse_index = _first_sparse_index(values)

    def sparse(slices, number):
        codec = PackCodec(_codec_of_slices(slices, config), first_sparse_index + number, replica.count, step, scale)
        return _exchange_slices(slices, codec, replica)

    return _map_by_sparsity(values, lambda dense: _exchange_dense(dense, config, replica, step, scale), sparse)


def _first_sparse_index(values: Sequence) -> int:
    """The pack index of the first sparse gradient: above all that dense ones can have."""
    return len(values) + 1


def _simulate_dense(by_replica: Sequence[Sequence[tf.Tensor]], config: ExchangeConfig, step, scale: float):
    count = len(by_replica)
    results: list = [None] * len(by_replica[0])
    plan = _plan(by_replica[0], config)
    for positions, codec in _pack_codecs(plan, config, count, step, scale):
        sent = tf.stack([codec.pack([values[i] for i in positions], r) for r, values in enumerate(by_replica)])
        codes = tf.stack([codec.reduce(sent[:, shard], shard) for shard in range(count)])
        for i, result in zip(positions, codec.unpack(codes, [by_replica[0][i] for i in positions]), strict=True):
            results[i] = result
    for i in plan.exact:
        results[i] = _add_in_order(tf.stack([values[i] for values in by_replica]), count, scale)
    return results


def _simulate_slices(by_replica: Sequence[tf.IndexedSlices], codec: PackCodec) -> tf.IndexedSlices:
    local = [sum_duplicate_rows(slices) for slices in by_replica]
    lengths = tf.stack([tf.shape(slices.indices)[0] for slices in local])
    rows = tf.maximum(tf.reduce_max(lengths), 1)
    padded = [_pad_rows(slices.values, rows) for slices in local]
    indices = tf.stack([_pad_rows(slices.indices, rows) for slices in local])
    codes = tf.stack([codec.pack([values], r, shards=1)[0] for r, values in enumerate(padded)])
    dtype = by_replica[0].values.dtype
    values, indices = _decode_rows(codec, codes, indices, lengths, padded[0], dtype, len(local))
    return tf.IndexedSlices(values, indices, by_replica[0].dense_shape)


def _check_same(by_replica: Sequence[Sequence]) -> None:
    first = by_replica[0]
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
    bytes_per_pack: int = DEFAULT_BYTES_PER_PACK,
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
        bytes_per_pack: As the strategy's `communication_options` have it.
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
    if str(reduce_op).upper().removeprefix("REDUCEOP.") not in ("SUM", "MEAN"):
        raise ValueError(f"reduce_op={reduce_op!r} is not supported; use 'SUM' or 'MEAN'.")
    if not gradients:
        raise ValueError("gradients is empty; give one entry for each replica.")
    single = not isinstance(gradients[0], (list, tuple))
    by_replica = [_as_tensors([g] if single else g) for g in gradients]
    _check_same(by_replica)
    check_gradients(by_replica[0])
    count = len(by_replica)
    scale = 1.0 / count if str(reduce_op).upper().endswith("MEAN") else 1.0
    config = ExchangeConfig(CodecConfig(bits, rounding, scaling, seed), min_elements, bytes_per_pack)
    results = _simulate(by_replica, config, tf.convert_to_tensor(step, tf.int64), scale) if count > 1 else by_replica[0]
    return results[0] if single else results


def _as_tensors(values: Sequence) -> list:
    """Tensors, also inside of `tf.IndexedSlices`, which takes lists and arrays as they are."""
    return [
        tf.IndexedSlices(
            *(None if part is None else tf.convert_to_tensor(part) for part in (v.values, v.indices, v.dense_shape))
        )
        if is_sparse(v)
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
        index = _first_sparse_index(first) + number
        codec = PackCodec(_codec_of_slices(slices, config), index, len(by_replica), step, scale)
        return _simulate_slices([values[sparse_at[number]] for values in by_replica], codec)

    return _map_by_sparsity(first, dense, sparse)
