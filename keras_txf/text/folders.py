"""Writing a SavedModel so that its folder is there whole, or not at all."""

import os
import pathlib
import shutil
import uuid

from keras_txf.checks import short_repr


def check_target(folder, overwrite):
    """Refuses a folder that exists, unless it is a SavedModel that may be replaced."""
    folder = pathlib.Path(folder)
    if folder.exists() and not (overwrite and (folder / "saved_model.pb").is_file()):
        hint = "holds no SavedModel: remove it yourself" if overwrite else "exists: overwrite=True replaces a SavedModel"
        raise ValueError(f"`folder` must be new; received {short_repr(str(folder))}, which {hint}.")


def fill(folder, write):
    """Lets `write` fill a folder beside this one, which then takes its place."""
    folder = pathlib.Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    new, old = (folder.parent / f".{folder.name}-{uuid.uuid4().hex}" for _ in range(2))
    try:
        write(str(new))
        replaced = folder.exists()
        if replaced:
            os.rename(folder, old)
        try:
            os.rename(new, folder)
        except OSError:
            if replaced:
                os.rename(old, folder)
            raise
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)
