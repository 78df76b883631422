"""Reads a `.npz` file that may be damaged or hostile: without pickle, in no more memory than the file has bytes."""

import io
import math
import zipfile

import numpy as np

from keras_txf.checks import short_repr


def read_arrays(path, names=None):
    """Reads the arrays of a file of `np.savez` by name, all or those of `names`, and checks their checksums.

    Raises:
        Exception: `zipfile`, NumPy or this function names the damage; see `keras_txf.reading`.
    """
    with zipfile.ZipFile(path) as archive:
        found = [member.filename.removesuffix(".npy") for member in archive.infolist()]
        if len(set(found)) < len(found):
            raise ValueError(f"it has an array twice, of {short_repr(sorted(found))}")
        members = dict(zip(found, archive.infolist()))
        return {name: _array(archive, members[name]) for name in (found if names is None else names)}


def _array(archive, member):
    name, size = short_repr(member.filename), archive.fp.seek(0, io.SEEK_END)
    if member.compress_type != zipfile.ZIP_STORED or not member.file_size == member.compress_size <= size:
        raise ValueError(
            f"{name} of {member.file_size} bytes must be stored without compression in the {size} bytes of the file"
        )
    content = io.BytesIO(archive.read(member))
    version = np.lib.format.read_magic(content)
    if version not in HEADERS:
        raise ValueError(f"{name} must be of a version of {sorted(HEADERS)}; received {version}")
    shape, in_columns, dtype = HEADERS[version](content)
    data = content.read()
    if dtype.hasobject or min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(
            f"{name} of shape {short_repr(shape)} and type {short_repr(str(dtype))} does not fit its {len(data)} bytes"
        )
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if in_columns else "C")
    return array.copy(order="K")  # a buffer is read-only


HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
