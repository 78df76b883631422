"""Writing a file so that it is there whole, or as it was."""

import contextlib
import os
import pathlib


@contextlib.contextmanager
def whole(file):
    """Yields a path to write to, in a folder that is made; the file then gets its own name, and takes an older one's place."""
    file = pathlib.Path(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_name(f"unfinished.{file.name}")
    yield unfinished
    os.replace(unfinished, file)
