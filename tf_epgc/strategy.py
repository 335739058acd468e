"""`EPGCMirroredStrategy`: `tf.distribute.MultiWorkerMirroredStrategy` whose gradients travel in few bits."""

from __future__ import annotations

import itertools

import tensorflow as tf

from tf_epgc._tf_compat import CommunicationImplementation, CommunicationOptions, DistributedValues, called_from
from tf_epgc.exchange import ExchangeConfig
from tf_epgc.extended import EPGCExtended
from tf_epgc.formats import CodecConfig
from tf_epgc.options import ExchangeOptions, GradientOptions
from tf_epgc.packing import DEFAULT_MIN_ELEMENTS, checked_min_elements
from tf_epgc.start_up import DEFAULT_START_TIMEOUT

#: Where each strategy of this process begins to number its groups. All workers make the same strategies in one order.
_key_bases = itertools.count(1000, 1000)


class EPGCMirroredStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """Synchronous training on several workers, with gradients exchanged as 8, 9, 11 or 16 bits.

    It is a `tf.distribute.MultiWorkerMirroredStrategy`: give every worker a `TF_CONFIG` (without one it uses the local
    devices), build and compile the model in its scope, and train with `model.fit` of Keras 3 or tf_keras, or with a
    loop of your own. Only gradients are coded; losses, metrics, statistics and variables travel as TensorFlow sends
    them. All replicas decode the same bytes, so that their weights stay bit-identical.

    Create it before any other TensorFlow op has run, as `MultiWorkerMirroredStrategy` requires.

    Args:
        bits: 8, 9, 11 or 16 bits for each value of a gradient; 32 is TensorFlow's own exact all-reduce.
        rounding: `"nearest"` (ties to even), `"truncate"` or `"stochastic"` (unbiased).
        scaling: `"block"`: each 1024 values share a power of two, so that no loss scale is needed; `"none"`: the
            bare format, which with 8, 11 or 16 bits needs one; None: `"block"`, for 9 bits `"none"`.
        simulate: Round the gradients to the format but send them as float32: the effect on training without the codec.
        min_elements: Gradients of variables with fewer elements travel as float32.
        seed: Of stochastic rounding.
        cluster_resolver: As in `MultiWorkerMirroredStrategy`.
        communication_options: `tf.distribute.experimental.CommunicationOptions`; `bytes_per_pack` counts bytes of
            float32 gradients, by default a sixth of them all, from 4 to 16 MiB; without `timeout_seconds` a worker
            that lives but is stuck is waited for without a limit.
        start_timeout: Seconds that workers wait for each other when they start and when they compare variables.

    Raises:
        ValueError: For an argument that is not among those allowed.
        ImportError: If the compiled ops are missing or were built for another TensorFlow.
        RuntimeError: If an op has run before, or eager execution is disabled.
        WorkersMissingError: If a worker cannot be reached in time.
        WorkerMismatchError: If the workers were started with different settings.

    Example:

    ```python
    strategy = tf_epgc.EPGCMirroredStrategy(bits=11)
    with strategy.scope():
        model = build_model()
        model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(dataset)
    ```

    References:
        Micikevicius et al., Mixed Precision Training, https://arxiv.org/abs/1710.03740
        Horvath et al., Natural Compression for Distributed Deep Learning, https://arxiv.org/abs/1905.10988
    """

    def __init__(
        self,
        bits: int = 11,
        rounding: str = "nearest",
        scaling: str | None = None,
        simulate: bool = False,
        min_elements: int = DEFAULT_MIN_ELEMENTS,
        seed: int = 0,
        cluster_resolver=None,
        communication_options=None,
        start_timeout: float = DEFAULT_START_TIMEOUT,
    ):
        _refuse_graph_mode()
        options = _checked_options(communication_options)
        codec = CodecConfig(bits, rounding, scaling, seed)
        config = ExchangeConfig(codec, checked_min_elements(min_elements), options.bytes_per_pack or None)
        if not isinstance(start_timeout, (int, float)) or isinstance(start_timeout, bool) or not start_timeout > 0:
            raise ValueError(f"start_timeout={start_timeout!r} is not supported; use a number of seconds above 0.")
        self._config = config
        # Collectives of two strategies in one process must not meet under one key.
        self._collective_key_base = next(_key_bases)
        # What `MultiWorkerMirroredStrategy.__init__` does, with our implementation in place of its own.
        tf.distribute.Strategy.__init__(
            self,
            EPGCExtended(self, config, bool(simulate), start_timeout, cluster_resolver, ExchangeOptions.wrap(options)),
        )

    @property
    def bits(self) -> int:
        """Bits a gradient value travels in."""
        return self._config.codec.bits

    @property
    def rounding(self) -> str:
        return self._config.codec.rounding

    @property
    def scaling(self) -> str:
        return self._config.codec.scaling

    @property
    def min_elements(self) -> int:
        return self._config.min_elements

    @property
    def simulate(self) -> bool:
        return self.extended._simulate

    def reduce(self, reduce_op, value, axis=None):
        """Reduces `value` across replicas, as `tf.distribute.Strategy.reduce` does, and what Keras 3 asks beyond it.

        A dict, or a tuple or list of what replicas returned, is reduced value by value; with `axis=0`, scalars are
        reduced across replicas.
        """
        if axis is None and called_from("_maybe_symbolic_build"):
            # Keras 3 wants to know one replica's shapes and dtypes, of values that may be strings or differ in size.
            return tf.nest.map_structure(lambda v: self.experimental_local_results(v)[0], value)
        if isinstance(value, dict) or (isinstance(value, (tuple, list)) and _holds_distributed(value)):
            return tf.nest.map_structure(lambda v: self.reduce(reduce_op, v, axis), value)
        if axis == 0 and all(_is_scalar(v) for v in self.experimental_local_results(value)):
            axis = None
        return super().reduce(reduce_op, value, axis)

    def run(self, fn, args=(), kwargs=None, options=None):
        """As `tf.distribute.Strategy.run`.

        Before the first run the workers' variables are compared. Where replicas may have different numbers of rows,
        gradients are weighted so that each row counts the same (see `tf_epgc.uneven`).
        """
        self.extended._compare_variables()
        with self.extended._weighting(fn, args):
            return super().run(fn, args=args, kwargs=kwargs, options=options)


def _refuse_graph_mode() -> None:
    if not tf.compat.v1.executing_eagerly_outside_functions():
        raise RuntimeError(
            "EPGCMirroredStrategy needs eager execution, which is disabled; remove "
            "tf.compat.v1.disable_eager_execution() or disable_v2_behavior() from the script."
        )


def _holds_distributed(nest) -> bool:
    """Whether a value inside has a part for each local replica; what has none is one value, as for TensorFlow."""
    return any(isinstance(v, DistributedValues) for v in tf.nest.flatten(nest))


def _checked_options(options) -> CommunicationOptions:
    options = CommunicationOptions() if options is None else options
    if not isinstance(options, CommunicationOptions):
        raise ValueError(
            f"communication_options={options!r} is not supported; use tf.distribute.experimental.CommunicationOptions."
        )
    if isinstance(options, GradientOptions):
        raise ValueError(
            "communication_options are GradientOptions, which are for one call of all_reduce; give bits, rounding and "
            "scaling to EPGCMirroredStrategy itself."
        )
    if options.implementation == CommunicationImplementation.NCCL and not tf.config.list_physical_devices("GPU"):
        raise ValueError("communication_options ask for NCCL, which needs GPUs, and there are none; use AUTO or RING.")
    return options


def _is_scalar(value) -> bool:
    """Whether a local value is a scalar; sparse and ragged ones, which have more to them than a shape, are not."""
    return isinstance(value, (tf.Tensor, tf.Variable, int, float)) and tf.convert_to_tensor(value).shape.rank == 0
