"""`MPUOptimizer` for tf_keras."""

from __future__ import annotations

import contextlib

import tensorflow as tf
import tf_keras

from tf_epgc.keras_integration.mpu_optimizer import MPUOptimizer


@tf_keras.saving.register_keras_serializable(package="tf_epgc", name="MPUOptimizer")
class TFKerasMPUOptimizer(MPUOptimizer, tf_keras.optimizers.Optimizer, tf_keras.mixed_precision.LossScaleOptimizer):
    """`MPUOptimizer` around an optimizer of `tf_keras.optimizers`; see there."""

    __doc__ = MPUOptimizer.__doc__

    def _init_library_optimizer(self, inner, name):
        # LossScaleOptimizer, a base class so that `compile` does not add another one, has no state of its own.
        tf_keras.optimizers.Optimizer.__init__(self, name=name or type(self).__name__)
        self.weight_decay = None

    def _make_scalar(self, name, value, dtype):
        return self.add_variable((), dtype, tf_keras.initializers.Constant(value), name)

    def _make_master(self, variable):
        with tf.distribute.get_strategy().extended.colocate_vars_with(variable):
            master = tf.Variable(
                tf.cast(variable, tf.float32),
                name=f"master/{variable._shared_name}",
                trainable=False,
                constraint=variable.constraint,
            )
        self._variables.append(master)
        return master

    def build(self, var_list):
        """Makes the masters, and the inner optimizer's variables on them."""
        if getattr(self, "_built", False):
            return
        variables = list(var_list)
        masters = self._build_masters(variables)
        _exclude_masters(self._inner, variables, masters)
        self._inner.build(masters)
        self._build_index_dict(variables)
        self._built = True

    @property
    def variables(self):
        """All variables, those of the inner optimizer last; also callable, as in tf_keras."""
        own = super().variables
        return type(own)([*own, *self._inner.variables])

    def set_weights(self, weights):
        """Sets the values of `variables`."""
        variables = self.variables
        if len(weights) != len(variables):
            raise ValueError(
                f"{len(weights)} weights were given, but the optimizer has {len(variables)} variables; build it "
                "first, with optimizer.build(model.trainable_variables), and take the weights of one like it."
            )
        for variable, weight in zip(variables, weights, strict=True):
            variable.assign(weight)

    def save_own_variables(self, store):
        """Saves all variables, the inner optimizer's too."""
        for i, variable in enumerate(self.variables):
            store[str(i)] = variable.numpy()

    def load_own_variables(self, store):
        """The reverse of `save_own_variables`; the optimizer must be built."""
        self.set_weights([store[str(i)] for i in range(len(store.keys()))])

    # What tf_keras calls a LossScaleOptimizer's.

    @property
    def dynamic_counter(self):
        return self._loss_scale.good_steps if self.dynamic else None

    @property
    def dynamic_growth_steps(self):
        return self.growth_steps if self.dynamic else None

    def get_scaled_loss(self, loss):
        """`scale_loss`, also of a function that returns a loss."""
        return (lambda: self.scale_loss(loss())) if callable(loss) else self.scale_loss(loss)

    def get_unscaled_gradients(self, grads):
        """Refused, as unscaling comes after the exchange."""
        raise ValueError(
            "get_unscaled_gradients was called, but MPUOptimizer unscales in apply_gradients, after the exchange; "
            "pass the gradients of the scaled loss to apply_gradients as they are."
        )

    def compute_gradients(self, loss, var_list, tape=None):
        """As in tf_keras, of the scaled loss: what `apply_gradients` takes."""
        if not callable(loss) and tape is None:
            return super().compute_gradients(loss, var_list, tape)  # which says what is missing
        tape = tf.GradientTape() if tape is None else tape
        with tape:
            loss = self.get_scaled_loss(loss)
        return super().compute_gradients(loss, var_list, tape)

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(self, grads_and_vars, name=None, skip_gradients_aggregation=False, **kwargs):
        """One step, with gradients of the scaled loss on this replica.

        Args:
            grads_and_vars: Pairs.
            name: Of the scope.
            skip_gradients_aggregation: Whether they are sums over all replicas already.
            **kwargs: `experimental_aggregate_gradients`, the reverse of it.

        Returns:
            `iterations`.
        """
        pairs = list(grads_and_vars)
        is_exchanged = skip_gradients_aggregation or not kwargs.pop("experimental_aggregate_gradients", True)
        with tf.init_scope():
            self.build([v for _, v in pairs])
        pairs = [(g, v) for g, v in pairs if g is not None]
        if not pairs:
            raise ValueError(
                "No variable has a gradient; see that the loss depends on the model's trainable variables."
            )
        gradients, variables = zip(*pairs, strict=True)
        with tf.name_scope(name or self.name):
            self._apply(gradients, variables, is_exchanged)
        return self.iterations

    def _accumulators(self, variables):
        raise NotImplementedError  # tf_keras optimizers do not accumulate

    def _told_of_exchange(self):
        return contextlib.nullcontext()  # an argument of `apply_gradients` tells it

    def _apply_inner(self, gradients, variables):
        self._inner.apply_gradients(zip(gradients, variables, strict=True), skip_gradients_aggregation=True)

    def update_step(self, gradient, variable):
        raise NotImplementedError  # the inner optimizer's is called

    def finalize_variable_values(self, var_list):
        self._finalize_masters(var_list)

    def _serialized_inner(self):
        return tf_keras.optimizers.serialize(self._inner)

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        inner = config.pop("inner")
        if isinstance(inner, dict):
            inner = tf_keras.optimizers.deserialize(inner, custom_objects=custom_objects)
        return cls(inner, **config)


def _exclude_masters(optimizer, variables, masters) -> None:
    """What was excluded from weight decay as a variable is excluded as its master."""
    excluded = getattr(optimizer, "_exclude_from_weight_decay", [])
    excluded.extend(
        [optimizer._var_key(m) for v, m in zip(variables, masters, strict=True) if optimizer._var_key(v) in excluded]
    )
