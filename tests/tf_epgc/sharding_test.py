"""How many files a data set reads, and when they are too few for the workers."""

import os

import tensorflow as tf
from absl.testing import parameterized

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


if __name__ == "__main__":
    tf.test.main()
