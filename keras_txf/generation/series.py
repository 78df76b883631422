"""Checks the series of `forecast`, and what is known ahead, before anything is compiled."""

from typing import Any

import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr


def series_rows(series, width, dtype):
    """The series as NumPy arrays (T, F), from floats (B, T, F), a list of arrays or a ragged tensor.

    Args:
        width: F.
        dtype: of the model's input; the arrays are float64 for float64, else float32.
    """
    rows = series.to_list() if hasattr(series, "to_list") else series  # a tf.RaggedTensor
    if not isinstance(rows, (list, tuple)):
        rows = checks.dense_tensor("series", rows)
        if len(rows.shape) != 3:
            raise ValueError(
                f"`series` must be floats of shape (batch, length, {width}), or a list of arrays (length, {width}); "
                f"received shape {tuple(rows.shape)}."
            )
    arrays = [_array("series", row) for row in rows]
    if not arrays:
        raise ValueError("`series` must hold at least one series; received none.")
    for row, array in enumerate(arrays):
        if array.ndim != 2 or array.shape[1] != width or not len(array) or array.dtype.kind not in "fV":
            raise ValueError(
                f"`series` must hold floats of shape (length, {width}), at least one vector; received {array.dtype} of "
                f"shape {array.shape} in row {row}."
            )
        wrong = ~np.isfinite(array.astype("float64")).all(axis=1)
        if wrong.any():
            raise ValueError(
                f"`series` must hold finite numbers; received NaN or infinity in row {row}, position {wrong.argmax()}. "
                "Series of unequal lengths are a list of arrays without padding."
            )
    return [array.astype("float64" if dtype == "float64" else "float32") for array in arrays]


def future_values(future, shape, dtype):
    """What is known ahead, NumPy floats (B, steps, C); None where C is 0."""
    if future is None and not shape[2]:
        return np.zeros(shape, dtype)
    array = None if future is None else _array("future", future)
    is_right = array is not None and array.shape == shape and array.dtype.kind in "fV"
    if not is_right or not np.isfinite(array.astype("float64")).all():
        received = short_repr(future) if array is None else f"{array.dtype} of shape {array.shape}"
        raise ValueError(
            f"`future` must be finite floats of shape {shape}, the features that are known ahead; received {received}."
        )
    return array.astype(dtype)


def _array(name, values) -> Any:
    values = checks.dense_tensor(name, values)
    return ops.convert_to_numpy(values) if ops.is_tensor(values) else np.asarray(values)
