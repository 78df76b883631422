"""AxialRotary: rotary positions of the patches of an image, by rows and columns."""

from typing import Unpack

import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.layers.base import Layer
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.serialization import register
from keras_txf.ops import rotary as mathematics
from keras_txf.ops.tensors import wide_dtype


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
        patches = mathematics.axial_angles(*self.grid, dim, self.base)
        angles = np.concatenate([np.zeros((self.tokens_before, dim // 2)), patches]).astype(wide_dtype(x.dtype))
        return mathematics.rotate_by(x, ops.take(ops.convert_to_tensor(angles), positions, axis=0))

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
