"""Scores of held-out examples at the end of each epoch."""

import keras


class EpochScores(keras.callbacks.Callback):
    """Adds `val_` scores to the logs of each epoch, for the callbacks after it.

    Args:
        function: a function that returns a dict of scores.
    """

    def __init__(self, function):
        super().__init__()
        self.function = function

    def on_epoch_end(self, epoch, logs=None):
        if logs is not None:
            logs.update({f"val_{name}": score for name, score in self.function().items()})
