"""A disk that is full or read-only: whatever goes wrong while something is written becomes a ValueError that names it."""

import contextlib
import os
import re

from safetensors import SafetensorError

from keras_txf.checks import short_repr


@contextlib.contextmanager
def writing(name, path):
    """A scope that writes to a path: an error of the disk in it becomes a ValueError; `name` is the argument.

    Example:

    ```python
    with writing("file", file):
        file.write_bytes(content)
    ```
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = re.sub(r"\s+", " ", str(error))[:300]
        raise ValueError(f"`{name}` must be a place that can be written to; received {short_repr(str(path))}: {reason}.") from error


def check_room(path, size):
    """Raises OSError where `size` bytes do not fit on the disk; leaves a file, for others to write over.

    HDF5 may end the process where it finds a full disk itself: h5py 3 does so while it closes the file.
    """
    if hasattr(os, "posix_fallocate"):  # on Linux
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
