"""Atomic writes: after a process is killed, a file or folder is either complete or unchanged.

The content is written to a temporary path next to the target, which is then renamed to the target.
"""

import contextlib
import os
import pathlib
import re
import shutil
import uuid

from safetensors import SafetensorError

from keras_txf.checks import short_repr


@contextlib.contextmanager
def atomic_file(path):
    """Yields a temporary path for the content of a file, and then renames it to `path`.

    Makes the folder of the file. An error within the scope removes the temporary file, and an older file is unchanged.

    Example:

    ```python
    with writing("file", file), atomic_file(file) as temporary:
        temporary.write_bytes(content)
    ```
    """
    path = pathlib.Path(path)
    temporary = path.with_name(f"unfinished.{path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def atomic_folder(folder):
    """Yields a temporary folder next to `folder` for its content, and then renames it to `folder`.

    Makes the parent folders. An older folder is renamed first and removed last; between the two renames no folder has
    the name. After an error within the scope the older folder is unchanged. The next call removes the temporary folders
    of killed processes, so only one process at a time may write a folder.
    """
    folder = pathlib.Path(folder)
    new, old = (folder.with_name(f".{kind}-{uuid.uuid4().hex}.{folder.name}") for kind in ("unfinished", "replaced"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers("unfinished", folder)
    try:
        new.mkdir()
        yield new
        replaced = folder.exists()
        if replaced:
            os.rename(folder, old)
        try:
            os.rename(new, folder)
        except OSError:
            if replaced:
                os.rename(old, folder)
            raise
        _remove_leftovers("replaced", folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def copy_others(folder, new, names):
    """Copies the files and folders of an older folder, except `names`, to the new folder. Links stay links."""
    for file in folder.iterdir() if folder.is_dir() else ():
        if file.name in names:
            continue
        if file.is_dir() and not file.is_symlink():
            shutil.copytree(file, new / file.name, symlinks=True)
        else:
            shutil.copy2(file, new / file.name, follow_symlinks=False)


@contextlib.contextmanager
def writing(name, path, *errors):
    """Turns an error of the disk within the scope into a ValueError that names the argument `name` and the path.

    Args:
        name: the argument with the path.
        path: the target.
        *errors: exceptions of the library that writes, in addition to those of Python and of safetensors.
    """
    try:
        yield
    except (OSError, SafetensorError, *errors) as error:
        reason = re.sub(r"\s+", " ", re.sub(r"(\.unfinished-[0-9a-f]{32}|unfinished)\.", "", str(error)))[:300]
        raise ValueError(f"`{name}` must be a writable path; received {short_repr(str(path))}: {reason}.") from error


def check_room(path, size):
    """Raises OSError if `size` bytes do not fit on the disk, else makes a file of this size at `path`.

    HDF5 may end the process if it finds a full disk: h5py 3 does so while it closes the file.
    """
    if hasattr(os, "posix_fallocate"):  # on Linux
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)


def _remove_leftovers(kind, folder):
    """Removes the temporary folders next to `folder` of killed calls; `kind` is "unfinished" or "replaced"."""
    for name in os.listdir(folder.parent):
        if re.fullmatch(rf"\.{kind}-[0-9a-f]{{32}}\.{re.escape(folder.name)}", name):
            shutil.rmtree(folder.parent / name, ignore_errors=True)
