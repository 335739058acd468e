"""Options of one call of `all_reduce`: TensorFlow's, and how gradients are coded."""

from __future__ import annotations

from tf_epgc._tf_compat import CommunicationImplementation, CommunicationOptions
from tf_epgc.formats import CodecConfig


class GradientOptions(CommunicationOptions):
    """Says that the values of an `all_reduce` are gradients, and how they travel.

    Pass it to `tf.distribute.ReplicaContext.all_reduce(..., options=...)` where the strategy cannot tell by itself, or
    to use another format than the strategy's for one call.

    Args:
        bits: 8, 9, 11, 16, or 32 for exact; None for the strategy's own setting.
        rounding: `"truncate"`, `"nearest"`, `"stochastic"`, or None for the strategy's.
        scaling: `"block"`, `"none"`, or None: the strategy's where `bits` is not given, else the format's default.
        bytes_per_pack: As in `tf.distribute.experimental.CommunicationOptions`.
        timeout_seconds: The same.
        implementation: The same.

    Raises:
        ValueError: For settings that are not supported.

    Example:

    ```python
    ctx = tf.distribute.get_replica_context()
    grads = ctx.all_reduce("SUM", grads, options=tf_epgc.GradientOptions(bits=8))
    ```
    """

    def __init__(
        self,
        bits: int | None = None,
        rounding: str | None = None,
        scaling: str | None = None,
        bytes_per_pack: int = 0,
        timeout_seconds: float | None = None,
        implementation=CommunicationImplementation.AUTO,
    ):
        super().__init__(bytes_per_pack, timeout_seconds, implementation)
        CodecConfig(11 if bits is None else bits, rounding or "nearest", scaling)  # refuses what is not supported
        self.bits = bits
        self.rounding = rounding
        self.scaling = scaling

    def codec_config(self, default: CodecConfig) -> CodecConfig:
        """The settings of this call, `default` where it leaves them open."""
        scaling = default.scaling if self.bits is None and self.scaling is None else self.scaling
        return CodecConfig(
            default.bits if self.bits is None else self.bits, self.rounding or default.rounding, scaling, default.seed
        )


class ExchangeOptions(CommunicationOptions):
    """`CommunicationOptions` that keep the `GradientOptions` they are merged with.

    TensorFlow merges the options of a call into the strategy's and passes on only the result; this class makes
    the result remember, as `gradient_options`, that the call was marked.
    """

    gradient_options: GradientOptions | None = None

    @classmethod
    def wrap(cls, options: CommunicationOptions) -> ExchangeOptions:
        return cls(options.bytes_per_pack, options.timeout_seconds, options.implementation)

    def merge(self, options: CommunicationOptions | None) -> ExchangeOptions:
        merged = super().merge(options)
        merged.gradient_options = gradient_options_of(options) or self.gradient_options
        return merged


def gradient_options_of(options: CommunicationOptions | None) -> GradientOptions | None:
    """The `GradientOptions` that `options` are or carry, or None."""
    if isinstance(options, GradientOptions):
        return options
    return getattr(options, "gradient_options", None)
