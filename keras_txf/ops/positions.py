"""Sinusoid, rotary with its scalings and of images, ALiBi and T5 buckets. Constants in float64, tensors in float32.

Legend: B batch, T length, N heads, H head dim.
"""

import math

import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr


def sinusoid(positions, dim, interleaved=True):
    """The paper's positions: sin at even and cos at odd features, wavelengths 2π to 10,000 · 2π.

    Args:
        positions: (T,) or (B, T), integers or floats.
        dim: number of features.
        interleaved: False: all sines first, then all cosines, as Tensor2Tensor, the paper's own code, has them.

    Returns:
        float32, (T, dim) or (B, T, dim).

    Reference:
        [Attention Is All You Need](https://arxiv.org/abs/1706.03762), section 3.5.
    """
    pairs = (dim + 1) // 2
    frequencies = 10000.0 ** (-2.0 * np.arange(pairs) / dim)
    angles = _angles(positions, frequencies)
    if not interleaved:
        return ops.concatenate([ops.sin(angles), ops.cos(angles)[..., : dim - pairs]], axis=-1)
    waves = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
    waves = ops.reshape(waves, (*ops.shape(positions), 2 * pairs))
    return waves[..., :dim]


def fairseq_sinusoid(positions, dim, first=2):
    """The positions of fairseq: as the paper's, but the longest wavelength is 10,000 · 2π exactly, and 2 is the first.

    All sines stand before all cosines; the last feature of an odd number is 0.

    Args:
        positions: (T,) or (B, T), integers or floats, 0 for the first token.
        dim: number of features, at least 4.
        first: the position of the first token; 0 for the vectors of Whisper.

    Returns:
        float32, (T, dim) or (B, T, dim).

    Reference:
        [Beyond English-Centric Multilingual Machine Translation](https://arxiv.org/abs/2010.11125), whose model has
        them.
    """
    pairs = dim // 2
    frequencies = 10000.0 ** (-np.arange(pairs) / (pairs - 1))
    angles = _angles(ops.cast(positions, "float32") + first, frequencies)
    zeros = [ops.zeros_like(angles[..., :1])] if dim % 2 else []
    return ops.concatenate([ops.sin(angles), ops.cos(angles), *zeros], axis=-1)


def _angles(positions, frequencies):
    return ops.expand_dims(ops.cast(positions, "float32"), -1) * ops.cast(ops.convert_to_tensor(frequencies), "float32")


def rotate(x, positions, frequencies, magnitude=1.0, interleaved=False):
    """Turns each pair (i, i + R/2) of the first R features by position times frequency i.

    Args:
        x: (B, T, N, H).
        positions: (T,) or (B, T).
        frequencies: (R / 2,), radians a position; R at most H, the rest stays as it is.
        magnitude: factor on the rotated features (YaRN's attention factor).
        interleaved: whether the pairs are (2i, 2i + 1) instead.

    Reference:
        [RoFormer](https://arxiv.org/abs/2104.09864).
    """
    return rotate_by(x, _angles(positions, frequencies), magnitude, interleaved)


def rotate_by(x, angles, magnitude=1.0, interleaved=False):
    """Turns each pair of the first R features by an angle of its own.

    Args:
        x: (B, T, N, H).
        angles: float (T, R / 2) or (B, T, R / 2), in radians.
        magnitude, interleaved: see `rotate`.
    """
    half = angles.shape[-1]
    if len(angles.shape) == 2:
        angles = angles[None]
    cos, sin = ops.cos(angles)[:, :, None] * magnitude, ops.sin(angles)[:, :, None] * magnitude
    wide = ops.cast(x, "float32")
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
    """The angles of an image's patches: half of the pairs turn with the row, the other half with the column.

    A coordinate is that of the middle of the patch, from -1 to 1 over the image; a pair turns by 2π times its frequency
    times the coordinate.

    Args:
        rows, columns: numbers of patches.
        dim: number of features that turn, divisible by 4.
        base: the frequencies fall from 1 to nearly 1 / base.

    Returns:
        NumPy float64 (rows * columns, dim / 2), row by row.

    Reference:
        [DINOv3](https://arxiv.org/abs/2508.10104), section 3.2.
    """
    frequencies = 2 * math.pi * base ** (-np.arange(0, dim, 4) / dim)
    down, across = (((2 * np.arange(size) + 1) / size - 1)[:, None] * frequencies for size in (rows, columns))
    return np.concatenate([np.repeat(down, columns, axis=0), np.tile(across, (rows, 1))], axis=1)


def rotary_frequencies(dim, base=10000.0, scaling=None):
    """Frequencies of a rotary embedding over `dim` features, and the factor on its magnitude.

    Args:
        dim: even number of rotated features.
        base: base of the wavelengths.
        scaling: None, or a dict such as {"type": "linear", "factor": 4.0}. The types and the other
            keys are the arguments of the functions in `ROTARY_SCALINGS`, named as in Hugging Face
            configurations.

    Returns:
        NumPy float64 (dim / 2,), float.
    """
    options = {"type": "none"} if scaling is None else dict(scaling)
    kind = options.pop("type", None)
    checks.one_of("scaling['type']", kind, ROTARY_SCALINGS)
    function = ROTARY_SCALINGS[kind]
    allowed = function.__code__.co_varnames[2 : function.__code__.co_argcount]
    checks.known_names(f"an option of rotary scaling {short_repr(kind)}", options, allowed)
    required = allowed[: len(allowed) - len(function.__defaults__ or ())]
    missing = [name for name in required if name not in options]
    if missing:
        raise ValueError(f"Rotary scaling {short_repr(kind)} needs {missing}; received {short_repr(scaling)}.")
    for name, value in options.items():
        if name == "truncate":
            checks.boolean(name, value)
        elif value is not None or name in required:
            checks.positive_number(name, value)
    return function(dim, base, **{name: value for name, value in options.items() if value is not None})


def _plain(dim, base):
    return base ** (-np.arange(0, dim, 2) / dim), 1.0


def _linear(dim, base, factor):
    """[Position interpolation](https://arxiv.org/abs/2306.15595): every wavelength is `factor` times as long."""
    return _plain(dim, base)[0] / factor, 1.0


def _ntk(dim, base, factor):
    """NTK-aware: a larger base, so that the longest wavelength grows by `factor` and the shortest stays."""
    return _plain(dim, base * factor ** (dim / max(dim - 2, 1)))[0], 1.0


def _llama3(dim, base, factor, low_freq_factor, high_freq_factor, original_max_position_embeddings):
    """[Llama 3.1](https://arxiv.org/abs/2407.21783) stretches long wavelengths, keeps short ones, a ramp between."""
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
    """[YaRN](https://arxiv.org/abs/2309.00071): a ramp over the number of turns, and a sharper attention."""

    if beta_slow > beta_fast or base <= 1:
        raise ValueError(
            f"`beta_slow` must not exceed `beta_fast`, and `base` must be above 1; received beta_slow={beta_slow}, "
            f"beta_fast={beta_fast} and base={base}."
        )

    def feature_that_turns(times):
        return dim * math.log(original_max_position_embeddings / (times * 2 * math.pi)) / (2 * math.log(base))

    def magnitude(weight):
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    low, high = feature_that_turns(beta_fast), feature_that_turns(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    high = low + 0.001 if high == low else high
    stretched = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    frequencies = _plain(dim, base)[0]
    if attention_factor is None:
        both = mscale and mscale_all_dim
        attention_factor = magnitude(mscale) / magnitude(mscale_all_dim) if both else magnitude(1.0)
    return stretched * frequencies / factor + (1 - stretched) * frequencies, attention_factor


ROTARY_SCALINGS = {"none": _plain, "linear": _linear, "ntk": _ntk, "yarn": _yarn, "llama3": _llama3}


def alibi_slopes(num_heads):
    """One slope a head, a geometric sequence; between powers of two, every other of the next sequence.

    Returns:
        NumPy float64 (N,).

    Reference:
        [Train Short, Test Long](https://arxiv.org/abs/2108.12409).
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = 2.0 ** (-8 / power * np.arange(1, power + 1))
    extra = 2.0 ** (-4 / power * np.arange(1, 2 * (num_heads - power), 2))
    return np.concatenate([slopes, extra])


def relative_buckets(distance, bidirectional, num_buckets, max_distance):
    """T5's buckets: one a distance up to half of them, then logarithmic up to `max_distance`.

    Args:
        distance: int, key position minus query position.
        bidirectional: later keys get half of the buckets; otherwise they share bucket 0.
        num_buckets: number of buckets.
        max_distance: from here on everything shares the last bucket.

    Returns:
        int32, the shape of `distance`.

    Reference:
        [T5](https://arxiv.org/abs/1910.10683).
    """
    if bidirectional:
        num_buckets //= 2
        offset = ops.where(distance > 0, num_buckets, 0)
        distance = ops.abs(distance)
    else:
        offset = 0
        distance = ops.maximum(-distance, 0)
    table = _bucket_table(num_buckets, max_distance)
    nearest = ops.take(table, ops.minimum(distance, max_distance), axis=0)
    return ops.cast(offset + nearest, "int32")


def _bucket_table(num_buckets, max_distance):
    """The bucket of each distance from 0 to `max_distance`, in float32 as every T5 does it."""
    exact = num_buckets // 2
    distances = np.arange(max_distance + 1)
    ratio = np.maximum(distances, 1).astype("float32") / np.float32(exact)
    steps = np.log(ratio) / np.float32(math.log(max_distance / exact)) * np.float32(num_buckets - exact)
    far = np.minimum(exact + steps.astype("int32"), num_buckets - 1)
    return np.where(distances < exact, distances, far).astype("int32")


def disentangled_buckets(max_distance, num_buckets=None):
    """DeBERTa's buckets: the bucket of each distance, query position minus key position.

    Without `num_buckets` each distance has its own bucket. With it the near half of the distances on each side have
    one each, and those up to `max_distance` share the others, which grow logarithmically. A distance beyond
    `max_distance` is in the last bucket of its side.

    Args:
        max_distance: the longest distance.
        num_buckets: number of buckets of both sides together, a multiple of 4, or None: 2 * `max_distance`.

    Returns:
        NumPy int32 (2 * max_distance + 1,), the buckets of the distances from -max_distance to max_distance.

    Reference:
        [DeBERTa](https://arxiv.org/abs/2006.03654), equation 3; its version 2 for the logarithm.
    """
    distances = np.arange(-max_distance, max_distance + 1)
    side = max_distance
    if num_buckets is not None:
        side = num_buckets // 2
        distances = np.sign(distances) * _bucket_of_length(np.abs(distances), side // 2, max_distance)
    return np.clip(distances + side, 0, 2 * side - 1).astype("int32")


def _bucket_of_length(lengths, exact, max_distance):
    """The buckets of distances of one side, in float32 as every DeBERTa does it; the last one is beyond the side."""
    ratio = np.maximum(lengths, 1).astype("float32") / np.float32(exact)
    steps = np.log(ratio) / np.log(np.float32((max_distance - 1) / exact)) * np.float32(exact - 1)
    return np.where(lengths <= exact, lengths, np.ceil(steps) + exact)
