"""The folder of a task: model.keras, task.json with tokenizer and labels, README.md, the model card.

For a task of a checkpoint, the folder "checkpoint" holds the data that saving in Hugging Face's format needs. In that
format task.json, next to the files of transformers, has the task's options and the names of these files.
"""

import hashlib
import json
import os
import pathlib
import re
import shutil

import keras

from keras_txf import checkpoints
from keras_txf.checkpoints.checkpoint_info import (
    has_checkpoint_info,
    move_checkpoint_info,
    read_checkpoint_info,
    share_checkpoint_info,
    write_checkpoint_info,
)
from keras_txf.checks import bad_argument, short_repr
from keras_txf.disk import atomic_file, atomic_folder, check_archive, copy_others, file_of, read_json, reading, writing

FILE, MODEL, CARD, CHECKPOINT = "task.json", "model.keras", "README.md", "checkpoint"


def save(folder, task):
    """Writes the folder atomically. Other files of an older folder stay."""
    folder = pathlib.Path(os.path.abspath(folder))
    here = pathlib.Path.cwd()
    if pathlib.Path(os.path.realpath(folder)) in (here, *here.parents):
        must = "not be the current folder or a folder around it, since it is replaced as a whole"
        raise bad_argument("folder", must, str(folder))
    if folder.is_dir() and any(folder.iterdir()) and not (folder / FILE).is_file():
        raise bad_argument("folder", "be new, empty, or the folder of a task", str(folder))
    tokenizers = {name: keras.saving.serialize_keras_object(one) for name, one in tokenizers_of(task).items()}
    card, before = card_of(task), _content_of(folder)
    with writing("folder", folder), atomic_folder(folder) as new:
        task.model.save(new / MODEL)
        _write(new / FILE, task, card, tokenizers=tokenizers)
        if has_checkpoint_info(task.checkpoint_model()):
            write_checkpoint_info(task.checkpoint_model(), new / CHECKPOINT)
        copy_others(folder, new, (FILE, MODEL, CHECKPOINT, *_own_files(before)))
        _write_card(new / CARD, card, before.get("card"))
    move_checkpoint_info(task.checkpoint_model(), folder, folder / CHECKPOINT)


def save_checkpoint(folder, task):
    """Writes the folder in Hugging Face's format, and a task.json for the data that the format cannot hold."""
    before = _content_of(folder)
    others = {file.name for file in folder.iterdir()} - {*_own_files(before)} if folder.is_dir() else set()
    model, card = task.checkpoint_model(), card_of(task)
    checkpoints.save(model, folder, config=task._checkpoint_config())
    with writing("folder", folder):
        task._save_beside(folder)
        own = sorted({file.name for file in folder.iterdir()} - {FILE, MODEL, CHECKPOINT, CARD} - others)
        with atomic_file(folder / FILE) as new:
            _write(new, task, card, files=own)
        (folder / MODEL).unlink(missing_ok=True)
        shutil.rmtree(folder / CHECKPOINT, ignore_errors=True)
        _write_card(folder / CARD, card, before.get("card"))
    move_checkpoint_info(model, folder / CHECKPOINT, folder)


def load(folder, cls):
    """Loads a task of class `cls`, or makes one of a checkpoint."""
    if not folder.is_dir():
        raise bad_argument("folder", "be the folder of a task", str(folder))
    path, shown = folder / FILE, short_repr(str(folder))
    if not path.is_file():
        if file_of(folder, "config.json").is_file():
            return cls.from_checkpoint(folder)
        names = short_repr(sorted(file.name for file in folder.iterdir()))
        must = f"hold {FILE}, which `save` writes, or config.json of a checkpoint"
        raise ValueError(f"`folder` must {must}; received {shown} with {names}.")
    content = read_json(path)
    of_checkpoint = "files" in content
    if not of_checkpoint and not (folder / MODEL).is_file():
        raise bad_argument("folder", f"hold {MODEL} next to {FILE}", str(folder))
    if content.get("task") != cls.__name__:
        if of_checkpoint:
            return cls.from_checkpoint(folder)
        raise ValueError(f"`folder` must hold a {cls.__name__}; received {shown} of {short_repr(content.get('task'))}.")
    types = (
        {"options": dict, "record": list} if of_checkpoint else {"options": dict, "record": list, "tokenizers": dict}
    )
    for name, type_ in types.items():
        if not isinstance(content.get(name), type_):
            must = f"hold a {FILE} with a {type_.__name__} as {name}"
            value = short_repr(content.get(name))
            raise ValueError(f"`folder` must {must}; received {value} in {short_repr(str(path))}.")
    if of_checkpoint:
        return _with_options(cls.from_checkpoint(folder), path, content)
    with reading(path):
        tokenizers = {
            name: keras.saving.deserialize_keras_object(config) for name, config in content["tokenizers"].items()
        }
    task = _made(cls, path, _load_model(folder / MODEL), tokenizers, content)
    if (folder / CHECKPOINT).is_dir():
        read_checkpoint_info(task.checkpoint_model(), folder / CHECKPOINT)
    return task


def _load_model(path):
    with reading(path):
        check_archive(path)
        try:
            return keras.models.load_model(path, compile=False)
        except Exception as error:
            unknown = re.search(r"Could not locate (class|function) '([^']+)'", str(error))
            if unknown is None:
                raise
            raise ValueError(
                f"{short_repr(str(path))} cannot be read before the {unknown[1]} {short_repr(unknown[2])} of its model "
                "is registered: decorate it with `@keras.saving.register_keras_serializable()`, and import it before "
                "`load`."
            ) from error


def _with_options(loaded, path, content):
    """Returns a task of a checkpoint, with options that its folder cannot hold, such as `max_length`."""
    options = content["options"]
    labels = loaded.labels
    if labels is not None and list(map(str, options.get("labels") or ())) != labels:
        options = {**options, "labels": labels}  # another program changed the checkpoint
        options.pop("thresholds", None)  # numbers for the labels of before
    if "problem_type" in options:
        options = {**options, "problem_type": loaded.problem_type}
    task = _made(type(loaded), path, loaded.model, tokenizers_of(loaded), {**content, "options": options})
    share_checkpoint_info(loaded.checkpoint_model(), task.checkpoint_model())
    return task


def _made(cls, path, model, tokenizers, content):
    with reading(path):
        task = cls(model, **tokenizers, **content["options"])
    # Records of earlier versions held the command line, perhaps with secrets of the user.
    task.record = [{name: value for name, value in run.items() if name != "command"} for run in content["record"]]
    return task


def _write(path, task, card, **more):
    content = {"task": type(task).__name__, "options": task.get_config(), **more, "record": task.record}
    content["card"] = hashlib.sha256(card).hexdigest()
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _content_of(folder):
    """Returns the content of a folder's task.json; an empty dict for a missing or damaged file."""
    try:
        return read_json(folder / FILE)
    except ValueError:
        return {}


def _own_files(content):
    """Returns the names of the files that `save_checkpoint` wrote next to the task.json with this content."""
    names = content.get("files")
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return names if is_list else ()


def _write_card(path, card, digest):
    """Writes README.md, unless the file exists with another digest: a user wrote or edited it."""
    if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() == digest:
        path.write_bytes(card)


def tokenizers_of(task):
    """Returns the tokenizers of a task by the name of the argument."""
    return {name: getattr(task, name) for name in ("tokenizer", "target_tokenizer") if getattr(task, name, None)}


def card_of(task):
    """Returns the model card as bytes: task, model, data, scores and script."""
    name = type(task).__name__
    lines = [
        "---", "library_name: keras_txf", f"tags: [{name}]", "---", "",
        f"# {name}", "",
        f"A model of {task.model.count_params():,} parameters and a tokenizer of {task.tokenizer.vocab_size:,} tokens, "
        f"for texts of up to {task.max_length} tokens.", "",
    ]  # fmt: skip
    if task.labels:
        lines += ["Labels: " + ", ".join(map(str, task.labels)) + ".", ""]
    for run in task.record:
        by = f" by `{run['script']}`" if run.get("script", "").endswith(".py") else ""
        scores = "".join(f"| {score} | {value:.4f} |\n" for score, value in run["scores"].items())
        lines += [
            f"Trained for {run['epochs']} epochs on {run['examples']:,} examples{by}:", "",
            "| score of the last epoch | |", "| --- | --- |", scores,
        ]  # fmt: skip
    lines += [
        "```python", "import keras_txf as txf", "", f'task = txf.tasks.{name}.load("path/of/this/folder")', "```", "",
    ]  # fmt: skip
    return "\n".join(lines).encode("utf-8")
