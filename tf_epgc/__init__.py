"""Low-bit gradient exchange for TensorFlow and Keras: several machines train with 8, 9, 11 or 16 bits on the wire."""

from tf_epgc.version import __version__

#: Public names and the module that holds each. They are imported at first use, so that `import tf_epgc` neither imports
#: TensorFlow nor touches a device.
_PUBLIC = {
    "BackupAndRestore": "keras_integration",
    "CodecConfig": "formats",
    "EPGCMirroredStrategy": "strategy",
    "FORMATS": "formats",
    "GradientOptions": "options",
    "MPUMonitor": "keras_integration",
    "MPUOptimizer": "keras_integration",
    "ModelCheckpoint": "keras_integration",
    "PROTOCOL_VERSION": "formats",
    "SharedDecisions": "keras_integration",
    "TensorBoard": "keras_integration",
    "WorkerMismatchError": "handshake",
    "WorkersMissingError": "start_up",
    "decode": "ops",
    "encode": "ops",
    "quantize": "ops",
    "simulate_all_reduce": "simulation",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tf_epgc' has no attribute {name!r}")
    import importlib

    try:
        module = importlib.import_module(f"tf_epgc.{_PUBLIC[name]}")
    except ModuleNotFoundError as e:
        if (e.name or "").split(".")[0] != "tensorflow":
            raise
        raise ImportError(
            f"tf_epgc.{name} needs TensorFlow, which is not installed; run `pip install tensorflow`, then rebuild "
            "tf_epgc with `pip install --no-build-isolation .`."
        ) from e
    return getattr(module, name)


def __dir__():
    return sorted(__all__)
