"""Writing a file so that it is there whole, or as it was, and after an epoch that was whole."""

import contextlib
import os
import pathlib

import keras

from keras_txf.writing import writing


@contextlib.contextmanager
def whole(file, name="file"):
    """Yields a path to write to, in a folder that is made; the file then gets its own name, and takes an older one's place.

    Raises:
        ValueError: the disk is full or read-only; an older file is as it was. `name` is the argument in the message.
    """
    file = pathlib.Path(file)
    unfinished = file.with_name(f"unfinished.{file.name}")
    with writing(name, file):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield unfinished
            os.replace(unfinished, file)
        except BaseException:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise


class WholeEpochs(keras.callbacks.Callback):
    """Knows at the end of an epoch whether it was stopped inside, by a callback that comes before this one."""

    async_safe = True  # Keras may call `on_train_batch_end` from a thread of its own

    def on_train_begin(self, logs=None):
        self._stopped_inside = False
        self._trained = self.model  # on JAX to ask for `model` within an epoch would bring its state back, each time

    def on_train_batch_end(self, batch, logs=None):
        self._stopped_inside = self._trained.stop_training
