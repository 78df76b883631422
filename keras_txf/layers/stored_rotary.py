"""StoredRotary: rotary positions with the frequencies of a file."""

from keras import ops

from keras_txf import checks
from keras_txf.backend.variables import current_value
from keras_txf.layers.base import Layer
from keras_txf.layers.serialization import register
from keras_txf.ops import rotary as mathematics
from keras_txf.ops.numbers import wide_dtype


@register
class StoredRotary(Layer):
    """Rotary positions whose frequencies are weights, which are not trained.

    Files of ESM hold them as they were in training, some rounded to half precision: numbers that no base has.

    Args:
        head_dim: width H of a head, even.
        base: base of the wavelengths at first.

    Reference:
        [RoFormer](https://arxiv.org/abs/2104.09864).
    """

    names_own_weights = True  # see `build_named`

    def __init__(self, head_dim, base=10000.0, **kwargs):
        super().__init__(**kwargs)
        self.head_dim = checks.size("head_dim", head_dim)
        if head_dim % 2:
            raise ValueError(f"`head_dim` must be even for rotary positions, which turn pairs; received {head_dim}.")
        self.base = checks.positive_number("base", base)

    def build(self, *shapes):
        wide = wide_dtype(self.variable_dtype)
        values, _ = mathematics.rotary_frequencies(self.head_dim, self.base, None)
        self.frequencies = self.add_weight(
            name="frequencies",
            shape=(self.head_dim // 2,),
            initializer=lambda shape, dtype=None: ops.convert_to_tensor(values.astype(wide), dtype),
            dtype=wide,
            trainable=False,
            autocast=False,
        )

    def rotate(self, x, positions):
        return mathematics.rotate(x, positions, current_value(self.frequencies))

    def bias(self, query_positions, key_positions):
        return None
