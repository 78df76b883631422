"""The mean of the last checkpoints: a callback that keeps the files, and a function that averages them."""

import math
import os
import re
from collections.abc import Sequence

import keras
import ml_dtypes  # noqa: F401  NumPy learns bfloat16 from it
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.disk import atomic_file, check_room, reading, writing


class CompleteEpochs(keras.callbacks.Callback):
    """The base of callbacks that save at the end of an epoch, unless a callback stopped the training within it."""

    async_safe = True  # Keras may call `on_train_batch_end` from another thread

    def on_train_begin(self, logs=None):
        self._stopped_inside = False
        self._trained = self.model  # on JAX each access to `model` within an epoch copies the state back

    def on_train_batch_end(self, batch, logs=None):
        self._stopped_inside = self._trained.stop_training


SUFFIX = ".weights.h5"
OVERHEAD = 2048  # the most bytes that a variable takes in Keras' files in addition to its values; 1,050 are usual


class KeepCheckpoints(CompleteEpochs):
    """Saves the weights at the end of each epoch, and keeps the last files for `average_checkpoints`.

    `model.save_weights` writes the files `epoch_00001.weights.h5` and so on, atomically: to a temporary path, which is
    then renamed. Keras' `ModelCheckpoint` keeps one file or all files. If a callback stops the training within an
    epoch, the epoch is not saved: put this callback after callbacks such as `TerminateOnNaN`, or a NaN would enter
    every mean.

    Args:
        folder: a folder for this training only.
        keep: the number of files to keep, the files of the last epochs.

    Raises:
        ValueError: `folder` is a file or not a path; the folder has files of later epochs than the first of `fit`; the
            disk is full or read-only. The files of earlier epochs are then unchanged.

    Example:

    ```python
    model.fit(x, y, epochs=40, callbacks=[txf.training.KeepCheckpoints("runs/checkpoints", keep=10)])
    txf.training.average_checkpoints(model, "runs/checkpoints")
    ```
    """

    def __init__(self, folder: str | os.PathLike, keep: int = 10):
        super().__init__()
        self.folder = checks.path("folder", folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"`folder` must be a folder; received {short_repr(str(folder))}, which is a file.")
        self.keep = checks.positive_integer("keep", keep)

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        self._begun = False
        with writing("folder", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)

    def on_epoch_begin(self, epoch, logs=None):
        # A training that resumes may repeat one epoch, whose file was written just before the kill.
        later = [file.name for file in _checkpoints(self.folder) if _epoch(file) > epoch + 1]
        if later and not self._begun:
            raise ValueError(
                f"`folder` must have no checkpoints after the epoch at which `fit` begins, {epoch}; {self.folder} "
                f"has {', '.join(later[:3])}{' ...' * (len(later) > 3)}, of another training. Remove these "
                "files or choose another folder."
            )
        self._begun = True

    def on_epoch_end(self, epoch, logs=None):
        if self._stopped_inside:
            return
        file = self.folder / f"epoch_{epoch + 1:05}{SUFFIX}"
        with writing("folder", file), atomic_file(file) as temporary:
            variables = _all_variables(self.model)
            check_room(temporary, sum(_bytes(variable) + OVERHEAD for variable in variables) + 16 * OVERHEAD)
            self.model.save_weights(temporary, overwrite=True)
        for file in _checkpoints(self.folder)[: -self.keep]:
            file.unlink()


def average_checkpoints(model: keras.Model, checkpoints: str | os.PathLike | Sequence[str | os.PathLike]) -> None:
    """Sets the model's weights to the mean of several checkpoints, as the paper does with its last 5 to 20.

    Use this function after the training. For an exponential average during the training, Keras has `use_ema=True` of
    every optimizer and the callback `SwapEMAWeights`.

    Args:
        model: a built model.
        checkpoints: the folder of `KeepCheckpoints`, or a list of files that `model.load_weights` reads. The last file
            gives the weights that are not floats, and the optimizer's state if the files have it.

    Raises:
        ValueError: no checkpoint, or a file that is missing, broken or of another model. The weights of the model are
            then unchanged.

    Reference:
        [Attention Is All You Need](https://arxiv.org/abs/1706.03762), section 6.1.
    """
    checks.built_model("model", model)
    files = _files(checkpoints)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
    variables = [variable for variable in model.weights if keras.backend.is_float_dtype(variable.dtype)]
    sums = [np.zeros(variable.shape, "float64") for variable in variables]
    before = [(variable, ops.convert_to_numpy(variable)) for variable in _all_variables(model)]
    try:
        for file in files:
            with reading(file):
                model.load_weights(file)
            for total, variable in zip(sums, variables):
                total += ops.convert_to_numpy(variable).astype("float64")
    except BaseException:
        for variable, value in before:
            variable.assign(value)
        raise
    for total, variable in zip(sums, variables):
        variable.assign(total / len(files))


def _files(checkpoints):
    """Returns the files to average. Raises ValueError if one is missing."""
    if isinstance(checkpoints, (str, os.PathLike)):
        folder = checks.path("checkpoints", checkpoints)
        if folder.is_dir() and (files := _checkpoints(folder)):
            return files
    elif isinstance(checkpoints, (list, tuple)) and checkpoints:
        files = [checks.path("checkpoints", file) for file in checkpoints]
        for file in files:
            if not file.is_file():
                raise ValueError(
                    f"`checkpoints` must be files that exist; received {short_repr(str(file))}, which does not."
                )
        return files
    raise ValueError(
        "`checkpoints` must be a folder with files of `KeepCheckpoints`, or a list of files; received "
        f"{short_repr(checkpoints)}."
    )


def _checkpoints(folder):
    """Returns the files of a folder in the order of their epochs."""
    return sorted((file for file in folder.iterdir() if _epoch(file) is not None), key=_epoch)


def _epoch(file):
    """Returns the epoch in the name of a file of `KeepCheckpoints`, None for other files.

    Files are sorted by epoch: as text, 100000 would come before 99999.
    """
    match = re.fullmatch(rf"epoch_(\d{{5,}}){re.escape(SUFFIX)}", file.name, re.ASCII)
    return int(match[1]) if match else None


def _all_variables(model):
    return [*model.variables, *(model.optimizer.variables if getattr(model, "optimizer", None) else ())]


def _bytes(variable):
    return math.prod(variable.shape) * np.dtype(keras.backend.standardize_dtype(variable.dtype)).itemsize
