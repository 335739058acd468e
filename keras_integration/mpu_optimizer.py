"""`MPUOptimizer`: loss scale and float32 master weights around a Keras optimizer, with gradients exchanged first.

What both libraries share is here; `mpu_keras` and `mpu_tf_keras` connect it with their optimizers.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

import tensorflow as tf

from tf_epgc.keras_integration import gradients as gradient_ops
from tf_epgc.keras_integration.loss_scale import LossScale, LossScaleSettings
from tf_epgc.keras_integration.masters import Masters, is_narrow
from tf_epgc.keras_integration.replicas import Replicas, cond, raw_variable

#: Of each library: where its optimizers are, and the module and class that wrap them.
_IMPLEMENTATIONS = {
    "keras": ("mpu_keras", "KerasMPUOptimizer"),
    "tf_keras": ("mpu_tf_keras", "TFKerasMPUOptimizer"),
}


class MPUOptimizer:
    """Mixed precision update: wraps a Keras optimizer with a loss scale and float32 master weights.

    One step: the loss is scaled; its gradients are summed over all replicas (under `tf_epgc.EPGCMirroredStrategy` in
    the strategy's format); if a value of the *sum* is Inf or NaN, every replica skips the step and halves the scale;
    else the sum is unscaled in float32, clipped as the inner optimizer asks, and applied to float32 weights, which are
    rounded into the model's variables. Since all replicas decide from the same bits, none ever waits for another that
    skipped.

    Only variables of float16 or bfloat16 get a float32 copy; float32 variables are their own. What the model's
    variables are given from outside (`set_weights`, `load_weights`) goes on into their masters at the next step.

    It is a subclass of the inner optimizer's library's `LossScaleOptimizer` (`keras` or `tf_keras`), so that `compile`
    does not wrap it again. Learning rate, clipping, weight decay, moving averages and gradient accumulation are set on
    the inner optimizer. A window of accumulated gradients is exchanged, checked and skipped as one.

    A custom loop must scale its loss: `loss = optimizer.scale_loss(loss)` inside the tape; `fit` does so itself.

    Args:
        inner: An optimizer of `keras.optimizers` or `tf_keras.optimizers`.
        initial_scale: The loss scale at the start.
        dynamic: Whether the scale moves: up after `growth_steps` finite steps in a row, down after a non-finite one.
            With False it stays, and non-finite steps are skipped all the same.
        growth_steps: See `dynamic`.
        min_scale: The scale does not shrink below; a value under 1 is fine.
        max_scale: The scale does not grow above.
        name: Of the optimizer.

    Raises:
        TypeError: If `inner` is not an optimizer, or already scales its loss.
        ValueError: For settings that make no sense.

    Example:

    ```python
    with strategy.scope():
        model = build_model()
        model.compile(tf_epgc.MPUOptimizer(keras.optimizers.SGD(0.1)), "sparse_categorical_crossentropy")
    model.fit(dataset)
    ```

    References:
        Micikevicius et al., Mixed Precision Training, https://arxiv.org/abs/1710.03740
    """

    def __new__(cls, inner=None, *args, **kwargs):
        if cls is MPUOptimizer:
            cls = _implementation_for(inner)
        return super().__new__(cls)

    def __init__(
        self,
        inner,
        initial_scale: float = 2.0**15,
        dynamic: bool = True,
        growth_steps: int = 2000,
        min_scale: float = 2.0**-32,
        max_scale: float = 2.0**32,
        name: str | None = None,
    ):
        _check_inner(inner)
        settings = LossScaleSettings(initial_scale, dynamic, growth_steps, min_scale, max_scale)
        self._init_library_optimizer(inner, name)
        self._inner = inner
        self._steps_in_window = getattr(inner, "gradient_accumulation_steps", None) or 1
        self._loss_scale = LossScale(settings, self._make_scalar)
        self._window_position = self._make_scalar("window_position", 0, "int64") if self._steps_in_window > 1 else None
        self._watcher = _Watcher()
        self._masters = Masters([])
        self._loss_was_scaled = False

    # What a library's class implements.

    def _init_library_optimizer(self, inner, name: str | None) -> None:
        """Calls the library's `Optimizer.__init__`."""
        raise NotImplementedError

    def _make_scalar(self, name: str, value, dtype: str):
        """A variable that is part of the optimizer's saved state."""
        raise NotImplementedError

    def _make_master(self, variable):
        """A float32 copy of a variable, under which the inner optimizer will know it."""
        raise NotImplementedError

    def _told_of_exchange(self):
        """A context in which the inner optimizer takes its gradients as exchanged, and as the mean of their window."""
        raise NotImplementedError

    def _apply_inner(self, gradients: Sequence, variables: Sequence) -> None:
        """Lets the inner optimizer update `variables`; called in a replica."""
        raise NotImplementedError

    def _accumulators(self, variables: Sequence) -> list:
        """The variables that add up a window's gradients."""
        raise NotImplementedError

    # Settings and state.

    @property
    def inner_optimizer(self):
        return self._inner

    @property
    def initial_scale(self) -> float:
        return self._loss_scale.settings.initial

    @property
    def dynamic(self) -> bool:
        return self._loss_scale.settings.dynamic

    @property
    def growth_steps(self) -> int:
        return self._loss_scale.settings.growth_steps

    @property
    def min_scale(self) -> float:
        return self._loss_scale.settings.minimum

    @property
    def max_scale(self) -> float:
        return self._loss_scale.settings.maximum

    @property
    def loss_scale(self) -> tf.Tensor:
        """The current scale, a float32 scalar."""
        return self._loss_scale.value()

    @property
    def good_steps(self) -> tf.Tensor:
        """Finite steps since the scale last moved."""
        return tf.convert_to_tensor(raw_variable(self._loss_scale.good_steps))

    @property
    def skipped_steps(self) -> tf.Tensor:
        """Steps, or windows of accumulated gradients, that were skipped."""
        return tf.convert_to_tensor(raw_variable(self._loss_scale.skipped_steps))

    @property
    def iterations(self):
        """The inner optimizer's: steps that were applied."""
        return self._inner.iterations

    @iterations.setter
    def iterations(self, variable):
        self._inner.iterations = variable

    @property
    def learning_rate(self):
        return self._inner.learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate):
        self._inner.learning_rate = learning_rate

    def exclude_from_weight_decay(self, var_list=None, var_names=None):
        """As the inner optimizer's; call it before `build`."""
        self._inner.exclude_from_weight_decay(var_list=var_list, var_names=var_names)

    def get_config(self) -> dict:
        return {
            "name": self.name,
            "inner": self._serialized_inner(),
            "initial_scale": self.initial_scale,
            "dynamic": self.dynamic,
            "growth_steps": self.growth_steps,
            "min_scale": self.min_scale,
            "max_scale": self.max_scale,
        }

    # Scaling.

    def scale_loss(self, loss):
        """Multiplies a loss by the current scale; call it inside the tape, on what `tape.gradient` will differentiate.

        Args:
            loss: A floating tensor or number.

        Returns:
            The scaled loss; of float32 if `loss` is narrower.

        Example:

        ```python
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(loss_fn(labels, model(images, training=True)))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        ```
        """
        self._loss_was_scaled = True
        loss = gradient_ops.widen(loss)
        return loss * tf.cast(self._loss_scale.value(), loss.dtype)

    @property
    def _is_unscaled(self) -> bool:
        """Whether the scale is 1 for ever."""
        return not self.dynamic and self.initial_scale == 1.0

    def _check_loss_was_scaled(self) -> None:
        if self._loss_was_scaled or self._is_unscaled:
            return
        raise ValueError(
            f"Gradients are applied, but scale_loss was never called: they would be divided by a scale (at first "
            f"{self.initial_scale}) that the loss was not multiplied by. Differentiate optimizer.scale_loss(loss); "
            "where the loss needs no scale, use MPUOptimizer(inner, initial_scale=1.0, dynamic=False)."
        )

    # Masters.

    def _build_masters(self, variables: Sequence) -> list:
        """Makes the masters; returns what the inner optimizer is built on."""
        self._check_strategy()
        masters = [self._make_master(v) if is_narrow(v) else v for v in variables]
        self._masters = Masters(list(zip(variables, masters, strict=True)))
        return masters

    def _check_strategy(self) -> None:
        """Refuses to be built under another strategy than the one its counters live in."""
        here = tf.distribute.get_strategy()
        if tf.distribute.has_strategy() and any(o._distribution_strategy is not here for o in (self, self._inner)):
            raise ValueError(
                f"An MPUOptimizer or its inner optimizer was made outside the scope of the {type(here).__name__} it "
                "is used with; make both inside `with strategy.scope():`."
            )

    def _finalize_masters(self, variables: Sequence) -> None:
        """After training: what the inner optimizer makes of the masters (moving averages) goes into the variables."""
        self._inner.finalize_variable_values([self._masters.of(v) for v in variables])
        self._masters.round_into_variables(Replicas(self._distribution_strategy, merged=True))

    # A step.

    def _apply(self, gradients: Sequence, variables: Sequence, is_exchanged: bool = False) -> None:
        """One step with scaled gradients of this replica, none of them None."""
        if tf.distribute.in_cross_replica_context():
            raise ValueError("MPUOptimizer was called outside of replicas; call it inside `strategy.run`.")
        self._check_loss_was_scaled()
        step = _Step(self, [self._masters.of(v) for v in variables], is_exchanged)
        step.run([gradient_ops.widen(g) for g in gradients])


class _Step:
    """One step of an optimizer, on given variables.

    Args:
        optimizer: The `MPUOptimizer`.
        variables: Masters.
        is_exchanged: Whether the gradients are sums over replicas already.
    """

    def __init__(self, optimizer: MPUOptimizer, variables: Sequence, is_exchanged: bool):
        self._optimizer = optimizer
        self._loss_scale = optimizer._loss_scale
        self._variables = variables
        self._is_exchanged = is_exchanged
        self._steps = optimizer._steps_in_window
        self._accumulators = optimizer._accumulators(variables) if self._steps > 1 else []

    def run(self, gradients: Sequence) -> None:
        if self._steps == 1:
            self._finish(*gradients)
            return
        position = tf.convert_to_tensor(raw_variable(self._optimizer._window_position))
        cond(tf.equal(position, self._steps - 1), self._finish_window, self._accumulate, gradients)

    def _accumulate(self, replicas: Replicas, *gradients) -> None:
        for accumulator, gradient in zip(self._accumulators, gradients, strict=True):
            replicas.update(accumulator, _add, gradient)
        replicas.assign_add(self._optimizer._window_position, tf.constant(1, tf.int64))

    def _finish_window(self, replicas: Replicas, *gradients) -> None:
        replicas.run(self._finish_with_window, gradients)

    def _finish_with_window(self, *gradients) -> None:
        sums = [raw_variable(a) + g for a, g in zip(self._accumulators, gradients, strict=True)]
        self._finish(*[g / self._steps for g in sums])

    def _finish(self, *gradients) -> None:
        """The collective stands outside of every branch, and the branch depends on its result alone."""
        if not self._is_exchanged:
            gradients = gradient_ops.exchange(gradients)
        shares = self._optimizer._watcher.shares_of(gradients)
        cond(gradient_ops.all_finite(gradients), self._update, self._skip, [shares, *gradients])

    def _update(self, replicas: Replicas, shares, *gradients) -> None:
        optimizer = self._optimizer
        optimizer._masters.take_over_changes(replicas)
        if self._steps > 1:
            self._clear_window(replicas)
            # The inner optimizer counts the steps of a window, and adds the last one itself.
            replicas.assign_add(optimizer._inner._iterations, tf.constant(self._steps - 1, tf.int64))
        with optimizer._told_of_exchange():
            replicas.run(self._unscale_and_apply, gradients)
        optimizer._masters.round_into_variables(replicas)
        self._loss_scale.after_good_step(replicas)
        optimizer._watcher.record(replicas, shares)

    def _unscale_and_apply(self, *gradients) -> None:
        if not self._optimizer._is_unscaled:
            reciprocal = 1.0 / self._loss_scale.value()
            gradients = [gradient_ops.multiply(g, reciprocal) for g in gradients]
        self._optimizer._apply_inner(gradients, self._variables)

    def _skip(self, replicas: Replicas, shares, *gradients) -> None:
        if self._steps > 1:
            self._clear_window(replicas)
        self._loss_scale.after_bad_step(replicas)
        self._optimizer._watcher.record(replicas, shares)

    def _clear_window(self, replicas: Replicas) -> None:
        for accumulator in self._accumulators:
            replicas.update(accumulator, lambda a: a.assign(tf.zeros_like(a)))
        replicas.assign(self._optimizer._window_position, tf.constant(0, tf.int64))


def _add(accumulator, gradient):
    if isinstance(gradient, tf.IndexedSlices):
        return accumulator.scatter_add(gradient)
    return accumulator.assign_add(gradient)


class _Watcher:
    """Shares of zeros and of non-finite values in the exchanged gradients, counted while somebody watches."""

    def __init__(self):
        self._watching = tf.Variable(False, trainable=False, name="watching_gradients")
        # The sums of both shares over steps, and the number of steps.
        self._sums = tf.Variable(tf.zeros(3), trainable=False, name="gradient_shares")

    def watch(self, watching: bool = True) -> None:
        self._watching.assign(watching)
        self._sums.assign(tf.zeros(3))

    def take(self) -> tuple[float, float]:
        """The mean shares of zeros and of non-finite values since the last call; NaN if there was no step."""
        zeros, non_finite, steps = self._sums.numpy().tolist()
        self._sums.assign(tf.zeros(3))
        return (zeros / steps, non_finite / steps) if steps else (float("nan"), float("nan"))

    def shares_of(self, gradients: Sequence) -> tf.Tensor:
        return tf.cond(
            tf.convert_to_tensor(self._watching), lambda: gradient_ops.shares(gradients), lambda: tf.zeros(3)
        )

    def record(self, replicas: Replicas, shares: tf.Tensor) -> None:
        replicas.assign_add(self._sums, shares)


def _library_of(inner) -> str | None:
    """The library whose optimizer `inner` is, or None; imports nothing."""
    for library in _IMPLEMENTATIONS:
        module = sys.modules.get(library)
        if module is not None and isinstance(inner, module.optimizers.Optimizer):
            return library
    return None


def _implementation_for(inner) -> type:
    library = _library_of(inner)
    if library is None:
        raise TypeError(
            f"MPUOptimizer wraps an optimizer of keras.optimizers or tf_keras.optimizers, not {inner!r}; pass an "
            "instance, such as keras.optimizers.SGD(0.1) (optimizers of tf_keras.optimizers.legacy are not supported)."
        )
    module, name = _IMPLEMENTATIONS[library]
    return getattr(importlib.import_module(f"{__package__}.{module}"), name)


def _check_inner(inner) -> None:
    if isinstance(inner, MPUOptimizer) or _is_loss_scale_optimizer(inner):
        raise TypeError(
            f"MPUOptimizer cannot wrap a {type(inner).__name__}, which scales its loss already; pass "
            "the optimizer inside of it."
        )
    if getattr(inner, "loss_scale_factor", None) is not None:
        raise ValueError(
            f"The inner optimizer has loss_scale_factor={inner.loss_scale_factor}, and the loss would be scaled "
            "twice; leave it out and use MPUOptimizer(inner, initial_scale=..., dynamic=False)."
        )


def _is_loss_scale_optimizer(inner) -> bool:
    library = sys.modules.get(_library_of(inner))
    return library is not None and isinstance(inner, library.mixed_precision.LossScaleOptimizer)


def _register_imported_libraries() -> None:
    """Lets the libraries that are imported already load models saved with an MPUOptimizer."""
    for library, (module, _) in _IMPLEMENTATIONS.items():
        if library in sys.modules:
            importlib.import_module(f"{__package__}.{module}")


_register_imported_libraries()
