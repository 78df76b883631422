"""Scores of held-out examples at the end of each epoch."""

import importlib

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


def spearman(first, second):
    """Spearman's rank correlation, NaN where one side is constant."""
    try:
        stats = importlib.import_module("scipy.stats")
    except ImportError as error:
        raise ImportError("Spearman's correlation needs scipy: pip install 'keras_txf[tasks]'.") from error
    if min(map(len, map(set, (map(float, first), map(float, second))))) < 2:
        return float("nan")
    return float(stats.spearmanr(first, second).statistic)
