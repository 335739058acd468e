"""Keras optimizers and callbacks on top of tf_epgc's public names, for `keras` (3.x) and `tf_keras` (2.x)."""

#: Public names and the module that holds each. They are imported at first use: neither Keras library is imported
#: before an optimizer of that library is given.
_PUBLIC = {
    "BackupAndRestore": "one_path",
    "MPUMonitor": "mpu_monitor",
    "MPUOptimizer": "mpu_optimizer",
    "ModelCheckpoint": "one_path",
    "SharedDecisions": "shared_decisions",
    "TensorBoard": "one_path",
}

__all__ = [*_PUBLIC]


def __getattr__(name):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tf_epgc.keras_integration' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)


def __dir__():
    return sorted(__all__)
