"""The mean of the last checkpoints: a callback that keeps them, a function that averages them."""

import os
import pathlib

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.training.whole import WholeEpochs, whole

SUFFIX = ".weights.h5"


class KeepCheckpoints(WholeEpochs):
    """Saves the weights at the end of each epoch, and keeps the last of them for `average_checkpoints`.

    The files are those of `model.save_weights`, `epoch_00001.weights.h5` and so on. Each is written under
    another name and moved into place, so that what bears a number is whole. Keras' `ModelCheckpoint` keeps
    one file or all of them. An epoch that was stopped inside leaves none: put this after what stops there,
    such as `TerminateOnNaN`, or a NaN would be part of every mean.

    Args:
        folder: a folder for this training alone.
        keep: the number of files that stay.

    Raises:
        ValueError: `fit` begins at an epoch and the folder has files of later ones.

    Example:

    ```python
    model.fit(x, y, epochs=40, callbacks=[txf.training.KeepCheckpoints("runs/checkpoints", keep=10)])
    txf.training.average_checkpoints(model, "runs/checkpoints")
    ```
    """

    def __init__(self, folder, keep=10):
        super().__init__()
        self.folder = pathlib.Path(folder)
        self.keep = checks.positive_integer("keep", keep)

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._begun = False
        self.folder.mkdir(parents=True, exist_ok=True)

    def on_epoch_begin(self, epoch, logs=None):
        # A training that goes on may repeat one epoch, whose file was written just before the kill.
        last = self.folder / f"epoch_{epoch + 1:05}{SUFFIX}"
        later = [file.name for file in _checkpoints(self.folder) if file > last]
        if later and not self._begun:
            raise ValueError(
                f"`folder` must have no checkpoints beyond the epoch at which `fit` begins, {epoch}; {self.folder} "
                f"has {', '.join(later)}, of another training. Remove them or choose another folder."
            )
        self._begun = True

    def on_epoch_end(self, epoch, logs=None):
        if self._stopped_inside:
            return
        with whole(self.folder / f"epoch_{epoch + 1:05}{SUFFIX}") as unfinished:
            self.model.save_weights(unfinished, overwrite=True)
        for file in _checkpoints(self.folder)[: -self.keep]:
            file.unlink()


def average_checkpoints(model, checkpoints):
    """Sets the model's weights to the mean of several checkpoints', as the paper does with its last 5 to 20.

    All count alike, and the training knows nothing of it. For an average that is exponential and at hand
    during the training, Keras has `use_ema=True` of every optimizer and the callback `SwapEMAWeights`.

    Args:
        model: a built model.
        checkpoints: the folder of `KeepCheckpoints`, or a list of files that `model.load_weights` reads.

    Weights that are not floats, and the optimizer's state where the files have it, are the last file's.

    Raises:
        ValueError: no checkpoint.

    Reference:
        [Attention Is All You Need](https://arxiv.org/abs/1706.03762), section 6.1.
    """
    is_folder = isinstance(checkpoints, (str, os.PathLike))
    files = _checkpoints(pathlib.Path(checkpoints)) if is_folder else list(checkpoints)
    if not files:
        raise ValueError(
            f"`checkpoints` must be a folder with files of `KeepCheckpoints`, or a list of files; received {short_repr(checkpoints)}."
        )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
    variables = [variable for variable in model.weights if keras.backend.is_float_dtype(variable.dtype)]
    sums = [np.zeros(variable.shape, "float64") for variable in variables]
    for file in files:
        model.load_weights(file)
        for total, variable in zip(sums, variables):
            total += ops.convert_to_numpy(variable).astype("float64")
    for total, variable in zip(sums, variables):
        variable.assign(total / len(files))


def _checkpoints(folder):
    """The files of a folder, the oldest first."""
    return sorted(folder.glob(f"epoch_*{SUFFIX}"))
