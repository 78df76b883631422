"""Resume: `fit` continues at the last saved epoch after a kill, and ends with the weights of an unbroken run."""

import functools
import io
import json
import math
import os
import zipfile
from collections.abc import Sequence

import keras
import numpy as np

from keras_txf import checks
from keras_txf.backend.random import generator_states, set_generator_states
from keras_txf.backend.tensors import is_first_process, whole_array
from keras_txf.checks import short_repr
from keras_txf.disk import atomic_file, reading, writing
from keras_txf.training.averaging import CompleteEpochs

PLAIN = (bool, int, float, str, type(None))


class Resume(CompleteEpochs):
    """Saves the state of the training at the end of each epoch, and restores it when `fit` runs again.

    The state is the weights, the optimizer with its step, the seeds of dropout, the number of the epoch, and the state
    of other callbacks. With data in a fixed order, a training that was killed and started again ends with the weights
    of an unbroken training. They are equal bit for bit if the backend is deterministic (on TensorFlow see
    `tf.config.experimental.enable_op_determinism`).

    With `steps_per_epoch` an epoch is any number of steps of an endless stream. A kill loses at most one epoch. The
    data must start at the saved epoch, which the attribute `epoch` holds before `fit` starts: skip
    `resume.epoch * steps_per_epoch` batches, or seed the shuffling of each epoch by its number.

    Several processes of one training, after `keras.distribution.initialize`, need one file on a shared disk: the first
    process writes the file, all processes read it.

    Keras' `BackupAndRestore` saves neither the seeds of dropout nor other callbacks. It returns to the start of an
    epoch with the weights of its middle, repeats the order of the first epoch of a data set, and overwrites its only
    copy. `CSVLogger(append=True)` repeats the row of an epoch that was complete but not yet saved.

    Args:
        file: the file, such as "runs/resume.npz", written atomically: to a temporary path, which is then renamed. The
            file remains when the training is complete: delete it to start again from the first epoch.
        callbacks: other callbacks of the same `fit` with a state from epoch to epoch, such as `EarlyStopping`,
            `ReduceLROnPlateau` or `ModelCheckpoint`. The file keeps the attributes that the training has changed and
            that are numbers, texts or lists of arrays.

    Attributes:
        epoch: the number of complete epochs; for `initial_epoch` and for the data. A training that another callback
            stopped at the end of an epoch is complete. If a callback such as `TerminateOnNaN` stops the training
            within an epoch, the epoch is not saved.

    Raises:
        ValueError: a `file` that is a folder; a disk that is full or read-only, which leaves an older file unchanged; a
            file that is broken, or of another model, optimizer or list of callbacks, which leaves all of them
            unchanged; a `fit` that starts at another epoch.

    Example:

    Put the callback last in the list, so that the other callbacks have finished when it saves.

    ```python
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=5)
    resume = txf.training.Resume("runs/resume.npz", callbacks=[stopping])
    stream = dataset.shuffle(10000, seed=1).batch(64).repeat().skip(resume.epoch * 500)
    model.fit(
        stream, steps_per_epoch=500, epochs=40, initial_epoch=resume.epoch, shuffle=False,
        validation_data=validation, callbacks=[stopping, resume],
    )
    ```
    """

    def __init__(self, file: str | os.PathLike, callbacks: Sequence[keras.callbacks.Callback] = ()):
        super().__init__()
        self.file = checks.path("file", file)
        if self.file.exists() and not self.file.is_file():
            raise ValueError(
                f"`file` must be a file, such as 'runs/resume.npz'; received {short_repr(str(file))}, which is a "
                "folder."
            )
        if not isinstance(callbacks, (list, tuple)) or not all(
            isinstance(one, keras.callbacks.Callback) for one in callbacks
        ):
            raise ValueError(f"`callbacks` must be a list of Keras callbacks; received {short_repr(callbacks)}.")
        self.callbacks = list(callbacks)
        self._at_begin = None
        self.epoch = 0
        if self.file.exists():
            with reading(self.file):
                self.epoch = _epoch(read_arrays(self.file, ["epoch"])["epoch"])

    def on_train_begin(self, logs=None):
        super().on_train_begin(logs)
        with writing("file", self.file):  # before the first epoch rather than after it
            self.file.parent.mkdir(parents=True, exist_ok=True)
        self._begun, self._generators, self._undo = False, {}, None
        if self._at_begin is None:  # once: a second `fit` begins with changed attributes
            self._at_begin = [_plain_state(callback) for callback in self.callbacks]
        if self.file.exists():
            with reading(self.file):
                self._restore(read_arrays(self.file))

    def on_epoch_begin(self, epoch, logs=None):
        if not self._begun and epoch != self.epoch:
            if self._undo is not None:
                self._undo()
            raise ValueError(
                f"`fit` must continue with epoch {self.epoch}; received epoch {epoch}. Pass "
                f"initial_epoch=resume.epoch, or delete {self.file} to start again."
            )
        self._begun, self._undo = True, None

    def on_train_batch_begin(self, batch, logs=None):
        # Not earlier: a new iterator over the data draws from PyTorch's generator.
        set_generator_states(self._generators)
        self._generators = {}

    def on_epoch_end(self, epoch, logs=None):
        model = self.model
        if self._stopped_inside:
            return
        self.epoch = self.params["epochs"] if model.stop_training else epoch + 1
        arrays = {"epoch": np.array(self.epoch), **generator_states()}
        for i, variable in enumerate(_variables(model)):
            arrays[f"variable_{i}"] = _as_numpy(variable)
        plain = []
        for i, (callback, begin) in enumerate(zip(self.callbacks, self._at_begin)):
            changed = {k: v for k, v in _plain_state(callback).items() if k not in begin or begin[k] != v}
            plain.append(changed)
            for name, values in _array_lists(callback):
                arrays.update({f"callback_{i}.{name}.{j}": value for j, value in enumerate(values)})
        arrays["callbacks"] = np.array(json.dumps(plain))
        if not is_first_process():  # the first process writes the same values
            return
        with writing("file", self.file), atomic_file(self.file) as temporary, open(temporary, "wb") as stream:
            np.savez(stream, **arrays)

    def _restore(self, saved):
        """Restores the saved state; checks all of it before any change."""
        variables, plain = _variables(self.model), _plain_states(saved.pop("callbacks"))
        epoch, values = _epoch(saved.pop("epoch")), _numbered(saved, "variable_")
        kinds, expected = list(map(_shape_and_kind, values)), [_shape_and_kind(_as_numpy(v)) for v in variables]
        if kinds != expected or len(plain) != len(self.callbacks):
            differing = [
                f" The first that differs is {short_repr(variable.path)}, {now}, in the file {then}."
                for variable, now, then in zip(variables, expected, kinds)
                if now != then
            ]
            raise ValueError(
                f"{short_repr(str(self.file))} must hold the state of this training, {len(expected)} variables and "
                f"{len(self.callbacks)} callbacks; received {len(kinds)} variables and {len(plain)} callbacks, of "
                f"another model, adapter, optimizer, backend or list of callbacks.{''.join(differing[:1])} Delete the "
                "file to start again."
            )
        for i, (callback, state) in enumerate(zip(self.callbacks, plain)):
            prefix = f"callback_{i}."
            for name in {key[len(prefix) :].rpartition(".")[0] for key in saved if key.startswith(prefix)}:
                state[name] = _numbered(saved, f"{prefix}{name}.")
            for name, value in state.items():
                if not _may_become(getattr(callback, name, None), value):
                    raise ValueError(f"`{name}` of {type(callback).__name__} must not become {short_repr(value)}")
        current = generator_states()
        generators = {name: saved.pop(name) for name in sorted(saved) if name.startswith("torch_generator_")}
        for name in current.keys() & generators.keys():
            if _shape_and_kind(generators[name]) != _shape_and_kind(current[name]):
                raise ValueError(
                    f"{name} must be a state of PyTorch's generator; received {short_repr(generators[name])}"
                )
        if saved:
            raise ValueError(f"it has arrays that no part of the training has; received {short_repr(sorted(saved))}")
        self.epoch, self._generators = epoch, generators
        before = [_as_numpy(variable) for variable in variables]
        states = [
            {name: getattr(callback, name, None) for name in state} for callback, state in zip(self.callbacks, plain)
        ]
        # For a `fit` that raises an error later.
        self._undo = functools.partial(_assign, variables, before, self.callbacks, states)
        _assign(variables, values, self.callbacks, plain)


def _assign(variables, values, callbacks, states):
    for variable, value in zip(variables, values):
        variable.assign(value)
    for callback, state in zip(callbacks, states):
        for name, value in state.items():
            setattr(callback, name, value)


def _epoch(saved):
    if saved.shape != () or saved.dtype.kind not in "iu" or saved < 0:
        raise ValueError(f"`epoch` must be a number of epochs; received {short_repr(saved)}")
    return int(saved)


def _plain_states(saved):
    """Parses the numbers and texts of each callback by name."""
    plain = json.loads(str(saved))
    are_dicts = isinstance(plain, list) and all(isinstance(state, dict) for state in plain)
    if not are_dicts or not all(isinstance(value, PLAIN) for state in plain for value in state.values()):
        raise ValueError(f"`callbacks` must be a list of dicts of numbers and texts; received {short_repr(plain)}")
    return plain


def _numbered(saved, prefix):
    """Takes the arrays of a list out of `saved`, in their order."""
    return [saved.pop(f"{prefix}{i}") for i in range(sum(name.startswith(prefix) for name in saved))]


def _may_become(before, value):
    """Whether an attribute may get a value: numbers, texts and lists keep their type, and None is always allowed."""
    kinds = ((bool, int, float, np.generic), str, list)
    if before is None or value is None:
        return isinstance(before, (type(None), *kinds[0], *kinds[1:]))
    return any(isinstance(before, kind) and isinstance(value, kind) for kind in kinds)


def _shape_and_kind(array):
    """The type and shape of an array as text, without its precision, which may differ in a file."""
    kinds = {"f": "float", "i": "int", "u": "unsigned int", "b": "bool"}
    return f"{kinds.get(array.dtype.kind, array.dtype.kind)} {array.shape}"


def _variables(model):
    """The variables that a training step changes, without metrics, in an order that depends on the model alone."""
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return [*model.variables, *model.optimizer.variables]  # unlike `weights`, with seed generators


def _as_numpy(x):
    """Converts a tensor to NumPy. bfloat16, which NumPy's files lack, becomes float32, which is exact."""
    array = whole_array(x)
    return array.astype("float32") if array.dtype.kind == "V" else array


def _plain_state(callback):
    """Returns the attributes of a callback that JSON can hold."""
    attributes = vars(callback).items()
    numbers = {name: value.item() if isinstance(value, np.generic) else value for name, value in attributes}
    # Not `min_delta`: Keras changes its sign in each new object, and would change the restored sign again.
    return {name: value for name, value in numbers.items() if isinstance(value, PLAIN) and name != "min_delta"}


def _array_lists(callback):
    for name, value in vars(callback).items():
        if isinstance(value, list) and value and all(isinstance(item, np.ndarray) for item in value):
            yield name, map(_as_numpy, value)


def read_arrays(path, names=None):
    """Reads arrays of a file of `np.savez` by name, and checks their checksums. The file may be damaged or hostile.

    Reading uses no pickle, and no more memory than the file has bytes. `names` None reads all arrays.

    Raises:
        Exception: `zipfile`, NumPy or this function names the damage; see `keras_txf.disk`.
    """
    with zipfile.ZipFile(path) as archive:
        stored = [member.filename.removesuffix(".npy") for member in archive.infolist()]
        if len(set(stored)) < len(stored):
            raise ValueError(f"it has an array twice, of {short_repr(sorted(stored))}")
        members = dict(zip(stored, archive.infolist()))
        return {name: _array(archive, members[name]) for name in (stored if names is None else names)}


def _array(archive, member):
    name, size = short_repr(member.filename), archive.fp.seek(0, io.SEEK_END)
    if member.compress_type != zipfile.ZIP_STORED or not member.file_size == member.compress_size <= size:
        raise ValueError(
            f"{name} of {member.file_size} bytes must be stored without compression in the {size} bytes of the file"
        )
    content = io.BytesIO(archive.read(member))
    version = np.lib.format.read_magic(content)
    if version not in HEADERS:
        raise ValueError(f"{name} must be of a version of {sorted(HEADERS)}; received {version}")
    shape, in_columns, dtype = HEADERS[version](content)
    data = content.read()
    if dtype.hasobject or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(
            f"{name} of shape {short_repr(shape)} and type {short_repr(str(dtype))} does not fit its {len(data)} bytes"
        )
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if in_columns else "C")
    return array.copy(order="K")  # a buffer is read-only


HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
