"""Rotary positions and their scalings. Constants are float64; tensors are float32, or float64 for float64 vectors.

Legend: B batch, T length, N heads, H head dim, R rotated features.
"""

import math

import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.ops.positions import angles_of
from keras_txf.ops.tensors import wide_dtype, widen


def rotate(x, positions, frequencies, magnitude=1.0, interleaved=False):
    """Rotates each pair (i, i + R/2) of the first R features by position times frequency i.

    Args:
        x: (B, T, N, H).
        positions: (T,) or (B, T).
        frequencies: (R / 2,), radians per position; R is at most H, and the other features do not change.
        magnitude: factor on the rotated features (YaRN's attention factor).
        interleaved: whether the pairs are (2i, 2i + 1) instead.

    Reference:
        [RoFormer](https://arxiv.org/abs/2104.09864).
    """
    return rotate_by(x, angles_of(positions, frequencies, wide_dtype(x.dtype)), magnitude, interleaved)


def rotate_by(x, angles, magnitude=1.0, interleaved=False):
    """Rotates each pair of the first R features by its own angle.

    Args:
        x: (B, T, N, H).
        angles: float (T, R / 2) or (B, T, R / 2), in radians.
        magnitude, interleaved: see `rotate`.
    """
    half = angles.shape[-1]
    if len(angles.shape) == 2:
        angles = angles[None]
    cos, sin = ops.cos(angles)[:, :, None] * magnitude, ops.sin(angles)[:, :, None] * magnitude
    wide = widen(x)
    pairs, rest = wide[..., : 2 * half], wide[..., 2 * half :]
    apart = slice(None, None, 2), slice(1, None, 2)
    first, second = (pairs[..., part] for part in (apart if interleaved else (slice(half), slice(half, None))))
    parts = [first * cos - second * sin, second * cos + first * sin]
    if interleaved:
        parts = [ops.reshape(ops.stack(parts, axis=-1), ops.shape(pairs))]
    if 2 * half < x.shape[-1]:
        parts.append(rest)
    return ops.cast(ops.concatenate(parts, axis=-1), x.dtype)


def axial_angles(rows, columns, dim, base):
    """Returns the angles of an image's patches: half of the pairs rotate with the row, half with the column.

    The coordinate is the middle of the patch, from -1 to 1 over the image. A pair rotates by 2π times its frequency
    times the coordinate.

    Args:
        rows, columns: numbers of patches.
        dim: number of rotated features, divisible by 4.
        base: the frequencies fall from 1 to nearly 1 / base.

    Returns:
        NumPy float64 (rows * columns, dim / 2), row by row.

    Reference:
        [DINOv3](https://arxiv.org/abs/2508.10104), section 3.2.
    """
    frequencies = 2 * math.pi * base ** (-np.arange(0, dim, 4) / dim)
    down, across = (((2 * np.arange(size) + 1) / size - 1)[:, None] * frequencies for size in (rows, columns))
    return np.concatenate([np.repeat(down, columns, axis=0), np.tile(across, (rows, 1))], axis=1)


def rotary_frequencies(dim, base=10000.0, scaling=None, length=None, dtype="float32"):
    """Returns the frequencies of a rotary embedding over `dim` features, and the factor on its magnitude.

    Args:
        dim, base, scaling: see `scaled_frequencies`.
        length: number of tokens of the text, an integer or a scalar tensor: "dynamic" and "longrope" depend on it.
            None: at most the length of the texts in training.
        dtype: dtype of frequencies that depend on `length`.

    Returns:
        NumPy float64 (dim / 2,), or a tensor if the frequencies depend on `length`; and a float.
    """
    frequencies, magnitude = scaled_frequencies(dim, base, scaling)
    return (frequencies(length, dtype) if callable(frequencies) else frequencies), magnitude


def scaled_frequencies(dim, base, scaling):
    """Returns frequencies for texts of any length: an array, or a function if they depend on the length.

    Args:
        dim: even number of rotated features.
        base: base of the wavelengths.
        scaling: None, or a dict such as {"type": "linear", "factor": 4.0}. The types and the other
            keys are the arguments of the functions in `ROTARY_SCALINGS`, named as in Hugging Face
            configurations.

    Returns:
        NumPy float64 (dim / 2,), or a function of the length and the dtype that returns a tensor; and the factor on
        the magnitude.
    """
    options = {"type": "none"} if scaling is None else dict(scaling)
    kind = options.pop("type", None)
    checks.one_of("scaling['type']", kind, ROTARY_SCALINGS)
    function = ROTARY_SCALINGS[kind]
    allowed = scaling_options(kind)
    checks.known_names(f"an option of rotary scaling {short_repr(kind)}", options, allowed)
    required = allowed[: len(allowed) - len(function.__defaults__ or ())]
    missing = [name for name in required if name not in options]
    if missing:
        raise ValueError(f"Rotary scaling {short_repr(kind)} needs {missing}; received {short_repr(scaling)}.")
    for name, value in options.items():
        if name == "truncate":
            checks.boolean(name, value)
        elif name in ("short_factor", "long_factor"):
            _check_factors(name, value, dim // 2)
        elif value is not None or name in required:
            checks.positive_number(name, value)
    options = {name: value for name, value in options.items() if value is not None}
    return function(dim, base, **options)


def scaling_options(kind):
    """Returns the names of the options of a type of scaling; the required options come first."""
    code = ROTARY_SCALINGS[kind].__code__
    return code.co_varnames[2 : code.co_argcount]


def check_rotary_scaling(base, scaling):
    """Raises ValueError for a wrong scaling, before the width of a head is known."""
    factors = (scaling or {}).get("short_factor")
    scaled_frequencies(2 * len(factors) if isinstance(factors, (list, tuple)) else 8, base, scaling)


def _check_factors(name, factors, number):
    if not isinstance(factors, (list, tuple)) or len(factors) != number:
        raise ValueError(
            f"`{name}` must be a list of {number} numbers, one for each pair of rotated features; received "
            f"{short_repr(factors)}."
        )
    for factor in factors:
        checks.positive_number(name, factor)


def _plain(dim, base):
    return base ** (-np.arange(0, dim, 2) / dim), 1.0


def _linear(dim, base, factor):
    """[Position interpolation](https://arxiv.org/abs/2306.15595) multiplies every wavelength by `factor`."""
    return _plain(dim, base)[0] / factor, 1.0


def _ntk(dim, base, factor):
    """NTK-aware scaling: with a larger base the longest wavelength grows by `factor`, the shortest does not change."""
    return _plain(dim, base * factor ** (dim / max(dim - 2, 1)))[0], 1.0


def _dynamic(dim, base, factor, original_max_position_embeddings):
    """NTK-aware scaling by the length of the text: beyond the trained length the base grows with the length."""
    plain = _plain(dim, base)[0]
    exponents = -np.arange(0, dim, 2) / max(dim - 2, 1)

    def frequencies(length, dtype):
        if length is None:
            return plain
        beyond = ops.cast(length, dtype) / original_max_position_embeddings - 1
        return ops.cast(plain, dtype) * (1 + factor * ops.maximum(beyond, 0)) ** ops.cast(exponents, dtype)

    return frequencies, 1.0


def _longrope(dim, base, short_factor, long_factor, factor, original_max_position_embeddings, attention_factor=None):
    """[LongRoPE](https://arxiv.org/abs/2402.13753) has two lists of factors, up to and beyond the trained length."""
    short, long = (_plain(dim, base)[0] / np.asarray(factors, "float64") for factors in (short_factor, long_factor))
    if original_max_position_embeddings <= 1:
        raise ValueError(
            "`original_max_position_embeddings` must be above 1; received "
            f"{short_repr(original_max_position_embeddings)}."
        )
    if attention_factor is None:
        grown = math.log(factor) / math.log(original_max_position_embeddings) if factor > 1 else 0.0
        attention_factor = math.sqrt(1 + grown)

    def frequencies(length, dtype):
        if length is None:
            return short
        is_long = ops.cast(length, "int32") > original_max_position_embeddings
        return ops.where(is_long, ops.cast(long, dtype), ops.cast(short, dtype))

    return frequencies, attention_factor


def _llama3(dim, base, factor, low_freq_factor, high_freq_factor, original_max_position_embeddings):
    """[Llama 3.1](https://arxiv.org/abs/2407.21783) stretches long wavelengths and keeps short ones, with a ramp."""
    if low_freq_factor >= high_freq_factor:
        raise ValueError(
            f"`low_freq_factor` must be below `high_freq_factor`; received low_freq_factor={low_freq_factor} "
            f"and high_freq_factor={high_freq_factor}."
        )
    frequencies = _plain(dim, base)[0]
    turns = original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = np.clip((turns - low_freq_factor) / (high_freq_factor - low_freq_factor), 0, 1)
    return kept * frequencies + (1 - kept) * frequencies / factor, 1.0


def _yarn(
    dim,
    base,
    factor,
    original_max_position_embeddings,
    beta_fast=32.0,
    beta_slow=1.0,
    attention_factor=None,
    mscale=None,
    mscale_all_dim=None,
    truncate=True,
):
    """[YaRN](https://arxiv.org/abs/2309.00071) has a ramp over the number of turns, and sharper attention."""
    if beta_slow > beta_fast or base <= 1:
        raise ValueError(
            f"`beta_slow` must not exceed `beta_fast`, and `base` must be above 1; received beta_slow={beta_slow}, "
            f"beta_fast={beta_fast} and base={base}."
        )

    def feature_that_turns(times):
        return dim * math.log(original_max_position_embeddings / (times * 2 * math.pi)) / (2 * math.log(base))

    low, high = feature_that_turns(beta_fast), feature_that_turns(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high = low + 0.001 if high == low else high
    stretched = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    frequencies = _plain(dim, base)[0]
    if attention_factor is None:
        both = mscale and mscale_all_dim
        attention_factor = _magnitude(factor, mscale if both else 1.0)
        attention_factor /= _magnitude(factor, mscale_all_dim) if both else 1.0
    return stretched * frequencies / factor + (1 - stretched) * frequencies, attention_factor


def _magnitude(factor, weight):
    return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0


def yarn_logit_factor(scaling):
    """Returns the factor on all logits of latent attention by YaRN's `mscale_all_dim`.

    It multiplies the factor on the rotated features.
    """
    weight = (scaling or {}).get("mscale_all_dim")
    return _magnitude(scaling["factor"], weight) ** 2 if weight else 1.0


ROTARY_SCALINGS = {
    "none": _plain, "linear": _linear, "ntk": _ntk, "dynamic": _dynamic, "yarn": _yarn, "longrope": _longrope,
    "llama3": _llama3,
}  # fmt: skip
