"""Describes a folder of Hugging Face without loading its weights, and lists the model types that load."""

import collections
import dataclasses
import os
import warnings

from keras_txf.checkpoints.building import family_values, find_family
from keras_txf.checkpoints.families import FAMILIES
from keras_txf.checkpoints.files import find, open_tensors
from keras_txf.checkpoints.generation_config import load_generate_defaults
from keras_txf.checkpoints.loading import build_without_values, check_not_adapter, match_weights, warn_of_images
from keras_txf.checkpoints.source import Source
from keras_txf.disk import file_of, read_json

BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}  # of one number; else 1
UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


@dataclasses.dataclass(frozen=True)
class Description:
    """What `describe` finds in a folder. `print` shows it in a few lines.

    Args:
        folder: the path of the folder.
        model_type: the `model_type` of config.json, or None.
        task: the task for which `load(folder)` builds the model, or None if it does not load.
        tasks: the tasks that `load(folder, task)` takes.
        parameters: the number of values in the files of weights.
        bytes: the size of these values, in the dtypes of the files.
        dtypes: the dtypes in the files, such as "BF16", the most frequent first.
        problem: why `load(folder)` raises an error, or None.
        notes: the warnings of `load(folder)`.
    """

    folder: str
    model_type: str | None
    task: str | None
    tasks: tuple[str, ...]
    parameters: int
    bytes: int
    dtypes: tuple[str, ...]
    problem: str | None
    notes: tuple[str, ...]

    def __str__(self):
        rows = {
            "model type": self.model_type or "none in config.json",
            "task": self.task or "-",
            "other tasks": ", ".join(task for task in self.tasks if task != self.task) or "-",
            "parameters": f"{self.parameters:,}",
            "weights": f"{_size(self.bytes)} as stored ({', '.join(self.dtypes)}), "
            f"{_size(4 * self.parameters)} in float32, {_size(2 * self.parameters)} in bfloat16",
            "loads": "yes" if self.problem is None else f"no: {self.problem}",
        }
        lines = [self.folder, *(f"  {name:12} {text}" for name, text in rows.items())]
        return "\n".join([*lines, *(f"  {'note':12} {note}" for note in self.notes)])


def families() -> dict[str, tuple[str, ...]]:
    """Returns the model types that `load` reads and `save` writes: `model_type` of config.json -> tasks.

    Example:

    >>> txf.checkpoints.families()["llama"]
    ('causal_lm', 'encoder', 'sequence_classification', 'token_classification')
    """
    return {kind: tuple(family.tasks) for kind, family in sorted(FAMILIES.items())}


def describe(path: str | os.PathLike, revision: str | None = None) -> Description:
    """Describes a folder of Hugging Face: its model type, tasks and sizes, and whether and why `load` refuses it.

    The weights are not read, only their names and shapes. `python -m keras_txf describe FOLDER` prints the result.

    Args:
        path: a folder with `config.json` and safetensors, or the name of a repository on the Hub, as for `load`.
        revision: branch, tag or commit of a repository.

    Raises:
        ValueError: no such folder, an adapter of peft, no file of weights, or a damaged file.

    Example:

    >>> import tempfile
    >>> model = txf.models.decoder_generator(
    ...     100, 2, 32, 4, intermediate_dim=40, gated=True, activation="silu", use_bias=False, norm="rms",
    ...     norm_epsilon=1e-6, norm_placement="pre", position="rotary", scale_embedding=False, pad_id=None)
    >>> folder = tempfile.mkdtemp()
    >>> txf.checkpoints.save(model, folder, family="llama")
    >>> found = txf.checkpoints.describe(folder)
    >>> found.model_type, found.task, found.parameters == model.count_params(), found.problem
    ('llama', 'causal_lm', True, None)
    """
    folder = find(path, revision)
    check_not_adapter(folder)
    values = read_json(file_of(folder, "config.json"))
    kind, task, tasks, problem = values.get("model_type"), None, (), None
    with open_tensors(folder) as tensors, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        numbers = collections.Counter()
        for name in tensors:
            numbers[tensors.dtype(name)] += tensors.size(name)
        try:
            values = family_values(values)
            family = find_family(values)
            tasks = tuple(family.tasks)
            source = Source(values, family, tensors, kind)
            model, chosen, new_head, _ = build_without_values(folder, source, None, None, None, {})
            match_weights(model, source, chosen, new_head, new_head, {})
            warn_of_images(folder, kind, values)
            load_generate_defaults(model, folder, values)
            task = chosen
        except ValueError as error:
            problem = str(error)
    return Description(
        str(folder),
        kind,
        task,
        tasks,
        numbers.total(),
        sum(BYTES.get(dtype, 1) * number for dtype, number in numbers.items()),
        tuple(dtype for dtype, _ in numbers.most_common()),
        problem,
        tuple(str(warning.message) for warning in caught if warning.category is UserWarning),
    )


def _size(number):
    unit, size = next(((unit, size) for unit, size in UNITS if number >= size), UNITS[-1])
    return f"{number / size:,.1f} {unit}"
