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


def correlations(first, second):
    """Spearman's rank correlation and Pearson's, NaN where one side is constant."""
    try:
        stats = importlib.import_module("scipy.stats")
    except ImportError as error:
        raise ImportError("Correlations need scipy: pip install 'keras_txf[tasks]'.") from error
    first, second = ([float(value) for value in values] for values in (first, second))
    if min(len(set(first)), len(set(second))) < 2:
        return {"spearman": float("nan"), "pearson": float("nan")}
    return {
        "spearman": float(stats.spearmanr(first, second).statistic),
        "pearson": float(stats.pearsonr(first, second).statistic),
    }
