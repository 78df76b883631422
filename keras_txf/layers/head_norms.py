"""The norms of queries and keys, by the values of `qk_norm`."""

from keras import ops

from keras_txf import checks
from keras_txf.layers.base import Layer
from keras_txf.layers.norms import make_norm
from keras_txf.layers.serialization import register
from keras_txf.ops.numbers import widen


@register
class PerHeadNormalization(Layer):
    """Layer norm of each head, with factors of its own and without bias, at least in float32 (StableLM 2, Command R+).

    Args:
        epsilon: added to the variance.

    Call arguments:
        inputs: float (B, T, N, H).

    Returns:
        (B, T, N, H).

    Reference:
        [Scaling Vision Transformers to 22 Billion Parameters](https://arxiv.org/abs/2302.05442), section 2, for layer
        norms of queries and keys.
    """

    def __init__(self, epsilon=1e-6, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = checks.positive_number("epsilon", epsilon)

    def build(self, inputs_shape):
        self.gamma = self.add_weight(name="gamma", shape=inputs_shape[-2:], initializer="ones", autocast=False)

    def call(self, inputs):
        x = widen(inputs)
        x = x - ops.mean(x, axis=-1, keepdims=True)
        x = x * ops.rsqrt(ops.mean(ops.square(x), axis=-1, keepdims=True) + self.epsilon)
        return ops.cast(x * ops.cast(self.gamma, x.dtype), inputs.dtype)


def make_head_norm(kind, heads, head_dim, epsilon, dtype, name):
    """The built norm of queries or keys, where `qk_norm` is not False."""
    if kind == "layer_per_head":
        norm = PerHeadNormalization(epsilon, dtype=dtype, name=name)
    else:
        norm = make_norm(KINDS.get(kind, "rms"), epsilon, dtype, name)
    norm.build((None, None, heads * head_dim) if kind == "full" else (None, None, heads, head_dim))
    return norm


KINDS = {"layer": "layer", "head_zero_centered": "rms_zero_centered"}
QK_NORMS = (True, False, "head", "head_zero_centered", "full", "layer", "layer_per_head")
