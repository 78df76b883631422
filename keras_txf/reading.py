"""Files that may be broken: whatever goes wrong while one is read becomes a ValueError that names it."""

import collections
import contextlib
import json
import os
import pathlib
import re

from keras_txf.checks import short_repr

LARGEST_JSON = 10**8  # bytes; safetensors allows as many to a header
DEEPEST_JSON = 32
LONGEST_REASON = 600  # characters of an error of others, which may hold any part of the file
COMPLETE = ".complete-save"  # of a checkpoint's folder: files of a save that was cut off before it moved them to their places


@contextlib.contextmanager
def reading(*paths):
    """A scope that reads a file, or several of a folder: an error in it becomes a ValueError that names them.

    Stays as it is what names the files already, an OSError of one among them, and the ImportError of a missing package.

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
        # Packages written in Rust end in panics, which are no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        names = [short_repr(str(path)) if path is paths[0] else path.name for path in paths]
        if isinstance(error, OSError) and error.filename is not None:
            raise
        if isinstance(error, ValueError) and all(name in str(error) for name in names):
            raise
        raise ValueError(f"{', '.join(names)} cannot be read: {_reason(error)}") from error


def file_of(folder, name):
    """The path of a file of a checkpoint's folder; of a save that was cut off it lies in `COMPLETE`."""
    new = pathlib.Path(folder) / COMPLETE / name
    return new if os.path.isfile(new) else pathlib.Path(folder) / name


def read_json(path, name="folder"):
    """The dict that a JSON file holds; `name` is the argument that a message calls it by."""
    path = pathlib.Path(path)
    try:
        if not path.is_file():  # a pipe would be waited for
            raise ValueError("there is no such file")
        if path.stat().st_size > LARGEST_JSON:
            raise ValueError(f"it has {path.stat().st_size} bytes, where {LARGEST_JSON} are the most")
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"`{name}` must hold a readable {path.name}; received {short_repr(str(path))}: {error}.") from None


def parse_json(text):
    """The dict of a text; ValueError for what is none, has a key twice, or is nested too deep."""
    value = json.loads(text, object_pairs_hook=_without_duplicates)
    if not isinstance(value, dict):
        raise ValueError(f"it must be a JSON object; received {type(value).__name__}")
    if not _is_shallow(value, DEEPEST_JSON):
        raise ValueError(f"it must be JSON that is nested at most {DEEPEST_JSON} deep; received more")
    return value


def shortened(text):
    """An error's text without its middle, where it is long."""
    half = LONGEST_REASON // 2
    return text if len(text) <= LONGEST_REASON else f"{text[:half]} ... {text[-half:]}"


def _reason(error):
    text = re.sub(r"\s*\n\s*", " ", str(error)) if isinstance(error, ValueError) else f"{type(error).__name__}: {short_repr(str(error))}"
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
