"""How a data set is split between workers: where TensorFlow's own way would lose rows, stop, or spoil them, another."""

from __future__ import annotations

import tensorflow as tf

from tf_epgc._tf_compat import calls_python, number_of_files

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


def with_own_memory(dataset):
    """`dataset`, whose elements do not share memory with arrays of the user's.

    What a generator or `tf.numpy_function` returns is used where it lies. TensorFlow lets operations write over a share
    of such a batch when nobody else holds it, which changes the array, and so what later epochs train on.
    """
    if not isinstance(dataset, tf.data.Dataset) or not calls_python(dataset):
        return dataset
    return dataset.map(lambda *element: tf.nest.map_structure(_copy, _single(element), expand_composites=True))


def _single(element: tuple):
    return element[0] if len(element) == 1 else element


def _copy(tensor: tf.Tensor) -> tf.Tensor:
    if tensor.dtype in (tf.string, tf.variant, tf.resource):
        return tensor
    copied = tf.raw_ops.DeepCopy(x=tensor)
    copied.set_shape(tensor.shape)
    return copied
