"""tf_keras's `ModelCheckpoint`, whose files appear under their names when they are whole."""

from __future__ import annotations

import tf_keras

from tf_epgc.keras_integration.saving import write_whole


class TfKerasModelCheckpoint(tf_keras.callbacks.ModelCheckpoint):
    """`tf_keras.callbacks.ModelCheckpoint`, which sends the other workers' files to temporary folders.

    All of them save, since statistics are added up when they are read.
    """

    def _save_handler(self, filepath):
        save = super()._save_handler
        write_whole(lambda path: save(path), filepath, {})
