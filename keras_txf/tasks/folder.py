"""The folder of a task: model.keras, task.json with tokenizer and labels, README.md, the model card.

Of a task that began from a checkpoint, the folder "checkpoint" holds what saving in the format of Hugging Face needs.
"""

import json
import shutil

import keras

from keras_txf.atomic_write import atomic_folder, writing
from keras_txf.checkpoints.origin_files import has_origin, read_origin, write_origin
from keras_txf.checks import short_repr
from keras_txf.reading import file_of, read_json

FILE, MODEL, CARD, CHECKPOINT = "task.json", "model.keras", "README.md", "checkpoint"


def save(folder, task):
    """Writes the folder atomically. Other files of an older folder stay."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / FILE).is_file():
        raise ValueError(
            f"`folder` must be new, empty or of a task; received {short_repr(str(folder))} with other files."
        )
    content = {
        "task": type(task).__name__,
        "options": task.get_config(),
        "tokenizers": {
            name: keras.saving.serialize_keras_object(tokenizer) for name, tokenizer in tokenizers_of(task).items()
        },
        "record": task.record,
    }
    with writing("folder", folder), atomic_folder(folder) as new:
        task.model.save(new / MODEL)
        (new / FILE).write_text(json.dumps(content, indent=1), encoding="utf-8")
        if has_origin(task.checkpoint_model()):
            write_origin(task.checkpoint_model(), new / CHECKPOINT)
        for file in folder.iterdir() if folder.is_dir() else ():
            if file.name not in (FILE, MODEL, CHECKPOINT):
                (shutil.copytree if file.is_dir() else shutil.copy2)(file, new / file.name)
        write_card(new, task)


def holds_task(folder):
    """Whether a folder is of a task, or else of a checkpoint; refuses another."""
    if not folder.is_dir():
        raise ValueError(f"`folder` must be the folder of a task; there is none at {short_repr(str(folder))}.")
    if not (folder / FILE).is_file() and not file_of(folder, "config.json").is_file():
        raise ValueError(
            f"`folder` must hold {FILE}, which `save` writes, or config.json of a checkpoint; received "
            f"{short_repr(str(folder))} with {short_repr(sorted(path.name for path in folder.iterdir()))}."
        )
    return (folder / FILE).is_file()


def load(folder, cls):
    content = read_json(folder / FILE)
    if not (folder / MODEL).is_file():
        raise ValueError(f"`folder` must hold {MODEL} beside {FILE}; received {short_repr(str(folder))} without.")
    if content.get("task") != cls.__name__:
        raise ValueError(
            f"`folder` must hold a {cls.__name__}; received {short_repr(str(folder))} of {content.get('task')}."
        )
    tokenizers = {name: keras.saving.deserialize_keras_object(config) for name, config in content["tokenizers"].items()}
    task = cls(keras.models.load_model(folder / MODEL, compile=False), **tokenizers, **content["options"])
    task.record = content["record"]
    if (folder / CHECKPOINT).is_dir():
        read_origin(task.checkpoint_model(), folder / CHECKPOINT)
    return task


def tokenizers_of(task):
    """The tokenizers of a task, by the names of its arguments."""
    return {name: getattr(task, name) for name in ("tokenizer", "target_tokenizer") if getattr(task, name, None)}


def write_card(folder, task):
    """Writes README.md, unless there is one: task, model, data, scores and command."""
    if (folder / CARD).exists():
        return
    name = type(task).__name__
    lines = [
        "---", "library_name: keras_txf", f"tags: [{name}]", "---", "",
        f"# {name}", "",
        f"A model of {task.model.count_params():,} parameters and a tokenizer of {task.tokenizer.vocab_size:,} tokens, "
        f"for texts of up to {task.max_length} tokens.", "",
    ]  # fmt: skip
    if getattr(task, "labels", None):
        lines += ["Labels: " + ", ".join(map(str, task.labels)) + ".", ""]
    for run in task.record:
        scores = "".join(f"| {score} | {value:.4f} |\n" for score, value in run["scores"].items())
        lines += [
            f"Trained for {run['epochs']} epochs on {run['examples']:,} examples by `{run['command']}`:", "",
            "| score of the last epoch | |", "| --- | --- |", scores,
        ]  # fmt: skip
    lines += [
        "```python",
        "import keras_txf as txf",
        "",
        f'task = txf.tasks.{name}.load("path/of/this/folder")',
        "```",
        "",
    ]
    (folder / CARD).write_text("\n".join(lines), encoding="utf-8")
