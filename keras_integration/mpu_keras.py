"""`MPUOptimizer` for Keras 3."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence

import keras
import tensorflow as tf

from tf_epgc.keras_integration.mpu_optimizer import MPUOptimizer
from tf_epgc.keras_integration.replicas import Replicas, cond, merges, raw_variable


@keras.saving.register_keras_serializable(package="tf_epgc", name="MPUOptimizer")
class KerasMPUOptimizer(MPUOptimizer, keras.optimizers.LossScaleOptimizer):
    """`MPUOptimizer` around an optimizer of `keras.optimizers`; see there."""

    __doc__ = MPUOptimizer.__doc__

    def _init_library_optimizer(self, inner, name):
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                f"MPUOptimizer needs Keras's TensorFlow backend, not {keras.backend.backend()!r}; set "
                "KERAS_BACKEND=tensorflow before Keras is imported."
            )
        # That of LossScaleOptimizer, which is a base class so that `compile` does not add another one, is left out.
        keras.optimizers.Optimizer.__init__(self, learning_rate=0.0, name=name)

    def _make_scalar(self, name, value, dtype):
        return self.add_variable((), keras.initializers.Constant(value), dtype, name=name)

    def _make_master(self, variable):
        raw = raw_variable(variable)
        with self._distribution_strategy.extended.colocate_vars_with(raw):
            master = self.add_variable(
                variable.shape, lambda shape, dtype: tf.cast(raw, dtype), "float32", name=variable.name
            )
        # Optimizers look at a variable's path, by which users tell them what to leave out, and apply its constraint.
        master._path = variable.path
        master.constraint = variable.constraint
        return master

    def build(self, variables):
        """Makes the masters, and the inner optimizer's variables on them."""
        if self.built:
            return
        variables = list(variables)
        self._check_accumulation(variables)
        masters = self._build_masters(variables)
        for part in self._parts():
            _exclude_masters(part, variables, masters)
        self._inner.build(masters)
        keras.optimizers.Optimizer.build(self, variables)

    def _parts(self) -> list:
        """The optimizers that update variables: the inner one, or those a `MultiOptimizer` holds."""
        return list(getattr(self._inner, "optimizers", ())) or [self._inner]

    def _check_accumulation(self, variables: Sequence) -> None:
        if isinstance(self._inner, keras.optimizers.MultiOptimizer):
            if any(part.gradient_accumulation_steps for part in self._parts()):
                raise ValueError(
                    "An optimizer inside of the MultiOptimizer has gradient_accumulation_steps, which MPUOptimizer "
                    "does not support; set it on none of them."
                )
        if self._steps_in_window > 1 and any(getattr(v, "overwrite_with_gradient", False) for v in variables):
            raise ValueError(
                "The model has variables that their gradients overwrite (float8 training), for which MPUOptimizer "
                "does not support gradient_accumulation_steps; leave it out."
            )

    @property
    def variables(self):
        return self._variables + self._inner.variables

    def save_own_variables(self, store):
        """Saves all but the inner optimizer's variables, which are saved with it."""
        for i, variable in enumerate(self._variables):
            store[str(i)] = variable.numpy()

    def load_own_variables(self, store):
        """The reverse of `save_own_variables`; the optimizer must be built."""
        if len(store.keys()) != len(self._variables):
            raise ValueError(
                f"The saved MPUOptimizer has {len(store.keys())} variables of its own, this one "
                f"{len(self._variables)}; build it first, with optimizer.build(model.trainable_variables), and on a "
                "model of the same dtypes."
            )
        for i, variable in enumerate(self._variables):
            variable.assign(store[str(i)])

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads, trainable_variables=None):
        """One step; `grads` are those of the scaled loss, on this replica."""
        grads = list(grads)
        if not grads:
            return
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if not self.built:
            with tf.init_scope(), keras.name_scope(self.name, caller=self):
                self.build(variables)
        grads, variables = self._filter_empty_gradients(grads, variables)
        grads, variables = self._overwrite_variables_directly_with_gradients(grads, variables)
        if grads:
            self._apply(grads, variables)

    def apply_gradients(self, grads_and_vars):
        """As `apply`; returns `iterations`."""
        grads, variables = zip(*grads_and_vars, strict=True)
        self.apply(grads, variables)
        return self._inner._iterations

    def scale_loss(self, loss):
        return MPUOptimizer.scale_loss(self, loss)

    def _accumulators(self, variables):
        return [self._inner._accumulated_gradients[self._inner._get_variable_index(v)] for v in variables]

    def _told_of_exchange(self):
        # Attributes of the objects, in front of the methods: the classes are their library's, and other optimizers'
        # too.
        attributes = [
            (
                part,
                {
                    "_all_reduce_sum_gradients": list,
                    "_backend_apply_gradients": functools.partial(_update_variables, part),
                },
            )
            for part in self._parts()
        ]
        if not merges():
            counters = {id(o): o._iterations for o in (self._inner, *self._parts())}.values()
            attributes += [
                (counter, {"assign_add": functools.partial(_count_unmerged, counter)}) for counter in counters
            ]
        return _with_attributes(attributes)

    def _apply_inner(self, gradients, variables):
        self._inner.apply(gradients, variables)

    def finalize_variable_values(self, var_list):
        self._finalize_masters(var_list)

    def _serialized_inner(self):
        return keras.saving.serialize_keras_object(self._inner)

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        inner = keras.saving.deserialize_keras_object(config.pop("inner"), custom_objects=custom_objects)
        return cls(inner, **config)


def _update_variables(optimizer, gradients, variables) -> None:
    """`BaseOptimizer._backend_apply_gradients` for gradients that are their window's mean already.

    Its conditions are the library's; but the one of moving averages stands where strategies can have one.
    """
    gradients = optimizer._clip_gradients(gradients)
    optimizer._apply_weight_decay(variables)
    optimizer._backend_update_step(gradients, variables, optimizer.learning_rate)
    if not optimizer.use_ema:
        return
    optimizer._update_model_variables_moving_average(optimizer._trainable_variables)
    if optimizer.ema_overwrite_frequency:
        overwrites = tf.equal((optimizer.iterations + 1) % optimizer.ema_overwrite_frequency, 0)
        cond(overwrites, lambda replicas: _overwrite_with_averages(optimizer), lambda replicas: None)


@contextlib.contextmanager
def _with_attributes(attributes: Sequence):
    """Gives objects attributes for a while; `attributes` are pairs of an object and a dict."""
    for owner, values in attributes:
        vars(owner).update(values)
    try:
        yield
    finally:
        for owner, values in attributes:
            for name in values:
                del vars(owner)[name]


def _count_unmerged(counter, value) -> None:
    """`counter.assign_add(value)` where replicas cannot be merged, as the library's own wants it."""
    strategy = tf.distribute.get_strategy()
    Replicas(strategy, merged=False).assign_add(counter, tf.constant(value, counter.dtype))


def _overwrite_with_averages(optimizer) -> None:
    optimizer._overwrite_model_variables_with_average_value(optimizer._trainable_variables)


def _exclude_masters(optimizer, variables: Sequence, masters: Sequence) -> None:
    """What was excluded from weight decay as a variable is excluded as its master."""
    excluded = getattr(optimizer, "_exclude_from_weight_decay", set())
    excluded.update(
        optimizer._var_key(m) for v, m in zip(variables, masters, strict=True) if optimizer._var_key(v) in excluded
    )
