"""Replaces a checkpoint atomically: at each moment the folder holds the old one or the new one.

The new files are written to a temporary folder within. When they are complete, one rename to `COMPLETE` makes them the
checkpoint: `file_of` looks there before it looks in the folder. Then the files move to their own places. Readers who do
not know `COMPLETE`, such as transformers, find no weights from before the first move until after the last one. The next
save completes one that was killed after the rename.
"""

import contextlib
import filecmp
import os

from keras_txf.atomic_write import atomic_folder, writing
from keras_txf.checkpoints.files import INDEX, ONE, shards_of
from keras_txf.checks import short_repr
from keras_txf.reading import COMPLETE


@contextlib.contextmanager
def atomic_checkpoint(folder):
    """Writes a checkpoint atomically: to a temporary folder, which it yields, then moves the files to `folder`.

    Raises:
        ValueError: the disk is full or read-only. The old checkpoint is as it was.
    """
    with writing("folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder):
            _move(folder)
            with atomic_folder(folder / COMPLETE) as temporary:
                yield temporary
                for file in temporary.iterdir():  # so that of a fine-tuned model the one file alone changes
                    known = folder / file.name
                    if file.name not in (ONE, INDEX) and known.is_file() and filecmp.cmp(file, known, shallow=False):
                        file.unlink()
            _move(folder)


def check_places(folder, names):
    """Refuses a directory that has the name of a file."""
    taken = sorted(
        name for name in {*names, ONE, INDEX} if (folder / name).is_dir() and not (folder / name).is_symlink()
    )
    if taken:
        raise ValueError(
            f"`folder` must have no directory in the place of a file; received {short_repr(str(folder))} with "
            f"{short_repr(taken)}."
        )


def _move(folder):
    """Moves the files of a complete save to their places, in an order in which a kill anywhere does no harm."""
    new = folder / COMPLETE
    if not new.is_dir():
        return
    names = {file.name for file in new.iterdir()}
    weights = names & {ONE, INDEX}
    if weights and (names != {ONE} or (folder / INDEX).exists()):  # one file alone replaces another by one rename
        _remove_weights(folder)
    for name in sorted(names - weights) + sorted(weights):
        os.replace(new / name, folder / name)
    new.rmdir()


def _remove_weights(folder):
    """Removes the old checkpoint's shards, then the index that names them, then the file with all tensors."""
    try:
        shards = set(shards_of(folder / INDEX).values())
    except ValueError:  # no index, or a broken one
        shards = ()
    for name in (*sorted(name for name in shards if name.endswith(".safetensors")), INDEX, ONE):
        if os.path.lexists(folder / name) and not (folder / name).is_dir():
            (folder / name).unlink()


@contextlib.contextmanager
def _lock(folder):
    """Waits while another thread or process saves to the folder, where the system has such locks: Windows has none."""
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
