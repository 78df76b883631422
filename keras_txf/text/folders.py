"""Writing a SavedModel so that its folder is there whole, or not at all."""

import os
import pathlib
import re
import shutil
import uuid

from keras_txf.checks import short_repr
from keras_txf.text.lazy import tf


def check_target(folder, overwrite):
    """Refuses a folder that exists, unless it is a SavedModel that may be replaced."""
    folder = pathlib.Path(folder)
    if folder.exists() and not (overwrite and (folder / "saved_model.pb").is_file()):
        hint = "holds no SavedModel: remove it yourself" if overwrite else "exists: overwrite=True replaces a SavedModel"
        raise ValueError(f"`folder` must be new; received {short_repr(str(folder))}, which {hint}.")


def fill(folder, write):
    """Lets `write` fill a folder beside this one, which then takes its place.

    Between the two renames that replace a folder neither is under the name. What a kill left then, or before, is removed by
    the next call that ends well: one process at a time may fill a folder.
    """
    folder = pathlib.Path(folder)
    new, old = (folder.parent / f".{folder.name}-{uuid.uuid4().hex}" for _ in range(2))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
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
        for name in os.listdir(folder.parent):
            if re.fullmatch(rf"\.{re.escape(folder.name)}-[0-9a-f]{{32}}", name):
                shutil.rmtree(folder.parent / name, ignore_errors=True)
    except (OSError, tf.errors.OpError) as error:
        reason = re.sub(r"\s+", " ", str(error).replace(str(new), str(folder)))[:300]
        raise OSError(f"`folder` must be a place that can be written to; received {short_repr(str(folder))}: {reason}.") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
