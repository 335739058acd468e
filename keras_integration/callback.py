"""The base of callbacks that work in `fit` of Keras 3 and of tf_keras."""

from __future__ import annotations

#: Every method that `fit`, `evaluate` and `predict` of either library call on a callback.
HOOKS = [
    f"on_{mode}{part}_{end}"
    for end in ("begin", "end")
    for mode, part in [("train", ""), ("test", ""), ("predict", ""), ("epoch", ""), ("batch", "")]
    + [(mode, "_batch") for mode in ("train", "test", "predict")]
]


def _do_nothing(self, *args, **kwargs):
    pass


_do_nothing._is_default = True  # with which Keras 3 marks hooks that need not be called


class Callback:
    """A callback whose hooks do nothing, and which sees no batches.

    A plain class: neither library insists on its own base class, and which one it will be is not known here.
    """

    _supports_tf_logs = False
    async_safe = False

    def __init__(self):
        self.model = None
        self.params = {}

    def set_model(self, model):
        self.model = model

    def set_params(self, params):
        self.params = params

    def _implements_train_batch_hooks(self):
        return False

    def _implements_test_batch_hooks(self):
        return False

    def _implements_predict_batch_hooks(self):
        return False


for _hook in HOOKS:
    setattr(Callback, _hook, _do_nothing)
