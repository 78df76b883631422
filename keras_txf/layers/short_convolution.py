"""ShortConvolution: a causal convolution of a few tokens between two gates, instead of attention.

Legend: B batch, T length, D model dim, K kernel size, C channels.
"""

from typing import Any, Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.layers.base import Layer
from keras_txf.layers.features import zero_padding
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.projections import make_projection
from keras_txf.layers.serialization import get_initializer, register


@register
class ShortConvolution(Layer):
    """The gated short convolution of LFM2: output(c * convolution(b * x)), where b, c and x are projections.

    Pass it as `attention` to some blocks of a builder, next to blocks with attention. The convolution is depthwise,
    over a token and the K - 1 tokens before it. Decoding keeps K - 1 vectors for any number of tokens.

    Args:
        kernel_size: number K of tokens that the convolution reads, the last of which is the token itself.
        use_bias: whether the projections and the convolution have a bias.
        kernel_initializer: initializer of the projections. The kernel of the convolution is initially uniform within
            1 / sqrt(K), as in PyTorch.

    Call arguments:
        inputs: float (B, T, D).
        mask: bool (B, T), True at real tokens. The convolution reads zeros at padding.
        cache: a `Cache`, which decoding passes. The layer then uses the mask of the cache.

    Returns:
        (B, T, D).

    Raises:
        ValueError: a `kernel_size` that is not a positive integer, inputs of another rank or of unknown D.

    Reference:
        [LFM2 Technical Report](https://arxiv.org/abs/2511.23404).

    Example:

    >>> mixers = [txf.layers.ShortConvolution(kernel_size=3), None]  # None: an attention
    >>> model = txf.models.decoder_generator(100, num_layers=2, dim=32, num_heads=4, attention=mixers)
    >>> model.generate([[5, 6, 7]], max_new_tokens=4).shape
    (1, 7)
    """

    weight_splits = dict.fromkeys(("input", "output", "convolution_kernel", "convolution_bias"), "whole")

    def __init__(
        self,
        kernel_size: int = 3,
        use_bias: bool = False,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.kernel_size = checks.size("kernel_size", kernel_size)
        self.use_bias = checks.boolean("use_bias", use_bias)
        self.kernel_initializer = get_initializer("kernel_initializer", kernel_initializer)
        self.supports_masking = True

    def build(self, inputs_shape):
        dim = known_dim(inputs_shape)
        self.input_dense = make_projection(self, "input", 3 * dim, inputs_shape)
        add_convolution(self, self.kernel_size, dim, self.use_bias)
        self.output_dense = make_projection(self, "output", dim, inputs_shape)

    def compute_output_spec(self, inputs, mask=None, cache=None):
        check_tokens(inputs, mask)
        self.input_dense(inputs)  # raises ValueError for another width than in `build`
        return keras.KerasTensor(inputs.shape, self.compute_dtype)

    def call(self, inputs, mask=None, cache=None):
        check_tokens(inputs, mask)
        x, mask = rows_of(inputs, mask, cache)
        before, after, x = ops.split(self.input_dense(x), 3, axis=-1)
        x = convolve(before * x, self.convolution_kernel, self.convolution_bias, mask, cache)
        outputs = self.output_dense(after * x)
        return outputs if cache is None else cache.join(outputs)


def known_dim(inputs_shape):
    """The D of a shape (B, T, D); raises ValueError for another rank or an unknown D."""
    if len(inputs_shape) != 3 or inputs_shape[-1] is None:
        raise ValueError(
            f"`inputs` must have shape (batch, length, dim) of a known dim; received shape {tuple(inputs_shape)}."
        )
    return inputs_shape[-1]


def check_tokens(inputs, mask):
    """Raises ValueError if `inputs` does not have shape (B, T, D), or the mask shape (B, T)."""
    checks.rank("inputs", inputs, (3, "(batch, length, dim)"))
    checks.padding_mask(mask, inputs)


def rows_of(inputs, mask, cache):
    """The tokens and their mask as the rows of a recurrence, which `Cache.split` makes if there is a cache."""
    if cache is None:
        return inputs, mask
    return cache.split(inputs), None if cache.mask is None else cache.split(cache.mask)


def add_convolution(layer, kernel_size, channels, use_bias):
    """Gives a layer a kernel (K, C), and a bias (C,) or None.

    The kernel is initially uniform within 1 / sqrt(K), as in a depthwise convolution of PyTorch.
    """
    layer.convolution_kernel = layer.add_weight(
        name="convolution_kernel",
        shape=(kernel_size, channels),
        initializer=keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform"),
    )
    layer.convolution_bias = None
    if use_bias:
        layer.convolution_bias = layer.add_weight(name="convolution_bias", shape=(channels,), initializer="zeros")


def convolve(x, kernel, bias=None, mask=None, cache=None):
    """Sums each channel of x (B, T, C) over a token and the K - 1 before it, times kernel (K, C), and adds the bias."""
    size = kernel.shape[0]
    past = max(size - 1, 1)  # a cache cannot hold a state of no vectors
    x = x if mask is None else zero_padding(x, mask)
    length = ops.shape(x)[1]
    if cache is None:
        x = ops.pad(x, ((0, 0), (past, 0), (0, 0)))
    else:
        x = cache.look_back("convolution", x, past)
    starts = range(past - size + 1, past + 1)
    x = sum(x[:, start : start + length] * kernel[i] for i, start in enumerate(starts))
    return x if bias is None else x + bias
