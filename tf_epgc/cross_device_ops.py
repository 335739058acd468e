"""The strategy's cross-device ops: gradients go through the exchange, everything else to TensorFlow's all-reduce."""

from __future__ import annotations

import copy
import dataclasses

import tensorflow as tf

from tf_epgc import ops
from tf_epgc._tf_compat import CollectiveAllReduce, Collectives, is_gpu, plain_variable, use_static_keys_in_loops
from tf_epgc.exchange import ExchangeConfig, Replica, check_gradients, exchange_gradients, is_sparse
from tf_epgc.formats import CodecConfig
from tf_epgc.options import gradient_options_of

#: How many packs may be on their way at the same time.
_LANES = 16


class EPGCAllReduce(CollectiveAllReduce):
    """`CollectiveAllReduce` whose marked calls travel coded.

    Args:
        config: How gradients are exchanged where the call's own `GradientOptions` leave it open.
        simulate: Round the gradients, then let TensorFlow add them in float32, instead of coding them.
        first_replica: Global number of the first local device's replica.
        devices: Local devices.
        group_size: Number of replicas of all workers.
        **kwargs: As `CollectiveAllReduce` has them.
    """

    def __init__(self, config: ExchangeConfig, simulate: bool, first_replica: int, devices, group_size, **kwargs):
        super().__init__(devices, group_size, **kwargs)
        self._config = config
        self._simulate = simulate
        self._first_replica = first_replica
        # The random bits of stochastic rounding follow from how many exchanges there have been.
        self._steps = [plain_variable(0, tf.int64, _host_of(device)) for device in self._devices]
        self._tokens = [_ordering_tokens(device) for device in self._devices]
        use_static_keys_in_loops(self)

    def __deepcopy__(self, memo):
        """As `CollectiveAllReduce.__deepcopy__`, which would make one of its own class."""
        return EPGCAllReduce(
            self._config,
            self._simulate,
            self._first_replica,
            self._devices,
            self._group_size,
            options=self._options,
            collective_keys=copy.deepcopy(self._collective_keys, memo),
            canonicalize_devices=self._canonicalize_devices,
        )

    @tf.autograph.experimental.do_not_convert
    def _all_reduce(self, reduce_op, value, replica_id, options):
        """Implements `CollectiveAllReduce._all_reduce`, which all its dense and sparse reductions end in."""
        marked = gradient_options_of(options)
        if marked is None:
            return self._reduce_by_dtype(reduce_op, value, replica_id, options)
        flat = tf.nest.flatten(value)
        check_gradients(flat)
        codec = marked.codec_config(self._config.codec)
        if codec.is_exact:
            return self._reduce_by_dtype(reduce_op, value, replica_id, options)
        if self._simulate:
            return self._simulated(reduce_op, value, replica_id, options, codec)
        config = dataclasses.replace(
            self._config, codec=codec, bytes_per_pack=options.bytes_per_pack or self._config.bytes_per_pack
        )
        collectives = Collectives(self._launchers[replica_id], options, self._tokens[replica_id])
        replica = Replica(self._first_replica + replica_id, self._group_size, collectives)
        scale = 1.0 / self._group_size if reduce_op == tf.distribute.ReduceOp.MEAN else 1.0
        with tf.device(self._devices[replica_id]), tf.name_scope("epgc_exchange"):
            results = exchange_gradients(flat, config, replica, self._next_step(replica_id, codec), scale)
        return tf.nest.pack_sequence_as(value, results)

    def _next_step(self, replica_id: int, codec: CodecConfig) -> tf.Tensor:
        if codec.rounding != "stochastic":
            return tf.zeros([], tf.int64)
        with tf.device(_host_of(self._devices[replica_id])):
            return self._steps[replica_id].assign_add(1, read_value=True) - 1

    def _simulated(self, reduce_op, value, replica_id, options, codec: CodecConfig):
        """Every replica's gradients rounded to the format, added by TensorFlow in float32."""
        replica = self._first_replica + replica_id
        with tf.device(self._devices[replica_id]):
            step = self._next_step(replica_id, codec)
            rounded = [
                self._quantized(v, codec, step, stream=i * self._group_size + replica)
                for i, v in enumerate(tf.nest.flatten(value))
            ]
        return self._reduce_by_dtype(reduce_op, tf.nest.pack_sequence_as(value, rounded), replica_id, options)

    def _quantized(self, value, codec: CodecConfig, step, stream: int):
        elements = value.shape.num_elements()
        if elements is not None and elements < self._config.min_elements:
            return value
        if is_sparse(value):
            values = ops.quantize_with(value.values, codec, step, stream)
            return tf.IndexedSlices(values, value.indices, value.dense_shape)
        return ops.quantize_with(value, codec, step, stream)

    def _reduce_by_dtype(self, reduce_op, value, replica_id, options):
        """TensorFlow's all-reduce of each dtype for itself, since it concatenates what it is given."""
        flat = tf.nest.flatten(value)
        results: list = [None] * len(flat)
        for dtype in sorted({v.dtype.name for v in flat}):
            at = [i for i, v in enumerate(flat) if v.dtype.name == dtype]
            reduced = super()._all_reduce(reduce_op, [flat[i] for i in at], replica_id, options)
            for i, result in zip(at, reduced, strict=True):
                results[i] = result
        return tf.nest.pack_sequence_as(value, results)


def _ordering_tokens(device: str) -> list:
    """One for each lane on a CPU; none, that is the launcher's own, on a GPU."""
    return [] if is_gpu(device) else [plain_variable(0.0, tf.float32, device) for _ in range(_LANES)]


def _host_of(device: str) -> str:
    """The CPU device of a device's host."""
    return tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0).to_string()
