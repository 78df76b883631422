"""What the examples read and write: options, data from a local copy or a public download, and the trained model."""

import argparse
import contextlib
import datetime
import json
import pathlib
import shlex
import sys

from keras_txf.disk import atomic_file  # before Keras: the package keeps TensorFlow's start-up lines away

# isort: split
import keras


def find(folder, address, files):
    """Paths of the data files, by name.

    Args:
        folder: a local copy of the files, taken as it is, or None: download them.
        address: the public folder that holds them.
        files: dict of names and SHA-256 sums; a download that differs is refused.
    """
    if folder is None:
        return {name: _download(f"{address}/{name}", name, sha256) for name, sha256 in files.items()}
    paths = {name: pathlib.Path(folder) / name for name in files}
    missing = [name for name, path in paths.items() if not path.is_file()]
    if missing:
        sys.exit(f"error: --data {folder} lacks {', '.join(missing)}.")
    return paths


def _download(url, name, sha256):
    try:
        return pathlib.Path(keras.utils.get_file(name, url, file_hash=sha256, cache_subdir="keras_txf"))
    except Exception as error:  # Keras raises a bare Exception where the network fails
        sys.exit(f"error: could not download {url} ({error}); pass a local copy with --data DIR.")


def positive(text):
    """A count among the options, as the `type` of an argument."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def refuse_training_options(parser, options, *names):
    """Ends with an error if one of these was given: for a call that trains nothing."""
    for name in names:
        if getattr(options, name) != parser.get_default(name):
            option = name.replace("_", "-")
            parser.error(f"argument --{option}: is for training, and with these arguments nothing is trained")


def claim(folder, **options):
    """Notes in `folder` what a training was begun with; one with other options must not go on from there."""
    path = pathlib.Path(folder) / "options.json"
    if not path.is_file():
        write(path, json.dumps(options))
    begun = json.loads(path.read_text(encoding="utf-8"))
    if begun != options:
        sys.exit(f"error: {folder} holds a training with {begun}, this one has {options}; pass another --out.")


def write(path, text):
    """Writes a text file atomically: to a temporary path, then renames it."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def log(folder, name="log", append=False):
    """A callback that writes what `fit` measures in each epoch to `folder`/`name`.csv, anew or after what is there."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return keras.callbacks.CSVLogger(folder / f"{name}.csv", append=append)


def report(folder, result):
    """Prints a result, and adds it to `folder`/results.txt with the time and the command that it is of."""
    print(result)
    command = shlex.join((pathlib.Path(sys.argv[0]).name, *sys.argv[1:]))
    with (pathlib.Path(folder) / "results.txt").open("a", encoding="utf-8") as file:
        file.write(f"{datetime.datetime.now():%Y-%m-%d %H:%M} {command}: {result}\n")


def save(model, folder, name, **texts):
    """Writes `folder`/`name`.keras and a .txt file for each text atomically: to temporary paths, then renames them."""
    folder = pathlib.Path(folder)
    with contextlib.ExitStack() as stack:
        model.save(stack.enter_context(atomic_file(folder / f"{name}.keras")))
        for key, text in texts.items():
            stack.enter_context(atomic_file(folder / f"{key}.txt")).write_text(text, encoding="utf-8")
    print(f"Wrote {folder / name}.keras.")


def load(folder, name, *texts):
    """The model and the texts that `save` wrote."""
    folder = pathlib.Path(folder)
    missing = [file for file in (f"{name}.keras", *(f"{key}.txt" for key in texts)) if not (folder / file).is_file()]
    if missing:
        sys.exit(f"error: {folder} lacks {', '.join(missing)}, written when a training ends: train a model first.")
    model = keras.models.load_model(folder / f"{name}.keras")
    return model, *((folder / f"{key}.txt").read_text(encoding="utf-8") for key in texts)
