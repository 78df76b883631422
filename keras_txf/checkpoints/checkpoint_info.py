"""`CheckpointInfo`: what `save` needs to know about the checkpoint that a model was loaded from."""

import collections
import dataclasses
import json
import pathlib
import shutil
import weakref

import keras
from safetensors.numpy import load_file

from keras_txf import checks
from keras_txf.checkpoints.building import family_values, find_family, task_of
from keras_txf.checkpoints.generation_config import load_generate_defaults
from keras_txf.checks import short_repr
from keras_txf.disk import COMPLETE, file_of, read_json, save_tensors, within
from keras_txf.generation.option_tables import share_generate_defaults

ORIGIN, KEPT, SKIPPED = "origin.json", "kept.safetensors", "skipped.safetensors"
# Files that are copied with the weights of a checkpoint.
COMPANIONS = ("tokenizer*", "chat_template*", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json",
          "spiece.model", "spm.model", "sentencepiece.bpe.model", "source.spm", "target.spm", "target_vocab.json",
          "generation_config.json", "preprocessor_config.json")  # fmt: skip
# Options of `load` without an effect on the logits, and `pad_id`, which config.json holds.
FREE = {"name", "return_hidden_states", "return_attention_scores", "token_type_ids", "packed", "dropout",
        "embedding_dropout", "attention_dropout", "feed_forward_dropout", "head_dropout", "stochastic_depth",
        "max_length", "pad_id"}  # fmt: skip


@dataclasses.dataclass
class CheckpointInfo:
    """The checkpoint that a model was loaded from, for `save`.

    Args:
        folder, config, task, options: folder, values of `config.json`, task and the caller's options of `load`.
        kept: tensors of the file that did not become weights, by their names in the file.
        skipped: first rows of tables that did not become weights, by the names of the tables.
        prefix: prefix of the body's names in a file whose class no builder makes, and which `save` writes again; else
            None.
        files: contents of the tokenizer's files that differ from the files of the folder, by their names.
    """

    folder: pathlib.Path
    config: dict
    task: str
    options: dict
    kept: dict = dataclasses.field(default_factory=dict)
    skipped: dict = dataclasses.field(default_factory=dict)
    prefix: str | None = None
    files: dict = dataclasses.field(default_factory=dict)


CHECKPOINT_INFO = weakref.WeakKeyDictionary()


def set_checkpoint_info(model, info):
    """Stores the `CheckpointInfo` of a model, here and without its tensors in the model's `.keras` files."""
    CHECKPOINT_INFO[model] = info
    lost = sorted([*info.kept, *info.skipped])
    model.checkpoint = json.dumps([info.config, info.task, sorted(info.options), info.prefix, lost])


def checkpoint_info_of(model):
    """Returns the `CheckpointInfo` of a loaded model, or of its copy from a `.keras` file; else None."""
    if model in CHECKPOINT_INFO or getattr(model, "checkpoint", None) is None:
        return CHECKPOINT_INFO.get(model)
    config, task, options, prefix, lost = json.loads(model.checkpoint)
    if lost:
        raise ValueError(
            f"`model` must have all tensors of its checkpoint, which a .keras file does not hold; it lacks "
            f"{short_repr(lost)}. Save the model that `load` returns, or pass `config`."
        )
    return CheckpointInfo(None, config, task, dict.fromkeys(options), prefix=prefix)


def find_checkpoint_info(model, config):
    """Returns the `CheckpointInfo` of the model, from its own checkpoint or from the caller's `config`."""
    if config is None:
        info = checkpoint_info_of(model)
        if info is None:
            raise ValueError(
                "`config` must be a dict of config.json or a folder with one for a model that `load` did not return, "
                "such as a clone; received None. `family` derives one for a model from a builder."
            )
        changed = sorted(info.options.keys() - FREE)
        if changed:
            raise ValueError(
                f"`model` was loaded with options that config.json cannot hold: {short_repr(changed)}. Pass `config`."
            )
        return info
    check_unique_paths(model)
    return info_of_config(model, config)


def info_of_config(model, config):
    """Returns the `CheckpointInfo` of a model for a config.json: a dict, or the path of a folder."""
    folder = None if isinstance(config, dict) else checks.path("config", config)
    values = dict(config) if folder is None else read_json(file_of(folder, "config.json"), "config")
    values = family_values(values)
    tasks = find_family(values).tasks
    task = task_of(values, tasks)
    if task is None:
        names = sorted(known.architecture for known in tasks.values())
        raise ValueError(
            f"`config` must name one of {names} in `architectures`; received {short_repr(values.get('architectures'))}."
        )
    before = CHECKPOINT_INFO.get(model)
    if before is None or (before.task, find_family(before.config)) != (task, find_family(values)):
        return CheckpointInfo(folder, values, task, {})
    kept = before.kept if before.prefix is None else {}  # tensors of another class
    return CheckpointInfo(folder or before.folder, values, task, {}, kept, before.skipped, files=before.files)


def check_unique_paths(model):
    """Raises ValueError if two weights have one path, as in two encoders: a checkpoint has one tensor for each path."""
    counts = collections.Counter(weight.path for weight in model.weights)
    path, count = max(counts.items(), key=lambda item: item[1], default=("", 1))
    if count > 1:
        raise ValueError(
            f"`model` must have one weight of each path, as a checkpoint has; received {count} of {short_repr(path)}. "
            "Pass each of its inner models by itself."
        )


def write_companion_files(folder, info):
    """Writes the files that belong to the weights of a checkpoint into a folder."""
    for name, file in companion_files(info.folder).items():
        shutil.copyfile(file, folder / name)
    for name, text in info.files.items():
        (folder / name).write_text(text, encoding="utf-8")


def companion_files(folder):
    """Returns the files to copy with the weights of a folder: dict of names -> paths.

    Raises:
        ValueError: a link that leads out of the folder.
    """
    folders = (folder, folder / COMPLETE) if folder else ()
    files = (file for one in folders for pattern in COMPANIONS for file in one.glob(pattern) if file.is_file())
    return {file.name: within(folder, file) for file in files}


def has_checkpoint_info(model: keras.Model) -> bool:
    """Whether `load` returned the model, or `read_checkpoint_info` gave the model its `CheckpointInfo`."""
    return model in CHECKPOINT_INFO


def write_checkpoint_info(model: keras.Model, folder: pathlib.Path) -> None:
    """Writes what `save` needs to know of a loaded model: config.json, the files of the tokenizer, leftover tensors.

    Args:
        model: a model with a `CheckpointInfo`.
        folder: path of a new folder.
    """
    info = CHECKPOINT_INFO[model]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(info.config, indent=1), encoding="utf-8")
    content = {"task": info.task, "options": sorted(info.options.keys() - FREE), "prefix": info.prefix}
    (folder / ORIGIN).write_text(json.dumps(content), encoding="utf-8")
    for name, tensors in ((KEPT, info.kept), (SKIPPED, info.skipped)):
        if tensors:
            save_tensors(tensors, folder / name)
    write_companion_files(folder, info)


def read_checkpoint_info(model: keras.Model, folder: pathlib.Path) -> None:
    """Sets the `CheckpointInfo` that `write_checkpoint_info` wrote, so that `save` knows the model."""
    content = read_json(folder / ORIGIN)
    kept, skipped = (load_file(folder / name) if (folder / name).is_file() else {} for name in (KEPT, SKIPPED))
    options = dict.fromkeys(content["options"])  # `save` names them in an error
    config = read_json(folder / "config.json")
    set_checkpoint_info(
        model, CheckpointInfo(folder, config, content["task"], options, kept, skipped, content["prefix"])
    )
    load_generate_defaults(model, folder, config)


def share_checkpoint_info(model: keras.Model, other: keras.Model) -> None:
    """Gives another model with the same weights the `CheckpointInfo` of a model."""
    set_checkpoint_info(other, CHECKPOINT_INFO[model])
    share_generate_defaults(model, other)


def move_checkpoint_info(model: keras.Model, before: pathlib.Path, after: pathlib.Path) -> None:
    """Updates the folder of a model's `CheckpointInfo` after the files of the folder were moved."""
    info = CHECKPOINT_INFO.get(model)
    if info is not None and info.folder is not None and info.folder.absolute() == before.absolute():
        info.folder = after
