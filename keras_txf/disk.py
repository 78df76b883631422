"""Files: errors of damaged files that name the file, and atomic writes.

After a process is killed, a file or folder is either complete or unchanged. The content is written to a temporary path
next to the target, which is then renamed to the target.
"""

import collections
import contextlib
import json
import os
import pathlib
import re
import shutil
import uuid
import zipfile

from safetensors import SafetensorError
from safetensors.numpy import save_file

from keras_txf.checks import short_repr

LARGEST_JSON = 10**8  # bytes; the limit of safetensors for a header
DEEPEST_JSON = 32
MOST_COMPRESSED = 100  # times; Keras itself does not compress
LONGEST_REASON = 600  # characters of another package's error, which may contain any part of the file
POINTER = b"version https://git-lfs.github.com/spec/"  # first bytes of a pointer of Git LFS
COMPLETE = ".complete-save"  # subfolder of a checkpoint: complete files of a save that was killed while it moved them


@contextlib.contextmanager
def reading(*paths):
    """Turns an error within the scope, which reads files of one folder, into a ValueError that names the files.

    Errors that already name the files, an OSError of a file, and the ImportError of a missing package pass unchanged.

    Example:

    ```python
    with reading(path):
        header = json.loads(path.read_text())["header"]
    ```
    """
    try:
        yield
    except ImportError:
        raise
    except BaseException as error:
        # A panic of a Rust package is not an Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        for path in () if isinstance(error, OSError) else paths:
            refuse_pointer(path)
        names = [short_repr(str(path)) if path is paths[0] else path.name for path in paths]
        if isinstance(error, OSError) and error.filename is not None:
            raise
        if isinstance(error, ValueError) and all(name in str(error) for name in names):
            raise
        raise ValueError(f"{', '.join(names)} cannot be read: {_reason(error)}") from error


def refuse_pointer(path):
    """Raises ValueError for a pointer of Git LFS, the placeholder of a large file that Git has not fetched."""
    start = b""
    if os.path.isfile(path):  # a pipe would block
        with contextlib.suppress(OSError), open(path, "rb") as file:
            start = file.read(len(POINTER))
    if start == POINTER:
        raise ValueError(
            f"{short_repr(str(path))} is a pointer of Git LFS, not the file itself. Run `git lfs pull` in its folder, "
            "or load the repository by its name on the Hub."
        )


def file_of(folder, name):
    """Returns the path of a file in a checkpoint's folder, or in its subfolder `COMPLETE` after a killed save."""
    new = pathlib.Path(folder) / COMPLETE / name
    return new if os.path.isfile(new) else pathlib.Path(folder) / name


def within(folder, path):
    """Returns the path of a file in a folder; raises ValueError if the path, with links resolved, leaves the folder.

    In the Hub's cache links to the folder `blobs` next to `snapshots` are allowed.
    """
    folder, target = pathlib.Path(os.path.realpath(folder)), pathlib.Path(os.path.realpath(path))
    homes = [folder, *([folder.parents[1] / "blobs"] if folder.parent.name == "snapshots" else [])]
    if not any(target.is_relative_to(home) for home in homes):
        raise ValueError(
            f"`folder` must contain its files; received {short_repr(str(path))}, which leads out of it, to "
            f"{short_repr(str(target))}."
        )
    return path


def read_json(path, name="folder"):
    """Reads the dict of a JSON file; `name` is the argument in the message."""
    path = pathlib.Path(path)
    refuse_pointer(path)
    try:
        if not path.is_file():  # reading a pipe would block
            raise ValueError("there is no such file")
        if path.stat().st_size > LARGEST_JSON:
            raise ValueError(f"it has {path.stat().st_size} bytes, and the limit is {LARGEST_JSON}")
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"`{name}` must hold a readable {path.name}; received {short_repr(str(path))}: {error}."
        ) from None


def check_archive(path):
    """Raises ValueError for a `.keras` file whose members would fill the memory: Keras does not limit their size."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            most = LARGEST_JSON if member.filename.endswith(".json") else member.file_size
            if member.file_size > min(most, MOST_COMPRESSED * max(member.compress_size, 1000)):
                raise ValueError(
                    f"{short_repr(member.filename)} in it has {member.file_size:,} bytes, {member.compress_size:,} of "
                    f"them in the file; a member has at most {MOST_COMPRESSED} times its bytes there, and JSON "
                    f"{LARGEST_JSON:,} bytes"
                )


def parse_json(text):
    """Parses a JSON object; raises ValueError for another value, a duplicate key, or a depth beyond the limit."""
    value = json.loads(text, object_pairs_hook=_without_duplicates)
    if not isinstance(value, dict):
        raise ValueError(f"it must be a JSON object; received {type(value).__name__}")
    if not _is_shallow(value, DEEPEST_JSON):
        raise ValueError(f"it must be JSON that is nested at most {DEEPEST_JSON} deep; received more")
    return value


def shortened(text):
    """Shortens a long error message by its middle."""
    half = LONGEST_REASON // 2
    return text if len(text) <= LONGEST_REASON else f"{text[:half]} ... {text[-half:]}"


def _reason(error):
    text = (
        re.sub(r"\s*\n\s*", " ", str(error))
        if isinstance(error, ValueError)
        else f"{type(error).__name__}: {short_repr(str(error))}"
    )
    text = shortened(text)
    return text if text.endswith(".") else f"{text}."


def _without_duplicates(pairs):
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = [name for name, count in collections.Counter(name for name, _ in pairs).items() if count > 1]
        raise ValueError(f"it has keys twice: {short_repr(twice)}")
    return value


def _is_shallow(value, levels):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels >= 0 and all(_is_shallow(x, levels - 1) for x in inner)


def save_tensors(tensors, path, metadata=None):
    """Writes a safetensors file with the mode of any new file. `save_file` would let only the owner read the file."""
    path = pathlib.Path(path)
    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, metadata)
    path.chmod(mode & 0o777)


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
