"""What `tf-epgc doctor` looks at: versions, compiled parts, instruction sets, the cluster."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import platform
import socket
from collections.abc import Iterator

from tf_epgc.start_up import split_address
from tf_epgc.version import __version__


@dataclasses.dataclass(frozen=True)
class Check:
    """One line of the report; `good` is None for what is neither right nor wrong."""

    what: str
    good: bool | None
    text: str


def checks(tf_config: str | None, timeout: float) -> Iterator[Check]:
    """Everything, in order; a failed check does not stop the next ones.

    Args:
        tf_config: The text of `TF_CONFIG`, None if it is not set.
        timeout: Seconds to wait for each worker's port.
    """
    yield Check("tf_epgc", None, __version__)
    yield Check("Python", None, platform.python_version())
    yield _tensorflow()
    for name in ("keras", "tf_keras"):
        yield _package(name)
    yield from _compiled()
    yield from check_tf_config(tf_config, timeout)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _tensorflow() -> Check:
    try:
        import tensorflow as tf
    except Exception as e:  # a broken installation fails in its own ways
        return Check("TensorFlow", False, f"cannot be imported ({_reason(e)}); run `pip install tensorflow`")
    devices = ", ".join(device.name.split(":", 1)[1] for device in tf.config.list_physical_devices())
    return Check("TensorFlow", True, f"{tf.__version__}, devices {devices}")


def _package(name: str) -> Check:
    if importlib.util.find_spec(name) is None:
        return Check(name, None, "not installed")
    from importlib import metadata

    try:
        return Check(name, None, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Check(name, None, "of unknown version")


def _compiled() -> Iterator[Check]:
    try:
        from tf_epgc import _build_info as build_info

        yield Check("built for", None, f"TensorFlow {build_info.TF_VERSION}, {build_info.OP_LIBRARY}")
    except ImportError as e:
        yield Check("built for", False, _reason(e))
    try:
        from tf_epgc import ops

        ops.library()
        quantized = float(ops.quantize(1.1, bits=8))
        yield Check("ops", quantized == 1.0, "loaded, and 1.1 in 8 bits is 1" if quantized == 1.0 else f"{quantized}")
    except Exception as e:
        yield Check("ops", False, _reason(e))
    try:
        from tf_epgc import native

        runnable = ", ".join(native.runnable_isas())
        yield Check("instruction set", True, f"{native.active_isa()} (this CPU can run {runnable})")
    except Exception as e:
        yield Check("instruction set", False, _reason(e))


def check_tf_config(text: str | None, timeout: float) -> Iterator[Check]:
    """Reads `TF_CONFIG` and sees whether its workers' addresses exist and answer.

    Args:
        text: Its text, None if it is not set.
        timeout: Seconds to wait for each port.
    """
    if not text:
        yield Check("TF_CONFIG", None, "not set: training uses this machine's devices only")
        return
    try:
        workers, kind, index = _parse_tf_config(text)
    except ValueError as e:
        yield Check("TF_CONFIG", False, str(e))
        return
    yield Check("TF_CONFIG", True, f"{len(workers)} worker(s), this is {kind} {index}")
    for number, address in enumerate(workers):
        yield _address(number, address, kind == "worker" and number == index, timeout)


def _parse_tf_config(text: str) -> tuple[list[str], str, int]:
    try:
        content = json.loads(text)
    except ValueError as e:
        raise ValueError(f"is no JSON ({e}); see tf.distribute.cluster_resolver.TFConfigClusterResolver") from e
    cluster = content.get("cluster") if isinstance(content, dict) else None
    workers = cluster.get("worker") if isinstance(cluster, dict) else None
    if not isinstance(workers, list) or not workers or not all(isinstance(a, str) for a in workers):
        raise ValueError('lacks {"cluster": {"worker": ["host:port", ...]}}')
    task = content.get("task")
    if not isinstance(task, dict) or not isinstance(task.get("type"), str) or not isinstance(task.get("index"), int):
        raise ValueError('lacks {"task": {"type": "worker", "index": 0}}, which must differ on every worker')
    if task["type"] == "worker" and not 0 <= task["index"] < len(workers):
        raise ValueError(f"has task index {task['index']}, but there are {len(workers)} worker(s)")
    if len(set(workers)) < len(workers):
        raise ValueError("names an address twice; every worker needs its own")
    return workers, task["type"], task["index"]


def _address(number: int, address: str, own: bool, timeout: float) -> Check:
    what = f"worker {number}"
    try:
        host, port = split_address(what, address)
    except ValueError:
        return Check(what, False, f"{address!r} is not host:port")
    try:
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as e:
        return Check(what, False, f"{address}: the host's name cannot be resolved ({e.strerror or e})")
    if own:
        return Check(what, True, f"{address} ({resolved}) is this one")
    try:
        with socket.create_connection((host, port), timeout=timeout):
            return Check(what, True, f"{address} ({resolved}) answers")
    except ConnectionRefusedError:
        return Check(what, None, f"{address} ({resolved}): the host is up, nothing listens yet")
    except OSError as e:
        return Check(what, False, f"{address} ({resolved}) does not answer within {timeout:g} s ({e.strerror or e})")
