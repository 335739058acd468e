"""The exchange of docs/wire_format.md, section 5, for one replica.

A pack is coded, sent and decoded by `PackCodec`, which knows no transport: `exchange_gradients` puts collectives
between its phases, `simulate_all_reduce` (simulation.py) a loop over replicas. So the two cannot differ by a bit.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_epgc import ops
from tf_epgc.formats import EXACT, CodecConfig
from tf_epgc.packing import DEFAULT_MIN_ELEMENTS, PackPlan, TensorSpec, plan_packs

_CODED_DTYPES = (tf.float32, tf.float16, tf.bfloat16, tf.float64)


@dataclasses.dataclass(frozen=True)
class ExchangeConfig:
    """Everything that every replica must agree on."""

    codec: CodecConfig
    min_elements: int = DEFAULT_MIN_ELEMENTS
    bytes_per_pack: int | None = None  # as `plan_packs` has it


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

    def pack_rows(self, rows: tf.Tensor, replica: int) -> tf.Tensor:
        """One replica's rows of a sparse gradient; as they are where they travel exactly, float64 included."""
        return rows if self.config.is_exact else self.pack([rows], replica, shards=1)[0]

    def unpack_rows(self, codes: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
        return codes if self.config.is_exact else self.unpack(codes[tf.newaxis], [like])[0]


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
        TypeError: If one is None or not floating.
    """
    for i, value in enumerate(values):
        if value is None:
            raise TypeError(f"Gradient {i} is None; leave out gradients that do not exist, on every replica alike.")
        if value.dtype not in _CODED_DTYPES:
            raise TypeError(
                f"A gradient has dtype {tf.as_dtype(value.dtype).name}; gradients must be float32, float16, bfloat16 "
                "or float64: all-reduce other values without GradientOptions."
            )


def plan_exchange(values: Sequence[tf.Tensor], config: ExchangeConfig) -> PackPlan:
    specs = [TensorSpec(v.shape.num_elements(), v.dtype.name) for v in values]
    min_elements = sys.maxsize if config.codec.is_exact else config.min_elements
    return plan_packs(specs, min_elements, config.bytes_per_pack)


def pack_codecs(plan: PackPlan, config: ExchangeConfig, replicas: int, step, scale: float):
    """Pairs of the positions of a pack's tensors and its `PackCodec`."""
    for index, positions in enumerate(plan.coded):
        yield positions, PackCodec(config.codec, index, replicas, step, scale)
    if plan.small:
        yield plan.small, PackCodec(EXACT, len(plan.coded), replicas, step, scale)


def add_in_order(rows: tf.Tensor, count: int, scale: float) -> tf.Tensor:
    """Sum over the first axis, in replica order, times `scale`."""
    total = rows[0]
    for i in range(1, count):
        total += rows[i]
    return total if scale == 1.0 else total * tf.cast(scale, total.dtype)


def _exchange_dense(values: Sequence[tf.Tensor], config: ExchangeConfig, replica: Replica, step, scale: float):
    # What has no elements is its own sum, and a collective of no bytes would crash the runtime.
    results: list = [v if v.shape.num_elements() == 0 else None for v in values]
    plan = plan_exchange(values, config)
    for positions, codec in pack_codecs(plan, config, replica.count, step, scale):
        tensors = [values[i] for i in positions]
        if all(results[i] is not None for i in positions):
            continue
        rows = replica.collectives.all_to_all(codec.pack(tensors, replica.index), lane=codec.index)
        codes = replica.collectives.gather_rows(codec.reduce(rows, replica.index), lane=codec.index)
        for i, result in zip(positions, codec.unpack(codes, tensors), strict=True):
            results[i] = result
    for i in plan.exact:
        if results[i] is not None:
            continue
        results[i] = add_in_order(replica.collectives.all_gather(values[i]), replica.count, scale)
    return results


def sum_duplicate_rows(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Adds rows of equal index, in float32 at least, so that each row is sent and rounded once."""
    values = slices.values
    if values.dtype in (tf.float16, tf.bfloat16):
        values = tf.cast(values, tf.float32)
    indices, positions = tf.unique(slices.indices)
    summed = tf.math.unsorted_segment_sum(values, positions, tf.shape(indices)[0])
    summed.set_shape(tf.TensorShape([None]).concatenate(values.shape[1:]))
    return tf.IndexedSlices(summed, indices, slices.dense_shape)


def pad_rows(tensor: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    missing = tf.concat([[rows - tf.shape(tensor)[0]], tf.shape(tensor)[1:]], 0)
    return tf.concat([tensor, tf.zeros(missing, tensor.dtype)], 0)


def decode_rows(codec: PackCodec, codes, indices, lengths, like: tf.Tensor, dtype, replicas: int):
    """Decodes every replica's rows and strips the padding; returns values and indices, in replica order."""
    all_values, all_indices = [], []
    for i in range(replicas):
        all_values.append(codec.unpack_rows(codes[i], like)[: lengths[i]])
        all_indices.append(indices[i][: lengths[i]])
    values = tf.concat(all_values, 0)
    if codec.scale != 1.0:
        values *= tf.cast(codec.scale, values.dtype)
    return tf.cast(values, dtype), tf.concat(all_indices, 0)


def codec_of_slices(slices: tf.IndexedSlices, config: ExchangeConfig) -> CodecConfig:
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
    padded = pad_rows(local.values, rows)
    indices = gather(pad_rows(local.indices, rows))
    codes = gather(codec.pack_rows(padded, replica.index))
    values, indices = decode_rows(codec, codes, indices, lengths, padded, slices.values.dtype, replica.count)
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def map_by_sparsity(values: Sequence, dense: Callable, sparse: Callable) -> list:
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
    first_sparse = first_sparse_index(values)

    def sparse(slices, number):
        codec = PackCodec(codec_of_slices(slices, config), first_sparse + number, replica.count, step, scale)
        return _exchange_slices(slices, codec, replica)

    return map_by_sparsity(values, lambda dense: _exchange_dense(dense, config, replica, step, scale), sparse)


def first_sparse_index(values: Sequence) -> int:
    """The pack index of the first sparse gradient: above all that dense ones can have."""
    return len(values) + 1
