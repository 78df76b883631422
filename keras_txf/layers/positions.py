"""Positions in attention, by rotation or by a bias. Several blocks may share a position layer.

A position layer has two methods. Your own layer with both methods works too:

    rotate(x, positions) -> x, for queries and keys of shape (batch, length, heads, head dim)
    bias(query_positions, key_positions) -> (batch or 1, heads, T, S), added to the logits, or None

The optional method `check_heads(length, head_dim)` raises ValueError for queries and keys that the layer cannot rotate.
Attention also calls it on symbols, for which it does not call `rotate`.

A position layer whose bias also depends on queries and keys, such as `DisentangledPositions`, has three more members:

    added_terms -> the number of terms that it adds to each logit, for the factor on the logits
    build_for(attention, inputs_shape), which makes the projections of one attention layer
    bias_of_content(attention, query, key, query_positions, key_positions, training) -> (batch, heads, T, S)

For long sequences attention computes the bias in blocks. For this, a layer with trained weights needs the methods
`bias_weights`, `bias_of` and `gradient_of_bias` of `RelativeBias`; without them attention computes the whole bias.
"""

from typing import Any, Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.base import Layer
from keras_txf.layers.embeddings import ENCODINGS
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.serialization import register
from keras_txf.layers.tables import TableBias, build_named
from keras_txf.ops import positions as mathematics
from keras_txf.ops import rotary
from keras_txf.ops.tensors import wide_dtype


@register
class Rotary(Layer):
    """Rotary positions: rotates queries and keys by their positions, so that logits depend only on distances.

    Args:
        base: base of the wavelengths: 10,000 in the paper, 500,000 in Llama 3.
        fraction: fraction of each head's features that is rotated, in (0, 1].
        scaling: None, or the extension beyond the trained length: a dict with "type" "linear", "ntk", "dynamic",
            "yarn", "longrope" or "llama3" and the numbers of this type, named as in Hugging Face configurations.
            The frequencies of "dynamic" and "longrope" depend on the number of tokens of the longest text in the
            batch, from `original_max_position_embeddings` on. `generate` rotates each new token by the frequencies of
            the current length of the text. With "longrope" it raises ValueError for an answer that would begin before
            this length and end after it.
        interleaved: the features of a pair: 2i and 2i + 1 with True, as in the paper and GPT-J; i and i + R / 2 of the
            R rotated features with False, as in Llama.

    Raises:
        ValueError: an unknown scaling, a missing or unknown number in it, an odd number of rotated features,
            factors of "longrope" whose number is not the number of pairs.

    Reference:
        [RoFormer](https://arxiv.org/abs/2104.09864).

    Example:

    >>> long = txf.layers.Rotary(scaling={"type": "linear", "factor": 4.0})
    >>> block = txf.layers.EncoderBlock(num_heads=4, position=long)
    >>> block(keras.random.normal((2, 7, 32))).shape
    (2, 7, 32)
    """

    def __init__(
        self,
        base: float = 10000.0,
        fraction: float = 1.0,
        scaling: dict[str, Any] | None = None,
        interleaved: bool = False,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.interleaved = checks.boolean("interleaved", interleaved)
        self.base = checks.positive_number("base", base)
        self.fraction = checks.positive_number("fraction", fraction)
        if fraction > 1:
            raise ValueError(f"`fraction` must be in (0, 1]; received {short_repr(fraction)}.")
        if scaling is not None and not isinstance(scaling, dict):
            raise ValueError(
                f"`scaling` must be None or a dict such as {{'type': 'linear', 'factor': 4.0}}; received "
                f"{short_repr(scaling)}."
            )
        self.scaling = None if scaling is None else dict(scaling)
        rotary.check_rotary_scaling(base, self.scaling)
        self._frequencies = {}  # by the width of a head
        self.built = True  # the layer has no weights, and attention calls `rotate` instead of the layer

    def rotate(self, x, positions):
        """Rotates x (batch, length, heads, head dim) by `positions`, (length,) or (batch, length)."""
        width = x.shape[-1]
        if width not in self._frequencies:
            self._frequencies[width] = rotary.scaled_frequencies(self.check_width(width), self.base, self.scaling)
        frequencies, magnitude = self._frequencies[width]
        if callable(frequencies):
            frequencies = frequencies(ops.max(positions) + 1, wide_dtype(x.dtype))
        return rotary.rotate(x, positions, frequencies, magnitude, self.interleaved)

    def check_heads(self, length, head_dim, name="head_dim"):
        """Raises ValueError if a head has no even number of rotated features, or "longrope" factors do not fit it."""
        rotary.scaled_frequencies(self.check_width(head_dim, name), self.base, self.scaling)

    def check_width(self, head_dim, name="head_dim"):
        """The number of rotated features of a head; raises ValueError if it is odd. `name` is the argument's name."""
        dim = round(head_dim * self.fraction)
        if dim % 2 or not dim:
            raise ValueError(
                f"`{name}` * fraction must be even and at least 2, because rotary positions rotate pairs; "
                f"received {name}={head_dim} and fraction={self.fraction}."
            )
        return dim

    def bias(self, query_positions, key_positions):
        return None

    @property
    def switch_length(self):
        """The number of tokens beyond which "longrope" has other frequencies for all tokens, or None."""
        scaling = self.scaling or {}
        return scaling["original_max_position_embeddings"] if scaling.get("type") == "longrope" else None

    def call(self, x, positions):
        checks.rank("x", x, (4, "(batch, length, heads, head dim)"))
        checks.positions(positions, *x.shape[:2])
        return self.rotate(x, positions)


@register
class ALiBi(Layer):
    """Attention with linear biases: each head penalises distance with its own fixed slope. No weights.

    Args:
        num_heads: number of query heads.

    Reference:
        [Train Short, Test Long](https://arxiv.org/abs/2108.12409). Without a causal mask the penalty
        is symmetric.

    Example:

    >>> txf.layers.ALiBi(num_heads=4)(np.arange(3), np.arange(5)).shape
    (1, 4, 3, 5)
    """

    def __init__(self, num_heads: int, **kwargs: Unpack[LayerOptions]):
        super().__init__(**kwargs)
        self.num_heads = checks.size("num_heads", num_heads)

    def rotate(self, x, positions):
        return x

    def bias(self, query_positions, key_positions):
        return self(query_positions, key_positions)

    def call(self, query_positions, key_positions):
        wide = wide_dtype(self.compute_dtype)
        slopes = ops.convert_to_tensor(mathematics.alibi_slopes(self.num_heads).astype(wide))
        distance = ops.cast(ops.abs(key_distance(query_positions, key_positions)), wide)
        return -slopes[None, :, None, None] * distance[:, None]


@register
class RelativeBias(TableBias):
    """T5's relative positions: a learned bias for each head and each bucket of distances.

    T5 shares one such layer among all blocks of a stack: pass the same instance to each.

    Args:
        num_heads: number of query heads.
        num_buckets: number of buckets; with `bidirectional` half of them are for later keys.
        max_distance: distance from which on all keys share the last bucket.
        bidirectional: True for encoders, False under a causal mask.

    Reference:
        [T5](https://arxiv.org/abs/1910.10683), section 2.1.

    Example:

    >>> shared = txf.layers.RelativeBias(num_heads=4)
    >>> blocks = [txf.layers.EncoderBlock(num_heads=4, position=shared) for _ in range(2)]
    >>> blocks[1](blocks[0](keras.random.normal((2, 7, 32)))).shape
    (2, 7, 32)
    """

    weight_splits = {"embeddings": "columns"}

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.num_heads = checks.size("num_heads", num_heads)
        self.num_buckets = checks.size("num_buckets", num_buckets)
        self.max_distance = checks.size("max_distance", max_distance)
        self.bidirectional = checks.boolean("bidirectional", bidirectional)
        exact = num_buckets // (4 if bidirectional else 2)
        if exact < 1 or max_distance <= exact:
            raise ValueError(
                f"`max_distance` must exceed the number of distances with their own buckets, {exact}, at least 1; "
                f"received max_distance={max_distance} and num_buckets={num_buckets}."
            )

    def rotate(self, x, positions):
        return x

    def table_size(self):
        return self.num_buckets

    def rows(self, query_positions, key_positions):
        distance = key_distance(query_positions, key_positions)
        return mathematics.relative_buckets(distance, self.bidirectional, self.num_buckets, self.max_distance)


POSITIONS = {
    "rotary": lambda num_heads, causal, **kwargs: Rotary(**kwargs),
    "alibi": lambda num_heads, causal, **kwargs: ALiBi(num_heads, **kwargs),
    "relative": lambda num_heads, causal, **kwargs: RelativeBias(num_heads, bidirectional=not causal, **kwargs),
}


def make_position(position, num_heads, causal, dtype):
    """Returns the position layer of the option `position`: a name, a layer or None."""
    if position is None or isinstance(position, keras.layers.Layer):
        _check_instance(position, num_heads)
        build_named(position)
        return position
    if isinstance(position, str) and position in ENCODINGS:
        raise ValueError(
            f"`position` must be a position in attention, one of {sorted(POSITIONS)}; received "
            f"{short_repr(position)}, which is added to the embeddings: pass position_encoding={short_repr(position)} "
            "to PositionalEmbedding or to the builder."
        )
    checks.one_of("position", position, [*POSITIONS, None], "a layer such as Rotary()")
    return POSITIONS[position](num_heads, causal, dtype=dtype, name="position")


def _check_instance(position, num_heads):
    if position is None:
        return
    if not (hasattr(position, "rotate") and hasattr(position, "bias")):
        raise ValueError(
            f"`position` must be one of {sorted(POSITIONS)}, None, or a layer with the methods "
            f"`rotate` and `bias`; received {short_repr(position)}."
        )
    if getattr(position, "num_heads", num_heads) != num_heads:
        raise ValueError(
            f"`position` must have num_heads={num_heads}, as its attention; received num_heads={position.num_heads}."
        )


def key_distance(query_positions, key_positions):
    """Key position minus query position, (batch or 1, T, S)."""
    checks.integers("query_positions", query_positions)
    checks.integers("key_positions", key_positions)
    checks.rank("query_positions", query_positions, (1, "(length,)"), (2, "(batch, length)"))
    checks.rank("key_positions", key_positions, (len(query_positions.shape), "of the same rank as `query_positions`"))
    checks.broadcasts("key_positions", key_positions, *query_positions.shape[:-1], key_positions.shape[-1])
    if len(query_positions.shape) == 1:
        query_positions, key_positions = query_positions[None], key_positions[None]
    return ops.expand_dims(key_positions, 1) - ops.expand_dims(query_positions, 2)
