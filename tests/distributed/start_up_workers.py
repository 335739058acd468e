"""Workers that start late, alone or wrongly; what start_up_test.py runs."""

import contextlib
import io
import json
import os
import time

import tensorflow as tf

import tf_epgc
from tests.distributed.harness import worker_index


def one_strategy():
    tf_epgc.EPGCMirroredStrategy(bits=8, start_timeout=2)


def too_late():
    tf.constant(1.0) + 1.0
    tf_epgc.EPGCMirroredStrategy(bits=8, start_timeout=2)


def late():
    """Worker 1 comes some seconds after worker 0; everything but the strategy has been imported and tried before."""
    from tf_epgc import ops

    ops.library()
    time.sleep(4 * worker_index())
    strategy = tf_epgc.EPGCMirroredStrategy(bits=8)
    time.sleep(2 * (1 - worker_index()))  # a second one on worker 0 must not lose what worker 1 has asked it for
    again = tf_epgc.EPGCMirroredStrategy(bits=11)
    return {
        "replicas": strategy.num_replicas_in_sync,
        "again": again.num_replicas_in_sync,
        "elsewhere": error_in_another_cluster(),
    }


def error_in_another_cluster():
    config = json.loads(os.environ["TF_CONFIG"])
    config["cluster"]["worker"].append("localhost:12345")
    os.environ["TF_CONFIG"] = json.dumps(config)
    try:
        tf_epgc.EPGCMirroredStrategy(bits=11)
    except RuntimeError as e:
        return str(e)


def config_changes():
    """What is written when TF_CONFIG comes after the strategy."""
    strategy = tf_epgc.EPGCMirroredStrategy(bits=8)
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 0}}
    )
    with contextlib.redirect_stderr(io.StringIO()) as written:
        for _ in range(2):
            strategy.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2))
    return written.getvalue()
