"""How a data set is split between workers: where TensorFlow's own rule would lose rows or stop, by another one."""

from __future__ import annotations

import tensorflow as tf

from tf_epgc._tf_compat import number_of_files

AutoShardPolicy = tf.data.experimental.AutoShardPolicy


def shard_policy(dataset) -> AutoShardPolicy:
    """What a data set's options say; AUTO for what is none."""
    if not isinstance(dataset, tf.data.Dataset):
        return AutoShardPolicy.AUTO
    return dataset.options().experimental_distribute.auto_shard_policy


def split_by_rows(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """`dataset`, of which each worker reads everything and keeps its own rows."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy.DATA
    return dataset.with_options(options)


def starving_files(dataset, workers: int) -> int | None:
    """How many files a data set reads, if they would be split between more workers than that; else None.

    TensorFlow's AUTO gives each worker files of its own whenever there are any. With too few of them the first worker
    stops with an error, and the others wait for it.
    """
    if shard_policy(dataset) != AutoShardPolicy.AUTO or not isinstance(dataset, tf.data.Dataset):
        return None
    files = number_of_files(dataset)
    return files if files is not None and files < workers else None
