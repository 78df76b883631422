"""What the examples read and write: data from a local copy or a public download, and the trained model."""

import os
import pathlib
import sys

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


def save(model, folder, name):
    """Writes `folder`/`name`.keras: under another name first, so that what bears the name is whole."""
    path = pathlib.Path(folder) / f"{name}.keras"
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{name}.unfinished.keras")
    model.save(unfinished)
    os.replace(unfinished, path)
    print(f"Wrote {path}.")
