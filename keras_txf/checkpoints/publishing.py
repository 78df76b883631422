"""A checkpoint takes the place of another one whole: at each moment the folder holds the old one or the new one.

The new files are written to a folder within, `.saving-...`. When they are complete, one rename to `COMPLETE` makes them
the checkpoint: `file_of` finds each there before it looks in the folder. Then they move to their own places. Readers who do
not know `COMPLETE`, such as transformers, find no weights from before the first move until after the last one. A save
that was killed after the rename is finished by the next one.
"""

import contextlib
import filecmp
import os
import pathlib
import shutil
import uuid

from keras_txf.checkpoints.files import INDEX, ONE, shards_of
from keras_txf.checks import short_repr
from keras_txf.reading import COMPLETE
from keras_txf.writing import writing

UNFINISHED = ".saving-"


@contextlib.contextmanager
def published(folder):
    """Yields a new folder to write to, whose files take their places in `folder` at the end.

    Raises:
        ValueError: the disk is full or read-only. The old checkpoint is as it was.
    """
    with writing("folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            _move(folder)
            for left in folder.glob(f"{UNFINISHED}*"):
                shutil.rmtree(left, ignore_errors=True)
            new = folder / f"{UNFINISHED}{uuid.uuid4().hex}"
            new.mkdir()
            try:
                yield new
                for file in new.iterdir():  # so that a fine-tuned model's one file is all that changes
                    known = folder / file.name
                    if file.name not in (ONE, INDEX) and known.is_file() and filecmp.cmp(file, known, shallow=False):
                        file.unlink()
                os.rename(new, folder / COMPLETE)
            finally:
                shutil.rmtree(new, ignore_errors=True)
            _move(folder)


def check_places(folder, names):
    """Refuses directories in the places of files."""
    taken = sorted(name for name in {*names, ONE, INDEX} if (folder / name).is_dir() and not (folder / name).is_symlink())
    if taken:
        raise ValueError(f"`folder` must have no directory in the place of a file; received {short_repr(str(folder))} with {short_repr(taken)}.")


def _move(folder):
    """Moves the files of a complete save to their places, in an order that may be cut off and begun again anywhere."""
    new = folder / COMPLETE
    if not new.is_dir():
        return
    names = {file.name for file in new.iterdir()}
    weights = names & {ONE, INDEX}
    if weights and (names != {ONE} or (folder / INDEX).exists()):  # one file alone replaces another one at once
        _remove_weights(folder)
    for name in sorted(names - weights) + sorted(weights):
        os.replace(new / name, folder / name)
    new.rmdir()


def _remove_weights(folder):
    """Removes the old checkpoint's shards, then the index that names them, then the file that goes before an index."""
    try:
        shards = set(shards_of(folder / INDEX).values())
    except ValueError:  # no index, or a broken one
        shards = ()
    for name in (*sorted(name for name in shards if name.endswith(".safetensors")), INDEX, ONE):
        if os.path.lexists(folder / name) and not (folder / name).is_dir():
            (folder / name).unlink()


@contextlib.contextmanager
def _alone(folder):
    """Waits while another thread or process saves to the folder, where the system has locks: Windows has none of these."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network disks have no locks either
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
