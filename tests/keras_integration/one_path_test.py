"""`BackupAndRestore` and `ModelCheckpoint` in one process: damaged files."""

import glob
import os
import tempfile

import keras
import numpy as np
import tensorflow as tf

import tf_epgc


def _model():
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def _fit(model, epochs, *callbacks):
    return model.fit(np.ones((8, 5)), np.ones((8, 3)), epochs=epochs, verbose=0, callbacks=list(callbacks))


class BackupTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())

    def _backup(self, **arguments):
        return tf_epgc.BackupAndRestore(self.folder, delete_checkpoint=False, **arguments)

    def _damage_newest(self):
        newest = max(glob.glob(os.path.join(self.folder, "*.weights.h5")), key=os.path.getmtime)
        with open(newest, "r+b") as file:
            file.truncate(os.path.getsize(newest) // 2)

    def test_half_a_file_is_refused(self):
        _fit(_model(), 2, self._backup())
        self._damage_newest()
        with self.assertRaisesRegex(ValueError, "missing or damaged; remove .* or use double_checkpoint=True"):
            _fit(_model(), 3, self._backup())

    def test_the_one_before_is_taken(self):
        _fit(_model(), 3, self._backup(double_checkpoint=True))
        self._damage_newest()
        model, whole = _model(), _model()
        history = _fit(model, 4, self._backup(double_checkpoint=True))
        _fit(whole, 4)
        self.assertLen(history.history["loss"], 2)
        for a, b in zip(model.get_weights(), whole.get_weights(), strict=True):
            self.assertEqual(a.tobytes(), b.tobytes())

    def test_a_checkpoint_leaves_no_part_behind(self):
        path = os.path.join(self.folder, "model.keras")
        _fit(_model(), 1, tf_epgc.ModelCheckpoint(path))
        self.assertEqual(os.listdir(self.folder), ["model.keras"])


if __name__ == "__main__":
    tf.test.main()
