"""The strategy's implementation: TensorFlow's, with the hooks that gradients and Keras 3 need."""

from __future__ import annotations

import contextlib

import tensorflow as tf

from tf_epgc import ops
from tf_epgc._tf_compat import (
    CollectiveAllReduceExtended,
    Collectives,
    CommunicationOptions,
    Mirrored,
    cluster_tasks,
    distribute_values,
    in_nested_graph_of_replica,
    in_xla,
    is_gpu,
    joined_cluster,
    keep_cluster,
    make_launcher,
    runtime_has_started,
    use_static_keys_in_loops,
)
from tf_epgc.carriers import from_carrier, gather_strings, is_carried, to_carrier
from tf_epgc.cross_device_ops import EPGCAllReduce
from tf_epgc.exchange import ExchangeConfig, check_gradients
from tf_epgc.formats import PROTOCOL_VERSION
from tf_epgc.gradients import TrainableVariables, are_gradients
from tf_epgc.handshake import WorkerMismatchError, compare_settings, compare_variables, describe_variable
from tf_epgc.initial_values import Carried, with_own_seed
from tf_epgc.keras_steps import (
    has_keras_train_step,
    in_batch_normalization,
    in_keras,
    in_keras_saving,
    is_loss_scale_check,
    model_of_step,
    reads_generator,
    refuse_local_clipping,
)
from tf_epgc.options import ExchangeOptions, GradientOptions, gradient_options_of
from tf_epgc.random_seeds import SharedSeed
from tf_epgc.sharding import AutoShardPolicy, shard_policy, split_by_rows, starving_files, with_own_memory
from tf_epgc.start_up import ClusterWatch, report, wait_for_workers
from tf_epgc.uneven import ShareWeights, rows_of_shares, weighing_statistics
from tf_epgc.version import __version__

#: Where the handshake's group keys begin, far from TensorFlow's own: it must also reach workers whose devices, and
#: so whose other keys, differ.
_HANDSHAKE_KEYS = 1_000_000

#: Batch normalization's statistics in Keras 3, which it updates on each replica for itself.
_MOVING_STATISTICS = ("moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev")


class EPGCExtended(CollectiveAllReduceExtended):
    """`CollectiveAllReduceExtended` with coded gradients.

    Args:
        container_strategy: The `EPGCMirroredStrategy`.
        config: How gradients are exchanged.
        simulate: Round only.
        start_timeout: Seconds that workers wait for each other when they join the cluster and compare what they made.
        cluster_resolver: Or None for `TF_CONFIG`.
        communication_options: `ExchangeOptions`, which keep a call's mark.
    """

    def __init__(
        self,
        container_strategy,
        config: ExchangeConfig,
        simulate: bool,
        start_timeout: float,
        cluster_resolver,
        communication_options,
    ):
        self._config = config
        self._simulate = simulate
        self._start_timeout = start_timeout
        self._variables: list[str] = []
        self._compared_variables = 0
        self._compared_gradients: set[tuple[str, ...]] = set()
        self._weights: ShareWeights | None = None
        self._warned_of_uneven_rows = False
        self._warned_of_generator = False
        self._trainable = TrainableVariables()
        if not config.codec.is_exact:
            ops.library()  # so that a library that cannot be loaded stops every worker before it joins the cluster
        super().__init__(container_strategy, cluster_resolver, communication_options)
        self._cluster_watch = ClusterWatch(self._num_workers)

    # Construction.

    def _initialize_local(self, cluster_resolver, devices=None):
        super()._initialize_local(cluster_resolver, devices)
        self._use_own_cross_device_ops()

    def _initialize_multi_worker(self, cluster_resolver):
        self._wait_for_workers(cluster_resolver)
        super()._initialize_multi_worker(cluster_resolver)
        self._use_own_cross_device_ops()

    def _wait_for_workers(self, cluster_resolver):
        if runtime_has_started():
            raise RuntimeError(
                "EPGCMirroredStrategy must be created before the first TensorFlow op runs, since that starts the "
                "runtime without a cluster: move it up, right after the imports, before any tensor, dataset or list of "
                "logical devices is made."
            )
        tasks = cluster_tasks(cluster_resolver)
        joined = joined_cluster()
        if joined is not None:
            self._keep_cluster(joined, cluster_resolver)
        elif tasks is not None and len(tasks[0]) > 1:
            addresses, own = tasks
            wait_for_workers(addresses, own, self._start_timeout)
            report(f"{addresses[own][0]} of {len(addresses)} workers at {addresses[own][1]}")

    def _keep_cluster(self, joined, cluster_resolver):
        asked = (cluster_resolver.cluster_spec().as_dict(), cluster_resolver.task_type, cluster_resolver.task_id)
        if asked != joined:
            raise RuntimeError(
                f"This process is task {joined[1]!r} {joined[2]} of the cluster {joined[0]} since an earlier strategy "
                f"and cannot also be {asked[1]!r} {asked[2]} of {asked[0]}: use one cluster in a process."
            )
        keep_cluster(self)

    def _use_own_cross_device_ops(self):
        if self._num_workers > 1:
            self._handshake = Collectives(
                make_launcher(self._worker_device, self._num_workers, _HANDSHAKE_KEYS + self._collective_key_base),
                CommunicationOptions(timeout_seconds=self._start_timeout),
            )
            compare_settings(self._gather_from_workers, self._settings())
            self._shared_seed = SharedSeed(self._gather_from_workers)
        use_static_keys_in_loops(self._host_cross_device_ops)
        self._cross_device_ops = EPGCAllReduce(
            self._config,
            self._simulate,
            first_replica=self._id_in_cluster * self._num_devices_per_worker,
            devices=self._devices,
            group_size=self._num_devices_per_worker * self._num_workers,
            options=self._communication_options,
            collective_keys=self._collective_keys,
        )

    def _initialize_local_devices(self, cluster_resolver, worker_device):
        """Uses every logical CPU where there is no accelerator; TensorFlow would use the first one only."""
        devices, device_type = super()._initialize_local_devices(cluster_resolver, worker_device)
        if device_type == "CPU":
            devices = tuple(f"{worker_device}/device:CPU:{i}" for i in range(_number_of_logical_cpus()))
        return devices, device_type

    def _settings(self) -> dict:
        codec = self._config.codec
        return {
            "protocol": PROTOCOL_VERSION,
            "tf_epgc": __version__,
            "bits": codec.bits,
            "rounding": codec.rounding,
            "scaling": codec.scaling,
            "seed": codec.seed,
            "simulate": self._simulate,
            "min_elements": self._config.min_elements,
            "bytes_per_pack": self._config.bytes_per_pack,
            "devices": self._num_devices_per_worker,
        }

    def _gather_from_workers(self, words: tf.Tensor) -> tf.Tensor:
        """All-gathers one vector a worker, eagerly."""
        with tf.device(self._worker_device):
            try:
                return self._handshake.all_gather(tf.identity(words))
            except tf.errors.DeadlineExceededError as e:
                raise WorkerMismatchError(
                    f"Worker {self._id_in_cluster} waited {self._start_timeout:.0f} s for the other "
                    f"{self._num_workers - 1} worker(s) to compare settings or variables; see whether all of them run "
                    "the same script."
                ) from e

    # Variables.

    def _get_variable_creator_initial_value(self, replica_id, device, primary_var, **kwargs):
        """TensorFlow's broadcast for every dtype; if it fails, the error names the variable."""
        name = kwargs.get("name")
        if self._num_workers == 1 or replica_id > 0:
            local = super()._get_variable_creator_initial_value(replica_id, device, primary_var, **kwargs)
            return with_own_seed(name, local, replica_id)
        carried = Carried(kwargs.pop("initial_value"), kwargs.pop("dtype", None))
        if in_keras_saving():
            return lambda: carried.unwrap(carried())  # the chief may be saving alone
        broadcast = super()._get_variable_creator_initial_value(
            replica_id, device, primary_var, initial_value=carried, **kwargs
        )

        def initial_value_fn():
            try:
                return carried.unwrap(broadcast())
            except (tf.errors.InvalidArgumentError, tf.errors.InternalError, tf.errors.UnavailableError) as e:
                raise WorkerMismatchError(
                    f"Worker {self._id_in_cluster} could not share variable {len(self._variables)}, {name} of shape "
                    f"{carried.shape}: another worker made another variable there, or has ended. Every worker must "
                    f"create the same variables in the same order. TensorFlow says: {e.message}"
                ) from e

        return with_own_seed(name, initial_value_fn, self._id_in_cluster * self._num_devices_per_worker)

    def _create_variable(self, next_creator, **kwargs):
        if _is_moving_statistic(kwargs):
            kwargs["aggregation"] = tf.VariableAggregation.MEAN
        variable = super()._create_variable(next_creator, **kwargs)
        if in_keras_saving():
            return variable
        self._variables.append(describe_variable(variable))
        if variable.trainable and variable.dtype.is_floating:
            self._trainable.add(variable)
        return variable

    def _update(self, var, fn, args, kwargs, group):
        """Refuses what would give each worker moving statistics of its own; called outside of replicas only."""
        if self._num_workers > 1 and in_batch_normalization():
            raise RuntimeError(
                f"A BatchNormalization layer was called with training=True outside of strategy.run, where each worker "
                f"would update {var.name} from its own rows; put the training step into a function and call "
                "strategy.run(step, args=(batch,))."
            )
        return super()._update(var, fn, args, kwargs, group)

    @tf.autograph.experimental.do_not_convert
    def _compare_gradients(self, values) -> None:
        """Compares a new list of gradients with the other workers': packs of other shapes may be of equal size."""
        descriptions = tuple(f"gradient {tf.as_dtype(v.dtype).name}{v.shape}" for v in values)
        if self._num_workers == 1 or descriptions in self._compared_gradients:
            return
        self._compared_gradients.add(descriptions)
        with tf.init_scope():
            compare_variables(self._gather_from_workers, descriptions)

    @tf.autograph.experimental.do_not_convert
    def _compare_variables(self) -> None:
        """Compares the variables made so far with the other workers', unless that has been done.

        A function may just be traced; the comparison happens outside of it, at once.
        """
        if self._num_workers == 1 or len(self._variables) == self._compared_variables:
            return
        self._compared_variables = len(self._variables)
        with tf.init_scope():
            compare_variables(self._gather_from_workers, self._variables)

    def _experimental_distribute_dataset(self, dataset, options):
        self._cluster_watch.check()
        self._compare_variables()
        if self._num_workers > 1:
            if in_keras("fit"):
                self._look_at_training_data(dataset)
            dataset = with_own_memory(self._without_starving(dataset))
        return super()._experimental_distribute_dataset(dataset, options)

    def _without_starving(self, dataset):
        """`dataset`, split by rows where TensorFlow's rule would leave workers without data, or lose predictions."""
        # With sharding off all workers would predict all rows, and results are cut.
        if in_keras("predict") and shard_policy(dataset) == AutoShardPolicy.OFF:
            return split_by_rows(dataset)
        files = starving_files(dataset, self._num_workers)
        if files is None:
            return dataset
        report(
            f"note: the data set reads {files} file{'s' * (files != 1)}, fewer than the {self._num_workers} workers: "
            "each worker reads all and keeps its own rows; with at least one for each, every worker would read only "
            "its own."
        )
        return split_by_rows(dataset)

    def _look_at_training_data(self, dataset):
        """Says what would silently train on other rows than in one process."""
        if shard_policy(dataset) != AutoShardPolicy.OFF:
            self._shared_seed.compare()
        if reads_generator() and not self._warned_of_generator:
            self._warned_of_generator = True
            report(
                "warning: Keras 3 takes the first batches of a generator to build the model, and they are lost for "
                "training; use a tf.data.Dataset or a keras.utils.PyDataset."
            )

    def _distribute_datasets_from_function(self, dataset_fn, options):
        self._cluster_watch.check()
        self._compare_variables()
        return super()._distribute_datasets_from_function(dataset_fn, options)

    # Uneven batches.

    @contextlib.contextmanager
    def _weighting(self, fn, args):
        """Weights the gradients of the step that is traced or run inside the block, if its shares may be uneven."""
        weights = self._share_weights(fn, args) if self._num_replicas_in_sync > 1 else None
        before, self._weights = self._weights, weights
        try:
            yield
        finally:
            self._weights = before

    @tf.autograph.experimental.do_not_convert
    def _share_weights(self, fn, args) -> ShareWeights | None:
        model = model_of_step(fn)
        if model is not None:
            refuse_local_clipping(model)
        if model is None or not has_keras_train_step(model):
            return None
        rows = rows_of_shares(self._container_strategy().experimental_local_results, args, self._num_devices_per_worker)
        if rows is None:
            return None
        all_rows = self._reduce(tf.distribute.ReduceOp.SUM, distribute_values(rows))
        replicas = self._num_replicas_in_sync
        return ShareWeights([tf.cast(r * replicas, tf.float32) / tf.cast(all_rows, tf.float32) for r in rows])

    def _weighted(self, value):
        """A value of all local replicas, each weighted by its share."""
        if self._weights is None:
            return value
        shares = self._container_strategy().experimental_local_results(value)
        return distribute_values([self._weights.apply(share, i) for i, share in enumerate(shares)])

    # All-reduces.

    def _call_for_each_replica(self, fn, args, kwargs):
        """Lets all replicas agree where Keras's `LossScaleOptimizer` has each decide for itself."""
        replica_fn = fn
        if self._weights is not None and not isinstance(fn, tf.types.experimental.PolymorphicFunction):
            replica_fn = weighing_statistics(fn)
            args = (distribute_values(list(self._weights.weights)), *args)
        with self._shared_seed.hidden() if self._num_workers > 1 else contextlib.nullcontext():
            results = super()._call_for_each_replica(replica_fn, args, kwargs)
        if self._num_replicas_in_sync == 1 or not is_loss_scale_check(fn):
            return results
        finite = tf.nest.map_structure(lambda v: tf.cast(v, tf.int32), results, expand_composites=True)
        return tf.equal(self._reduce(tf.distribute.ReduceOp.SUM, finite), self._num_replicas_in_sync)

    def _use_merge_call(self):
        """Without `merge_call` inside control flow, which it cannot leave: gradient accumulation all-reduces there."""
        return super()._use_merge_call() and not in_nested_graph_of_replica(self._num_devices_per_worker)

    def _gather_to_implementation(self, value, destinations, axis, options):
        """TensorFlow's all-gather for more dtypes than its collective has."""
        own = self._local(value).dtype

        def gather(part, along=axis):
            return super(EPGCExtended, self)._gather_to_implementation(part, destinations, along, options)

        if own == tf.string:
            return gather_strings(gather, value, axis)
        if not is_carried(own):
            return gather(value)
        gathered = gather(tf.nest.map_structure(to_carrier, value, expand_composites=True))
        return tf.nest.map_structure(lambda v: from_carrier(v, own), gathered, expand_composites=True)

    def _reduce_to(self, reduce_op, value, destinations, options):
        self._refuse_xla()
        if self._is_statistic_of_rows(reduce_op, value):
            value = self._weighted(value)
        return super()._reduce_to(reduce_op, value, destinations, options)

    def _batch_reduce_to(self, reduce_op, value_destination_pairs, options):
        self._refuse_xla()
        if not value_destination_pairs:
            return []
        values = [self._local(value) for value, _ in value_destination_pairs]
        destinations = [destination for _, destination in value_destination_pairs]
        options = self._mark(reduce_op, values, destinations, options)
        if gradient_options_of(options) is not None:
            self._compare_gradients(values)
            value_destination_pairs = [(self._weighted(value), to) for value, to in value_destination_pairs]
        return super()._batch_reduce_to(reduce_op, value_destination_pairs, options)

    def _replica_ctx_all_reduce(self, reduce_op, value, options=None):
        self._refuse_xla()
        values = tf.nest.flatten(value)
        if not values:
            return value
        options = self._mark(reduce_op, values, (), options)
        if gradient_options_of(options) is not None:
            self._compare_gradients(values)
            self._warn_of_uneven_rows()
        # The cross-device ops are called directly here, so that the strategy's own options must be merged in.
        return super()._replica_ctx_all_reduce(reduce_op, value, self._communication_options.merge(options))

    def _warn_of_uneven_rows(self):
        """Accumulated gradients are sums of several steps' shares, which can no longer be weighted each by its rows."""
        if self._weights is not None and not self._warned_of_uneven_rows:
            self._warned_of_uneven_rows = True
            report(
                "warning: with gradient accumulation, gradients are not weighted by rows where workers' shares of a "
                "batch differ; batch with drop_remainder=True for the same result as in one process."
            )

    def _is_statistic_of_rows(self, reduce_op, value) -> bool:
        """Whether a value is a mean over each replica's rows that is averaged into a variable in a step."""
        return (
            self._weights is not None
            and reduce_op == tf.distribute.ReduceOp.MEAN
            and not isinstance(value, Mirrored)
            and self._local(value).dtype.is_floating
        )

    def _refuse_xla(self):
        """XLA has no collectives for CPUs, and would say so only when the step runs."""
        if in_xla() and not all(map(is_gpu, self._devices)):
            raise ValueError(
                "jit_compile=True would have XLA compile an all-reduce between CPUs, which it cannot; use "
                "jit_compile=False, or jit-compile only functions that do not reach the optimizer."
            )

    def _local(self, value):
        """The first local replica's part of a value."""
        return self._container_strategy().experimental_local_results(value)[0]

    def _mark(self, reduce_op, values, destinations, options):
        """`options`, marked if the values are gradients."""
        if gradient_options_of(options) is not None:
            check_gradients(values)
            return options
        if not are_gradients(reduce_op, values, self._trainable, destinations):
            return options
        marked = ExchangeOptions.wrap(options or CommunicationOptions())
        marked.gradient_options = GradientOptions()
        return marked


def _number_of_logical_cpus() -> int:
    """How many CPU devices `tf.config` was told to make; asking does not start the runtime."""
    configured = tf.config.get_logical_device_configuration(tf.config.list_physical_devices("CPU")[0])
    return max(1, len(configured or ()))


def _is_moving_statistic(kwargs: dict) -> bool:
    """Whether a variable is a statistic that replicas would otherwise keep, each its own, and let drift apart."""
    return (
        kwargs.get("name") in _MOVING_STATISTICS
        and kwargs.get("trainable") is False
        and kwargs.get("aggregation") in (None, tf.VariableAggregation.NONE)
    )
