"""The names of the classes in a config.json."""

import os
from typing import Any

import keras

from keras_txf import checks
from keras_txf.checkpoints.building import find_family
from keras_txf.checkpoints.config import Config
from keras_txf.checkpoints.saving import find_origin
from keras_txf.checks import short_repr
from keras_txf.reading import file_of, read_json


def labels_of(folder: str | os.PathLike, head: str) -> list[str] | None:
    """Returns the names of the classes of a classifier's checkpoint in their order; None where it has another head.

    Args:
        folder: a folder in the format of Hugging Face.
        head: "SequenceClassification" or "TokenClassification", a part of the architecture's name.

    Raises:
        ValueError: no such folder, or a damaged file.
    """
    values = read_json(file_of(checks.path("folder", folder), "config.json"))
    if not any(head in name for name in values.get("architectures") or ()):
        return None
    names = values.get("id2label") or {str(i): f"LABEL_{i}" for i in range(Config(values).num_classes())}
    if not isinstance(names, dict) or set(names) != {str(i) for i in range(len(names))}:
        raise ValueError(f"config.json must have 'id2label' of the classes 0, 1, ...; received {short_repr(names)}.")
    return [names[str(i)] for i in range(len(names))]


def problem_type_of(folder: str | os.PathLike, head: str) -> str | None:
    """Returns the `problem_type` of a classifier's checkpoint; None where it has none, or another head."""
    values = read_json(file_of(checks.path("folder", folder), "config.json"))
    has_head = any(head in name for name in values.get("architectures") or ())
    return values.get("problem_type") if has_head else None


def config_with_labels(model: keras.Model, labels: Any, problem_type: str | None = None) -> dict[str, Any]:
    """Returns the config.json of a loaded model with other names of the classes, for `save`.

    Args:
        model: a classifier from `load`.
        labels: list of C names.
        problem_type: "single_label_classification", "multi_label_classification" or "regression"; None for no such key.

    Raises:
        ValueError: a model that `load` did not return, or whose options no config.json can hold.
    """
    origin = find_origin(model, None)
    names = [str(label) for label in labels]
    values = {**origin.config, "architectures": [find_family(origin.config).tasks[origin.task].architecture]}
    for key in ("num_labels", "_num_labels", "problem_type"):
        values.pop(key, None)
    values |= {} if problem_type is None else {"problem_type": problem_type}
    values["id2label"] = {str(i): name for i, name in enumerate(names)}
    values["label2id"] = {name: i for i, name in enumerate(names)}
    return values
