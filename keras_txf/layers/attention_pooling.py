"""AttentionPooling: one vector for a sequence, by attention from a learned query."""

from typing import Any, Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.layers.attention import CrossAttention
from keras_txf.layers.base import Layer
from keras_txf.layers.feed_forward import FeedForward
from keras_txf.layers.norms import make_norm
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.serialization import get_initializer, inherit, own_initializer, register


@register
class AttentionPooling(Layer):
    """One vector for each sequence, by multi-head attention with a learned query, and a feed-forward network.

    With x = attention(query, inputs) the output is x + feed_forward(norm(x)). It is the head of SigLIP's image encoder.
    `Pooling("attention")` is smaller, with one head and without projections.

    Args:
        num_heads: number of heads.
        intermediate_dim: width of the hidden layer of the feed-forward network; default 4 times D.
        activation: activation of the feed-forward network, see `FeedForward`.
        norm_epsilon: epsilon of the norm.
        kernel_initializer: initializer of the projections.
        query_initializer: initializer of the learned query; default normal with standard deviation 0.02.

    Call arguments:
        inputs: float (B, T, D).
        mask: bool (B, T), True at real tokens. Keras fills it from the layer before.

    Returns:
        (B, D).

    Raises:
        ValueError: D not divisible by `num_heads`, a width that is not a positive integer, an unknown activation.

    Reference:
        [Set Transformer](https://arxiv.org/abs/1810.00825), section 3.2;
        [Scaling Vision Transformers](https://arxiv.org/abs/2106.04560), the head of an image encoder.

    Example:

    >>> layer = txf.layers.AttentionPooling(num_heads=4)
    >>> layer(keras.random.normal((2, 7, 32))).shape
    (2, 32)
    """

    weight_splits = {"query": "whole"}

    def __init__(
        self,
        num_heads: int,
        intermediate_dim: int | None = None,
        activation: Any = "gelu",
        norm_epsilon: float = 1e-6,
        kernel_initializer: Any = "glorot_uniform",
        query_initializer: Any = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.num_heads, self.intermediate_dim, self.activation = num_heads, intermediate_dim, activation
        self.norm_epsilon = norm_epsilon
        self.kernel_initializer = get_initializer("kernel_initializer", kernel_initializer)
        self.query_initializer = get_initializer("query_initializer", query_initializer)
        self.attention = CrossAttention(**inherit(self, CrossAttention, name="attention"))
        self.norm = make_norm("layer", norm_epsilon, self.dtype_policy, "norm")
        self.feed_forward = FeedForward(**inherit(self, FeedForward, name="feed_forward"))
        self.supports_masking = True

    def build(self, inputs_shape):
        if len(inputs_shape) != 3 or inputs_shape[-1] is None:
            raise ValueError(f"`inputs` must have shape (batch, length, dim); received {tuple(inputs_shape)}.")
        self.input_spec = keras.layers.InputSpec(axes={-1: inputs_shape[-1]})
        shape = (inputs_shape[0], 1, inputs_shape[-1])
        initializer = self.query_initializer or keras.initializers.RandomNormal(stddev=0.02)
        self.query = self.add_weight(
            name="query", shape=shape[-1:], initializer=own_initializer(initializer, self, "query")
        )
        self.attention.build(shape, inputs_shape)
        self.norm.build(shape)
        self.feed_forward.build(shape)

    def compute_output_spec(self, inputs, mask=None, training=None):
        self._check_call(inputs, mask)
        return keras.KerasTensor((inputs.shape[0], inputs.shape[-1]), self.compute_dtype)

    def _check_call(self, inputs, mask):
        checks.rank("inputs", inputs, (3, "(batch, length, dim)"))
        checks.padding_mask(mask, inputs)

    def call(self, inputs, mask=None, training=None):
        self._check_call(inputs, mask)
        query = ops.broadcast_to(ops.cast(self.query, inputs.dtype), (ops.shape(inputs)[0], 1, inputs.shape[-1]))
        x = self.attention(query, inputs, context_mask=mask, training=training)
        return (x + self.feed_forward(self.norm(x), training=training))[:, 0]

    def compute_mask(self, inputs, previous_mask=None):
        return None
