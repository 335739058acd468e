"""Everything that tf_epgc takes from TensorFlow's private modules: no other file imports `tensorflow.python`.

Seen to work with TensorFlow 2.18 to 2.21. What each name is needed for stands beside it, and the tests of this file
fail when one of them changes.
"""

from __future__ import annotations

import contextlib
import sys
import threading

import tensorflow as tf
from tensorflow.python.distribute import (
    collective_all_reduce_strategy,
    collective_util,
    cross_device_ops,
    cross_device_utils,
    device_util,
    distribute_utils,
    mirrored_run,
    values,
)
from tensorflow.python.eager import context, record
from tensorflow.python.framework import ops as tf_ops
from tensorflow.python.framework import tensor_util
from tensorflow.python.ops import collective_ops, control_flow_util, resource_variable_ops

#: The strategy's implementation, whose methods the hooks override.
CollectiveAllReduceExtended = collective_all_reduce_strategy.CollectiveAllReduceExtended
#: What does the strategy's all-reduces.
CollectiveAllReduce = cross_device_ops.CollectiveAllReduce
#: The class behind `tf.distribute.experimental.CommunicationOptions`, which itself cannot be subclassed.
CommunicationOptions = collective_util.Options
CommunicationImplementation = collective_util.CommunicationImplementation
#: A variable that lives on several devices.
DistributedVariable = values.DistributedVariable

#: A value with a part for each local replica.
DistributedValues = values.DistributedValues

#: A value that is the same on all replicas.
Mirrored = values.Mirrored

#: The static value of a tensor, or None.
constant_value = tensor_util.constant_value


def distribute_values(local_values: list):
    """One value for each local replica, as replica code and cross-device ops take them."""
    return distribute_utils.regroup(tuple(local_values))


def in_nested_graph_of_replica(replicas: int) -> bool:
    """Whether a replica function is inside control flow, where `merge_call` raises but collectives can be traced.

    The condition is the one under which `mirrored_run._MirroredReplicaContext._merge_call` refuses; less the case of
    several replicas run eagerly, each of whose functions would wait in its first collective for the next replica's.
    """
    thread = threading.current_thread()
    if not isinstance(thread, mirrored_run._MirroredReplicaThread):
        return False
    traced = getattr(thread.graph, "building_function", False)
    return tf_ops.get_default_graph() != thread.graph and (traced or replicas == 1)


def cluster_tasks(cluster_resolver) -> tuple[list[tuple[str, str]], int] | None:
    """Names and addresses of all workers in the order of their numbers, and this one's number; None without a cluster.

    A worker of the job `chief` is the first, as TensorFlow counts them; an evaluator trains with nobody.
    """
    spec = cluster_resolver.cluster_spec().as_dict()
    job = cluster_resolver.task_type
    if job not in ("chief", "worker") or cluster_resolver.task_id is None:
        return None
    tasks = [(name, i) for name in ("chief", "worker") for i in range(len(spec.get(name, ())))]
    own = (job, int(cluster_resolver.task_id))
    if own not in tasks:
        return None  # TensorFlow says what is wrong
    addresses = [(f"{name.capitalize()} {i}", spec[name][i]) for name, i in tasks]
    return addresses, tasks.index(own)


def runtime_has_started() -> bool:
    """Whether some op has run, or devices have been listed, before collectives between workers were configured."""
    ctx = context.context()
    return ctx._context_handle is not None and ctx._collective_leader is None


def joined_cluster() -> tuple[dict, str, int] | None:
    """The cluster that another strategy of this process has joined, with this process's job and number; or None."""
    server = context.context()._collective_ops_server_def
    if server is None:
        return None
    return tf.train.ClusterSpec(server.cluster).as_dict(), server.job_name, server.task_index


def keep_cluster(extended) -> None:
    """Lets another strategy of this process use the cluster that is joined.

    TensorFlow would join once more, which replaces the runtime's collectives: what another worker has asked this one
    for meanwhile is lost, and that worker waits.
    """
    extended._std_server_started = True
    extended._enable_check_health = False  # as when joining: the runtime's heartbeats find dead workers


def global_seed() -> int | None:
    """What `tf.random.set_seed` was given."""
    return context.context()._seed


def set_global_seed(seed: int) -> None:
    """As `tf.random.set_seed`, whatever graph is the default one."""
    context.context()._set_global_seed(seed)


@contextlib.contextmanager
def using_seed(seed: int | None):
    """Another global seed for the functions and the graph that are traced, or the ops that are run, inside.

    The context's attribute is set as it is: `tf.random.set_seed` would start its sequence of op seeds anew.
    """
    holders = [(context.context(), "_seed")]
    if not tf.executing_eagerly():
        holders.append((tf_ops.get_default_graph(), "seed"))
    before = [getattr(holder, name) for holder, name in holders]
    for holder, name in holders:
        setattr(holder, name, seed)
    try:
        yield
    finally:
        for (holder, name), value in zip(holders, before, strict=True):
            setattr(holder, name, value)


#: Operations that read the files they are given the names of.
_FILE_READERS = ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset", "CSVDataset", "ParquetDataset")
#: Operations that call Python.
_PYTHON_CALLS = ("PyFunc", "EagerPyFunc")


def number_of_files(dataset) -> int | None:
    """How many files a data set reads, or None when it reads none, or how many cannot be known.

    File names are what goes into TensorFlow's readers, or into a function (of `interleave`, `flat_map`) that has one.
    """
    names = getattr(dataset, "_filenames", None)
    if isinstance(names, tf.data.Dataset):
        return _known_cardinality(names)
    below = dataset._inputs()
    if below and _function_has(dataset, _FILE_READERS):
        return _known_cardinality(below[0])
    counts = [count for count in map(number_of_files, below) if count is not None]
    return min(counts, default=None)


def calls_python(dataset) -> bool:
    """Whether elements of a data set come out of Python functions: of a generator, or `tf.numpy_function`."""
    return _function_has(dataset, _PYTHON_CALLS) or any(map(calls_python, dataset._inputs()))


def _known_cardinality(dataset) -> int | None:
    if not tf.executing_eagerly():
        return None
    count = int(dataset.cardinality())
    return count if count >= 0 else None


def _function_has(dataset, operations: tuple[str, ...]) -> bool:
    """Whether the function that a data set applies has one of these operations, or calls one that has."""
    function = getattr(dataset, "_map_func", None)
    if function is None:
        return False
    graph = function.function.graph.as_graph_def()
    nodes = [*graph.node, *(node for inner in graph.library.function for node in inner.node_def)]
    return any(node.op.startswith(operations) for node in nodes)


def in_xla() -> bool:
    """Whether what is being traced will be compiled by XLA."""
    return control_flow_util.GraphOrParentsInXlaContext(tf_ops.get_default_graph())


def is_tape_watching() -> bool:
    """Whether a `GradientTape` may be recording what is computed now."""
    return record.could_possibly_record()


def called_from(function_name: str, depth: int = 2) -> bool:
    """Whether the function that called our caller has this name."""
    return sys._getframe(depth).f_code.co_name == function_name


def plain_variable(initial_value, dtype, device: str):
    """A variable outside every distribution strategy, wherever it is made."""
    with tf.init_scope(), tf.device(device):
        return resource_variable_ops.ResourceVariable(initial_value, dtype=dtype, trainable=False)


def is_gpu(device: str) -> bool:
    return tf.DeviceSpec.from_string(device).device_type == "GPU"


class _Launcher(cross_device_utils.CollectiveReplicaLauncher):
    """TensorFlow's launcher, which also works in a function that is called inside of control flow, and for no values.

    A collective's instance key is fed when the outermost function is called, except where a function is called by a
    branch or a loop's body, as Keras 3 does with `steps_per_execution`: there nobody feeds it, and a key of the graph's
    own has to do.
    """

    def _next_instance_key(self):
        if not _is_called_in_control_flow(tf_ops.get_default_graph()):
            return super()._next_instance_key()
        key = self._collective_keys.get_instance_key(self._group_key, self._device)
        with tf.device("CPU:0"):
            return tf.constant(key, tf.int32)

    def all_reduce(self, input_tensor, control_input=None, options=None):
        if input_tensor.shape.num_elements() == 0:
            return tf.identity(input_tensor)
        return super().all_reduce(input_tensor, control_input, options)

    def _all_gather(self, input_tensor, options):
        """With one value more where there may be none, since a collective of no bytes crashes the runtime."""
        if input_tensor.shape.num_elements():
            return super()._all_gather(input_tensor, options)
        flat = tf.concat([tf.reshape(input_tensor, [-1]), tf.zeros([1], input_tensor.dtype)], 0)
        rows = tf.reshape(super()._all_gather(flat, options), [self._group_size, -1])[:, :-1]
        shape = tf.shape(input_tensor)
        gathered = tf.reshape(rows, tf.concat([[self._group_size * shape[0]], shape[1:]], 0))
        gathered.set_shape(tf.TensorShape([None]).concatenate(input_tensor.shape[1:]))
        return gathered


def _is_called_in_control_flow(graph) -> bool:
    """Whether a function's graph, not a branch itself, has a branch or a loop's body around it."""
    while getattr(graph, "is_control_flow_graph", False):
        graph = graph.outer_graph
    while graph is not None:
        graph = getattr(graph, "outer_graph", None)
        if getattr(graph, "is_control_flow_graph", False):
            return True
    return False


def use_static_keys_in_loops(all_reduce: CollectiveAllReduce) -> None:
    """Gives cross-device ops launchers that work in functions called by control flow."""
    all_reduce._launchers = [
        _Launcher(old._group_key, old._group_size, old._collective_keys, old._device, old._options)
        for old in all_reduce._launchers
    ]


def make_launcher(device: str, group_size: int, group_key: int):
    """A launcher of collectives between one device of each process, in a group of its own."""
    device = device_util.canonicalize(device)
    keys = cross_device_utils.CollectiveKeys(group_key_start=group_key)
    return cross_device_utils.CollectiveReplicaLauncher(
        keys.get_group_key([device]), group_size, keys, device, CommunicationOptions()
    )


class Collectives:
    """All-to-all and all-gather of one replica, with the keys and options of TensorFlow's own launcher.

    TensorFlow runs the collectives that share an ordering token one after another, as NCCL needs it. CPU collectives
    may overtake each other, each having an instance key of its own; so packs get different tokens, called lanes.
    (Without any token they hang where one process has several replicas.)

    Args:
        launcher: A `cross_device_utils.CollectiveReplicaLauncher`.
        options: `CommunicationOptions` of this call.
        tokens: Variables of the launcher's device, one a lane; by default the launcher's own token is the only one.
    """

    def __init__(self, launcher, options: CommunicationOptions, tokens=()):
        self._launcher = launcher
        self._options = launcher._options.merge(options)
        self._tokens = [token.handle for token in tokens] or [launcher._get_ordering_token()]

    @property
    def group_size(self) -> int:
        return self._launcher._group_size

    def _arguments(self, lane: int) -> dict:
        launcher = self._launcher
        return dict(
            group_size=launcher._group_size,
            group_key=launcher._group_key,
            instance_key=launcher._next_instance_key(),
            communication_hint=self._options.implementation.value,
            timeout=self._options.timeout_seconds or 0,
            ordering_token=self._tokens[lane % len(self._tokens)],
        )

    def all_to_all(self, rows: tf.Tensor, lane: int = 0) -> tf.Tensor:
        """Sends row i of `[group_size, ...]` to replica i; returns the rows received, in replica order."""
        arguments = self._arguments(lane)
        with tf.device(self._launcher._device):
            received = collective_ops.all_to_all_v2(rows, **arguments)
        received.set_shape(rows.shape)
        return received

    def all_gather(self, row: tf.Tensor, lane: int = 0) -> tf.Tensor:
        """Returns everybody's `row`, which has the same shape everywhere, stacked in replica order."""
        with tf.device(self._launcher._device):
            return self.gather_rows(row[tf.newaxis], lane)

    def gather_rows(self, row: tf.Tensor, lane: int = 0) -> tf.Tensor:
        """As `all_gather` for `[1, ...]`: adding the first axis would take int32 to the host of a GPU and back."""
        arguments = self._arguments(lane)
        with tf.device(self._launcher._device):
            gathered = collective_ops.all_gather_v2(row, **arguments)
        gathered.set_shape([self.group_size, *row.shape[1:]])
        return gathered
