"""The config.json that `save` writes, with values updated from the model, and the names of the classes in it."""

import json
import os
from typing import Any

import keras

from keras_txf import checks
from keras_txf.checkpoints.building import find_family, has_own_logits
from keras_txf.checkpoints.checkpoint_info import find_checkpoint_info
from keras_txf.checkpoints.config import Config
from keras_txf.checkpoints.family import LANGUAGE_MODELS
from keras_txf.checkpoints.generation_config import NAME
from keras_txf.checks import short_repr
from keras_txf.disk import file_of, read_json
from keras_txf.layers.token_input import inputs_by_name, logits_of, target_name, token_input


def new_config(model, info, family, dtype):
    """Returns the values of config.json, updated by the dtype, the classes and the tying of the model."""
    known = family.tasks[info.task]
    values = {**info.config, **({} if info.prefix is not None else {"architectures": [known.architecture]})}
    if "pad_id" in info.options:
        values = with_pad_id(values, model, info, family)
    values.pop("torch_dtype", None)
    values["dtype"] = dtype or dtype_of(model.weights[0])
    number = known.options(Config(info.config)).get("num_classes")
    if number is not None:
        number, before = logits_of(model).shape[-1], number
        if number != before and known.classes_key is not None:
            values[known.classes_key] = number
        elif number != before:
            values["id2label"] = {str(i): f"LABEL_{i}" for i in range(number)}
            values["label2id"] = {f"LABEL_{i}": i for i in range(number)}
            for key in ("num_labels", "_num_labels", "problem_type"):  # keys of the old head
                values.pop(key, None)
    elif info.task in LANGUAGE_MODELS and family.tie_key_is_for_logits:  # the defaults of transformers' classes differ
        values["tie_word_embeddings"] = not has_own_logits(model)
        for other, own in Config(info.config).synonyms.items():
            if own == "tie_word_embeddings":  # which counts before it
                values.pop(other, None)
    return values


def with_pad_id(values, model, info, family):
    """Adds `pad_token_id`; raises ValueError if config.json cannot express the model's padding token."""
    name = "token_ids" if "token_ids" in inputs_by_name(model) else target_name(model)
    pad_id = token_input(model, name).pad_id
    changed = {**values, "pad_token_id": pad_id}
    before, after = (_plain_options(family, config) for config in (values, changed))
    if after.pop("pad_id") != pad_id or {**before, "pad_id": None} != {**after, "pad_id": None}:
        raise ValueError(
            f"`model` must have a padding token that config.json can hold; received pad_id={short_repr(pad_id)}, which "
            "also ends texts, or moves the positions, of this family. Pass `config`."
        )
    return changed


def _plain_options(family, values):
    found = family.options(Config(values))
    return {name: value for name, value in found.items() if isinstance(value, (int, float, str, type(None)))}


def dtype_of(weight):
    return keras.backend.standardize_dtype(weight.dtype)


def update_generation_config(folder, values):
    """Writes the padding token of config.json into a copied `generation_config.json` that has a different token."""
    path = folder / NAME
    if path.is_file() and "pad_token_id" in values:
        copied = read_json(path)
        if copied.get("pad_token_id") not in (None, values["pad_token_id"]):
            write_json(path, {**copied, "pad_token_id": values["pad_token_id"]})


def write_json(path, values):
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def labels_of(folder: str | os.PathLike, head: str) -> list[str] | None:
    """Returns the names of the classes of a classifier's checkpoint in their order; None if it has a different head.

    Args:
        folder: a folder in the format of Hugging Face.
        head: "SequenceClassification" or "TokenClassification", a part of the architecture's name.

    Raises:
        ValueError: a missing folder, or a damaged file.
    """
    values = read_json(file_of(checks.path("folder", folder), "config.json"))
    if not any(head in name for name in values.get("architectures") or ()):
        return None
    names = values.get("id2label") or {str(i): f"LABEL_{i}" for i in range(Config(values).num_classes())}
    if not isinstance(names, dict) or set(names) != {str(i) for i in range(len(names))}:
        raise ValueError(f"config.json must have 'id2label' of the classes 0, 1, ...; received {short_repr(names)}.")
    return [names[str(i)] for i in range(len(names))]


def problem_type_of(folder: str | os.PathLike, head: str) -> str | None:
    """Returns the `problem_type` of a classifier's checkpoint; None if it is missing, or the head is different."""
    values = read_json(file_of(checks.path("folder", folder), "config.json"))
    has_head = any(head in name for name in values.get("architectures") or ())
    return values.get("problem_type") if has_head else None


def config_with_labels(model: keras.Model, labels: Any, problem_type: str | None = None) -> dict[str, Any]:
    """Returns the config.json of a loaded model with new names of the classes, for `save`.

    Args:
        model: a classifier from `load`.
        labels: list of C names.
        problem_type: "single_label_classification", "multi_label_classification" or "regression"; None for no such key.

    Raises:
        ValueError: a model that `load` did not return, or whose options no config.json can hold.
    """
    info = find_checkpoint_info(model, None)
    names = [str(label) for label in labels]
    values = {**info.config, "architectures": [find_family(info.config).tasks[info.task].architecture]}
    for key in ("num_labels", "_num_labels", "problem_type"):
        values.pop(key, None)
    values |= {} if problem_type is None else {"problem_type": problem_type}
    values["id2label"] = {str(i): name for i, name in enumerate(names)}
    values["label2id"] = {name: i for i, name in enumerate(names)}
    return values
