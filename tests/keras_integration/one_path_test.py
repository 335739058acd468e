"""`BackupAndRestore` and `ModelCheckpoint` in one process: damaged files."""

import glob
import json
import os
import pathlib
import tempfile

import keras
import numpy as np
import tensorflow as tf
import tf_keras

import tf_epgc

METADATA = "training_metadata.json"


def _model(library=keras):
    library.utils.set_random_seed(3)
    model = library.Sequential([library.layers.InputLayer((5,)), library.layers.Dense(3)])
    model.compile(library.optimizers.Adam(0.01), "mse")
    return model


def _fit(model, epochs, *callbacks):
    return model.fit(np.ones((8, 5)), np.ones((8, 3)), epochs=epochs, verbose=0, callbacks=list(callbacks))


class PathCase(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())

    def backup(self, **arguments):
        return tf_epgc.BackupAndRestore(self.folder, delete_checkpoint=False, **arguments)

    def halve(self, path):
        with open(path, "r+b") as file:
            file.truncate(os.path.getsize(path) // 2)


class BackupTest(PathCase):
    def newest(self):
        metadata = json.loads(pathlib.Path(self.folder, METADATA).read_text())
        return os.path.join(self.folder, metadata["weights"])

    def assert_goes_on(self, epochs_left, *callbacks):
        """The run to 4 epochs trains so many, and ends as one that was not stopped."""
        model, whole = _model(), _model()
        self.assertLen(_fit(model, 4, *callbacks).history["loss"], epochs_left)
        _fit(whole, 4)
        for a, b in zip(model.get_weights(), whole.get_weights(), strict=True):
            self.assertEqual(a.tobytes(), b.tobytes())

    def test_half_a_file_is_refused(self):
        _fit(_model(), 2, self.backup())
        self.halve(self.newest())
        with self.assertRaisesRegex(
            ValueError,
            "cannot restore the backup in .*, the backup of epoch 2, is missing or damaged: use double_checkpoint=True "
            "to .*; remove the folder to start from the beginning",
        ):
            _fit(_model(), 3, self.backup())

    def test_half_the_metadata_is_refused(self):
        _fit(_model(), 2, self.backup())
        self.halve(os.path.join(self.folder, METADATA))
        with self.assertRaisesRegex(ValueError, f"{METADATA}' is damaged, or was not written by tf_epgc"):
            _fit(_model(), 3, self.backup())

    def test_a_backup_of_keras_is_refused(self):
        _fit(_model(), 2, keras.callbacks.BackupAndRestore(self.folder, delete_checkpoint=False))
        with self.assertRaisesRegex(ValueError, f"{METADATA}' is damaged, or was not written by tf_epgc"):
            _fit(_model(), 3, self.backup())

    def test_what_a_killed_writer_leaves_is_not_used(self):
        _fit(_model(), 2, self.backup())
        pathlib.Path(self.folder, METADATA + ".part").write_text('{"epoch": 3, "wei')
        pathlib.Path(self.folder, "0123.weights.h5").write_bytes(b"half")
        self.assert_goes_on(2, self.backup())
        self.assertLen(glob.glob(os.path.join(self.folder, "*.h5")), 1)

    def test_the_one_before_is_taken(self):
        for damage in (lambda: self.halve(self.newest()), lambda: self.halve(os.path.join(self.folder, METADATA))):
            _fit(_model(), 3, self.backup(double_checkpoint=True))
            damage()
            with self.assertLogs("tf_epgc", "WARNING") as logged:
                self.assert_goes_on(2, self.backup(double_checkpoint=True))
            self.assertIn("damaged", logged.output[0])
            self.assertIn("going on from the backup before it, of epoch 2", logged.output[0])
            tf.io.gfile.rmtree(self.folder)

    def test_the_whole_one_is_kept_beside_the_next(self):
        _fit(_model(), 2, self.backup(double_checkpoint=True))
        self.halve(self.newest())
        with self.assertLogs("tf_epgc", "WARNING"):
            _fit(_model(), 2, self.backup(double_checkpoint=True))  # from epoch 1; one backup more
        self.halve(self.newest())
        with self.assertLogs("tf_epgc", "WARNING"):
            self.assert_goes_on(3, self.backup(double_checkpoint=True))

    def test_a_checkpoint_leaves_no_part_behind(self):
        path = os.path.join(self.folder, "model.keras")
        _fit(_model(), 1, tf_epgc.ModelCheckpoint(path))
        self.assertEqual(os.listdir(self.folder), ["model.keras"])


class TfKerasBackupTest(PathCase):
    def refused(self, pattern):
        with self.assertRaisesRegex(ValueError, pattern + ".*; remove the folder to start from the beginning"):
            _fit(_model(tf_keras), 3, self.backup())

    def test_damaged_files_are_refused(self):
        _fit(_model(tf_keras), 2, self.backup())
        chief = os.path.join(self.folder, "chief")
        data = glob.glob(os.path.join(chief, "*.data-*"))[0]
        whole = pathlib.Path(data).read_bytes()
        self.halve(data)
        self.refused("ckpt-2' is damaged")
        pathlib.Path(data).write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        self.refused("ckpt-2' is damaged")
        pathlib.Path(data).write_bytes(whole)
        self.assertLen(_fit(_model(tf_keras), 4, self.backup()).history["loss"], 2)
        self.halve(os.path.join(chief, "checkpoint"))
        self.refused("chief' is damaged, or lacks its newest checkpoint")


if __name__ == "__main__":
    tf.test.main()
