"""Writing a file so that it is there whole, or as it was, and after an epoch that was whole."""

import contextlib
import os
import pathlib

import keras


@contextlib.contextmanager
def whole(file):
    """Yields a path to write to, in a folder that is made; the file then gets its own name, and takes an older one's place."""
    file = pathlib.Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f"unfinished.{file.name}")
    yield unfinished
    os.replace(unfinished, file)


class WholeEpochs(keras.callbacks.Callback):
    """Knows at the end of an epoch whether it was stopped inside, by a callback that comes before this one."""

    async_safe = True  # Keras may call `on_train_batch_end` from a thread of its own

    def on_train_begin(self, logs=None):
        self._stopped_inside = False
        self._trained = self.model  # on JAX to ask for `model` within an epoch would bring its state back, each time

    def on_train_batch_end(self, batch, logs=None):
        self._stopped_inside = self._trained.stop_training
