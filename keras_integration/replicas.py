"""Running a step's parts under any `tf.distribute` strategy.

A strategy either merges its replicas' threads before it updates variables (`merge_call`: most do), or lets each replica
update its own copies (where merging is impossible, as inside the control flow of a replica). A decision that all
replicas take alike goes through `cond`, so that the branches may hold collectives and updates in both cases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf


class Replicas:
    """All replicas of this process, seen from where they are merged, or one replica from its inside.

    Args:
        strategy: The current one.
        merged: Whether this is the merged view.
    """

    def __init__(self, strategy: tf.distribute.Strategy, merged: bool):
        self._strategy = strategy
        self._merged = merged

    def run(self, fn: Callable, args: Sequence) -> None:
        """Calls `fn(*args)` in every replica, with that replica's part of each argument."""
        if self._merged:
            self._strategy.extended.call_for_each_replica(fn, args=tuple(args))
        else:
            fn(*args)

    def update(self, variable, fn: Callable, *args) -> None:
        """Calls `fn(variable, *args)` for every copy of a variable, with that replica's part of each argument."""
        arguments = tuple(map(raw_variable, args))
        self._strategy.extended.update(raw_variable(variable), fn, args=arguments, group=False)

    def assign(self, variable, value) -> None:
        self.update(variable, lambda v, new: v.assign(new), value)

    def assign_add(self, variable, value) -> None:
        self.update(variable, lambda v, more: v.assign_add(more), value)


def cond(predicate: tf.Tensor, if_true: Callable, if_false: Callable, args: Sequence = ()) -> None:
    """Takes one of two branches in all replicas; called in a replica.

    Args:
        predicate: Boolean scalar, the same on every replica of every worker.
        if_true: Called with a `Replicas` and `args`; its result is ignored.
        if_false: The same.
        args: Tensors and `tf.IndexedSlices` of this replica. What branches use of a replica's own must come this way;
            variables and Python values need not.
    """
    context = tf.distribute.get_replica_context()
    if not merges():
        inside = Replicas(context.strategy, merged=False)
        branch(predicate, lambda: if_true(inside, *args), lambda: if_false(inside, *args))
        return

    def merged(strategy, predicate, *args):
        # The first replica's decision is everyone's: outside of replicas, where branches may start replicas of their
        # own.
        first = strategy.experimental_local_results(predicate)[0]
        replicas = Replicas(strategy, merged=True)
        branch(first, lambda: if_true(replicas, *args), lambda: if_false(replicas, *args))

    context.merge_call(merged, args=(predicate, *args))


def branch(predicate: tf.Tensor, if_true: Callable, if_false: Callable) -> None:
    """`tf.cond` for what the branches do, not for what they return."""

    def done(call: Callable) -> Callable:
        def run():
            call()
            return tf.constant(0)

        return run

    tf.cond(predicate, done(if_true), done(if_false))


def merges() -> bool:
    """Whether the current strategy merges replicas here."""
    return not tf.__internal__.distribute.strategy_supports_no_merge_call()


def raw_variable(value):
    """The `tf.Variable` of a Keras 3 variable; any other value as it is."""
    is_keras_variable = not isinstance(value, (tf.Variable, tf.Tensor, tf.IndexedSlices)) and hasattr(
        value, "constraint"
    )
    return value.value if is_keras_variable else value


def in_xla() -> bool:
    """Whether the graph being traced is for XLA, which has no op that prints."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        if context is not None and context.IsXLAContext():
            return True
        graph = getattr(graph, "outer_graph", None)
    return False
