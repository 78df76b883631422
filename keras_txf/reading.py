"""Reading: turns every error of a damaged file into a ValueError that names the file."""

import collections
import contextlib
import json
import os
import pathlib
import re
import zipfile

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
