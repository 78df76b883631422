"""The origin of a loaded model as files, beside a `.keras` file, which cannot hold it."""

import json
import pathlib

import keras
from safetensors.numpy import load_file, save_file

from keras_txf.checkpoints.generation_config import give_generate_defaults
from keras_txf.checkpoints.loading import PROVENANCE, Provenance, set_origin
from keras_txf.checkpoints.saving import FREE, write_beside
from keras_txf.models.generate_defaults import share_generate_defaults
from keras_txf.reading import read_json

ORIGIN, KEPT, SKIPPED = "origin.json", "kept.safetensors", "skipped.safetensors"


def has_origin(model: keras.Model) -> bool:
    """Whether `load` returned the model, or `read_origin` gave the model an origin."""
    return model in PROVENANCE


def write_origin(model: keras.Model, folder: pathlib.Path) -> None:
    """Writes what `save` needs to know of a loaded model: config.json, the files of the tokenizer, leftover tensors.

    Args:
        model: a model with an origin.
        folder: path of a new folder.
    """
    origin = PROVENANCE[model]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(origin.config, indent=1), encoding="utf-8")
    content = {"task": origin.task, "options": sorted(origin.options.keys() - FREE), "prefix": origin.prefix}
    (folder / ORIGIN).write_text(json.dumps(content), encoding="utf-8")
    for name, tensors in ((KEPT, origin.kept), (SKIPPED, origin.skipped)):
        if tensors:
            save_file(tensors, folder / name)
    write_beside(folder, origin)


def read_origin(model: keras.Model, folder: pathlib.Path) -> None:
    """Gives a model the origin that `write_origin` wrote, so that `save` knows the model."""
    content = read_json(folder / ORIGIN)
    kept, skipped = (load_file(folder / name) if (folder / name).is_file() else {} for name in (KEPT, SKIPPED))
    options = dict.fromkeys(content["options"])  # `save` refuses them by name
    config = read_json(folder / "config.json")
    set_origin(model, Provenance(folder, config, content["task"], options, kept, skipped, content["prefix"]))
    give_generate_defaults(model, folder, config)


def share_origin(model: keras.Model, other: keras.Model) -> None:
    """Gives another model of the same weights the origin of a model."""
    set_origin(other, PROVENANCE[model])
    share_generate_defaults(model, other)


def move_origin(model: keras.Model, before: pathlib.Path, after: pathlib.Path) -> None:
    """Tells a model's origin that the files of its folder were moved, if these are what it began from."""
    origin = PROVENANCE.get(model)
    if origin is not None and origin.folder is not None and origin.folder.absolute() == before.absolute():
        origin.folder = after
