"""How many files a data set reads, and when they are too few for the workers."""

import os

import numpy as np
import tensorflow as tf
from absl.testing import parameterized
from tensorflow.python.data.experimental.ops import distribute

from tf_epgc import sharding


def _files(folder, count):
    folder = os.path.join(folder, str(count))
    os.makedirs(folder, exist_ok=True)
    paths = [os.path.join(folder, f"rows{i}") for i in range(count)]
    for path in paths:
        with tf.io.TFRecordWriter(path) as writer:
            for row in range(10):
                writer.write(str(row).encode())
    return paths


def _listed(paths):
    return tf.data.Dataset.list_files(os.path.join(os.path.dirname(paths[0]), "rows*"))


#: Ways to read files, as users write them.
PIPELINES = {
    "one reader": tf.data.TFRecordDataset,
    "lines": tf.data.TextLineDataset,
    "further steps": lambda paths: tf.data.TFRecordDataset(paths).map(tf.strings.length).cache().shuffle(4).batch(2),
    "interleave": lambda paths: _listed(paths).interleave(tf.data.TFRecordDataset, num_parallel_calls=2).batch(2),
    "flat_map": lambda paths: _listed(paths).flat_map(tf.data.TextLineDataset),
    "zip": lambda paths: tf.data.Dataset.zip(tf.data.TFRecordDataset(paths), tf.data.Dataset.range(5)),
}


class ShardingTest(parameterized.TestCase, tf.test.TestCase):
    @parameterized.parameters(*PIPELINES)
    def test_files_are_counted(self, pipeline):
        for count in (1, 3):
            dataset = PIPELINES[pipeline](_files(self.get_temp_dir(), count))
            self.assertEqual(sharding.starving_files(dataset, 4), count)
            self.assertIsNone(sharding.starving_files(dataset, count))

    def test_without_files(self):
        rows = tf.data.Dataset.range(10)
        self.assertIsNone(sharding.starving_files(rows.map(lambda x: x + 1).batch(2), 4))
        self.assertIsNone(sharding.starving_files([1, 2], 4))

    def test_a_policy_that_was_chosen_is_kept(self):
        dataset = sharding.split_by_rows(tf.data.TFRecordDataset(_files(self.get_temp_dir(), 1)))
        self.assertEqual(sharding.shard_policy(dataset), sharding.AutoShardPolicy.DATA)
        self.assertIsNone(sharding.starving_files(dataset, 2))

    @parameterized.parameters("generator", "numpy_function")
    def test_arrays_of_the_user_are_not_written_to(self, source):
        """Halves of batches, as a worker gets them, which the step may write over where it holds them alone."""
        targets = _aligned(64)
        before = targets.copy()
        dataset = {"generator": _generated, "numpy_function": _sliced}[source](targets)
        square = tf.function(lambda batches: tf.reduce_mean(tf.square(next(batches) - 1.0)))

        def train(batches):
            """A worker's share: half of each batch."""
            share = iter(distribute._AutoShardDataset(distribute._LegacyRebatchDataset(batches, 2), 2, 0).prefetch(2))
            for _ in range(4):
                square(share)

        train(sharding.with_own_memory(dataset))
        self.assertAllEqual(targets, before)
        train(dataset)  # TensorFlow writes over them; once it no longer does, with_own_memory can go
        self.assertFalse((targets == before).all())

    def test_data_without_python_is_left_as_it_is(self):
        rows = tf.data.Dataset.range(10).map(lambda x: x + 1)
        self.assertIs(sharding.with_own_memory(rows), rows)

    def test_elements_keep_their_structure(self):
        def rows():
            yield {"a": [1.0, 2.0]}, b"text", tf.ragged.constant([[1], [2, 3]])

        spec = (
            {"a": tf.TensorSpec([2])},
            tf.TensorSpec([], tf.string),
            tf.RaggedTensorSpec([2, None], tf.int32),
        )
        dataset = sharding.with_own_memory(tf.data.Dataset.from_generator(rows, output_signature=spec))
        self.assertEqual(dataset.element_spec, spec)
        features, text, ragged = next(iter(dataset))
        self.assertAllEqual(features["a"], [1.0, 2.0])
        self.assertEqual(text, b"text")
        self.assertAllEqual(ragged, tf.ragged.constant([[1], [2, 3]]))


def _generated(rows):
    return tf.data.Dataset.from_generator(
        lambda: (rows[i : i + 16] for i in range(0, len(rows), 16)), output_signature=tf.TensorSpec([None, 1])
    )


def _sliced(rows):
    def batch(start):
        return tf.ensure_shape(tf.numpy_function(lambda i: rows[i : i + 16], [start], tf.float32), [None, 1])

    return tf.data.Dataset.range(0, len(rows), 16).map(batch)


def _aligned(rows):
    """A column of numbers, at an address at which TensorFlow uses an array where it lies."""
    memory = np.zeros(rows * 4 + 64, np.uint8)
    start = -memory.ctypes.data % 64
    values = memory[start : start + rows * 4].view(np.float32).reshape(rows, 1)
    values[:] = np.arange(rows, dtype=np.float32)[:, None]
    return values


if __name__ == "__main__":
    tf.test.main()
