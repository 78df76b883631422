"""Rotary and AxialRotary: positions in attention by rotation, of tokens and of the patches of an image."""

from typing import Any, Unpack

import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.base import Layer
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.serialization import register
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
class AxialRotary(Layer):
    """Rotary positions of patches: the row rotates half of the pairs of features, the column the other half.

    Use it as `position` of image models, instead of learned positions. The tokens before the patches (class token,
    distillation token, registers) are not rotated. Coordinates go from -1 to 1 over an image of any size. For
    images of another size build the model again, with another `grid` and the same weights.

    Args:
        grid: rows and columns of patches, a pair or one number for both.
        base: base of the wavelengths, 100 in DINOv3; the shortest wavelength is half an image.
        tokens_before: number of tokens before the patches.

    Call arguments:
        x: queries or keys (B, T, N, H), H divisible by 4, T = `tokens_before` + rows * columns.
        positions: int (T,) or (B, T), the position of each token in the sequence.

    Returns:
        (B, T, N, H).

    Raises:
        ValueError: a length other than T, a width H that is not divisible by 4.

    Reference:
        [DINOv3](https://arxiv.org/abs/2508.10104), section 3.2;
        [Rotary Position Embedding for Vision Transformer](https://arxiv.org/abs/2403.13298).

    Example:

    >>> position = txf.layers.AxialRotary(grid=(2, 3))
    >>> model = txf.models.image_encoder((16, 24), 8, num_layers=2, dim=32, num_heads=4, position=position)
    >>> model(keras.random.normal((2, 16, 24, 3))).shape
    (2, 7, 32)
    """

    def __init__(
        self, grid: int | tuple[int, int], base: float = 100.0, tokens_before: int = 1, **kwargs: Unpack[LayerOptions]
    ):
        super().__init__(**kwargs)
        self.grid = checks.pair("grid", grid)
        self.base = checks.positive_number("base", base)
        self.tokens_before = checks.count("tokens_before", tokens_before)
        self.built = True  # the layer has no weights, and attention calls `rotate` instead of the layer

    def rotate(self, x, positions):
        """Rotates x (batch, length, heads, head dim) by `positions`, (length,) or (batch, length)."""
        dim = x.shape[-1]
        self.check_heads(x.shape[1], dim)
        patches = rotary.axial_angles(*self.grid, dim, self.base)
        angles = np.concatenate([np.zeros((self.tokens_before, dim // 2)), patches]).astype(wide_dtype(x.dtype))
        return rotary.rotate_by(x, ops.take(ops.convert_to_tensor(angles), positions, axis=0))

    def check_heads(self, length, head_dim):
        """Raises ValueError if the length does not fit the grid, or the head dim is not divisible by 4."""
        expected = self.tokens_before + self.grid[0] * self.grid[1]
        if length != expected:
            raise ValueError(
                f"`inputs` must have the length {expected}: tokens_before={self.tokens_before} and the patches of "
                f"grid={self.grid}; received {length}."
            )
        if head_dim % 4:
            raise ValueError(
                f"`head_dim` must be divisible by 4, for pairs of rows and of columns; received {head_dim}."
            )

    def bias(self, query_positions, key_positions):
        return None

    def call(self, x, positions):
        checks.rank("x", x, (4, "(batch, length, heads, head dim)"))
        checks.positions(positions, *x.shape[:2])
        return self.rotate(x, positions)
