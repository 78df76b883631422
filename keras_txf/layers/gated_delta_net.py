"""GatedDeltaNet: linear attention by the gated delta rule.

Legend: B batch, T length, D model dim, N value heads, K key width of a head, V value width of a head, C tokens of a
    chunk, M number of chunks.
"""

import math
from typing import Any, Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.backend import compilers
from keras_txf.layers.base import Layer
from keras_txf.layers.features import zero_padding
from keras_txf.layers.multi_head import split_heads
from keras_txf.layers.norms import make_norm
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.projections import make_projection
from keras_txf.layers.serialization import get_initializer, register
from keras_txf.layers.short_convolution import add_convolution, check_tokens, convolve, known_dim, rows_of
from keras_txf.ops.tensors import batch_size, swap_heads, widen

CHUNK = 64  # tokens of a chunk, a power of 2
SMALL = 16  # smaller blocks are inverted by a few large products, larger blocks in halves: 4 % faster


@register
class GatedDeltaNet(Layer):
    """Linear attention by the gated delta rule, as in three of four blocks of Qwen3-Next.

    Pass it as `attention` to some blocks of a builder, next to blocks with attention. Each value head has a state S
    (K, V). A token updates the state, S <- a S + k b (v - a k S), and reads q S. The decay a = exp(-exp(A_log) *
    softplus(decay(x) + dt_bias)) and the step b = sigmoid(beta(x)) are numbers for each token and head. A short causal
    convolution and SiLU follow the projections of queries, keys and values, and queries and keys have unit length. An
    RMS norm, a gate SiLU(gate(x)) and a projection make the output. Decoding keeps the state and the last inputs of the
    convolution, for any number of tokens.

    Training computes chunks of 64 tokens by products of matrices. Only the states between chunks are computed one after
    another. The rule is computed in float32 under every policy, and in float64 under float64.

    Args:
        num_key_heads: number of heads of queries and keys.
        key_head_dim: width K of the queries and keys of a head.
        num_value_heads: number N of heads of values, a multiple of `num_key_heads`; default `num_key_heads`.
            Consecutive value heads share a key head.
        value_head_dim: width V of the values of a head; default K.
        conv_kernel_size: number of tokens that the short convolution reads.
        norm_epsilon: epsilon of the RMS norm.
        kernel_initializer: initializer of the projections. The kernel of the convolution is initially uniform within
            1 / sqrt(conv_kernel_size).

    Call arguments:
        inputs: float (B, T, D).
        mask: bool (B, T), True at real tokens. Padding does not change the state, and the convolution reads zeros.
        cache: a `Cache`, which decoding passes. The layer then uses the mask of the cache.

    Returns:
        (B, T, D).

    Raises:
        ValueError: a size that is not a positive integer, `num_value_heads` that is not a multiple of `num_key_heads`,
            inputs of another rank or of unknown D.

    Reference:
        [Gated Delta Networks: Improving Mamba2 with Delta Rule](https://arxiv.org/abs/2412.06464).

    Example:

    >>> delta = txf.layers.GatedDeltaNet(num_key_heads=2, key_head_dim=8, num_value_heads=4)
    >>> model = txf.models.decoder_generator(100, num_layers=4, dim=32, num_heads=4, attention=[delta, None] * 2)
    >>> model.generate([[5, 6, 7]], max_new_tokens=4).shape
    (1, 7)
    """

    weight_splits = dict.fromkeys(
        ("query", "key", "value", "gate", "decay", "beta", "output", "convolution_kernel", "A_log", "dt_bias"), "whole"
    )

    def __init__(
        self,
        num_key_heads: int,
        key_head_dim: int,
        num_value_heads: int | None = None,
        value_head_dim: int | None = None,
        conv_kernel_size: int = 4,
        norm_epsilon: float = 1e-6,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.num_key_heads = checks.size("num_key_heads", num_key_heads)
        self.key_head_dim = checks.size("key_head_dim", key_head_dim)
        self.num_value_heads = checks.optional(checks.size, "num_value_heads", num_value_heads)
        self.value_head_dim = checks.optional(checks.size, "value_head_dim", value_head_dim)
        self.conv_kernel_size = checks.size("conv_kernel_size", conv_kernel_size)
        self.norm_epsilon = checks.positive_number("norm_epsilon", norm_epsilon)
        self.kernel_initializer = get_initializer("kernel_initializer", kernel_initializer)
        self.heads, self.value_width = self.num_value_heads or num_key_heads, self.value_head_dim or key_head_dim
        if self.heads % self.num_key_heads:
            raise ValueError(
                f"`num_value_heads` must be a multiple of num_key_heads={num_key_heads}; received {num_value_heads}."
            )
        self.supports_masking = True

    def build(self, inputs_shape):
        dim = known_dim(inputs_shape)
        keys, values = self.num_key_heads * self.key_head_dim, self.heads * self.value_width
        widths = {"query": keys, "key": keys, "value": values, "gate": values, "decay": self.heads, "beta": self.heads}
        for name, width in widths.items():
            setattr(self, name, make_projection(self, name, width, inputs_shape, False))
        add_convolution(self, self.conv_kernel_size, 2 * keys + values, use_bias=False)
        for name, initializer in (("A_log", log_of_rates(0.01)), ("dt_bias", inverse_softplus_of_steps)):
            weight = self.add_weight(name=name, shape=(self.heads,), initializer=initializer, autocast=False)
            setattr(self, name, weight)
        self.norm = make_norm("rms", self.norm_epsilon, self.dtype_policy, "norm")
        self.norm.build((None, None, self.heads, self.value_width))
        self.output_dense = make_projection(self, "output", dim, (None, None, values), False)

    def compute_output_spec(self, inputs, mask=None, cache=None):
        check_tokens(inputs, mask)
        self.query(inputs)  # raises ValueError for another width than in `build`
        return keras.KerasTensor(inputs.shape, self.compute_dtype)

    def call(self, inputs, mask=None, cache=None):
        check_tokens(inputs, mask)
        x, mask = rows_of(inputs, mask, cache)
        query, key, value = self._heads(x, mask, cache)
        log_decay, beta = self._gates(x, mask)
        state = ops.zeros((ops.shape(x)[0], self.heads, self.key_head_dim, self.value_width), query.dtype)
        if cache is not None:
            state = cache.read_state("state", state)
        outputs, state = gated_delta_rule(query, key, value, log_decay, beta, state)  # (B, T, N, V)
        outputs = widen(self.norm(outputs)) * ops.silu(widen(split_heads(self.gate(x), self.heads)))
        outputs = ops.reshape(outputs, (batch_size(x), ops.shape(x)[1], self.heads * self.value_width))
        outputs = self.output_dense(ops.cast(outputs, self.compute_dtype))
        if cache is None:
            return outputs
        cache.write_state("state", state)
        return cache.join(outputs)

    def _heads(self, x, mask, cache):
        """Queries and keys (B, T, N, K) and values (B, T, N, V) after the convolution, at least in float32."""
        x = ops.concatenate([self.query(x), self.key(x), self.value(x)], axis=-1)
        x = widen(ops.silu(convolve(x, self.convolution_kernel, self.convolution_bias, mask, cache)))
        keys = self.num_key_heads * self.key_head_dim
        query, key, value = x[..., :keys], x[..., keys : 2 * keys], x[..., 2 * keys :]
        query, key = (unit_length(split_heads(x, self.num_key_heads)) for x in (query, key))
        query, key = (ops.repeat(x, self.heads // self.num_key_heads, axis=2) for x in (query, key))
        return query / math.sqrt(self.key_head_dim), key, split_heads(value, self.heads)

    def _gates(self, x, mask):
        """The logarithm of the decay, and beta, (B, T, N): 0 at padding."""
        steps = ops.softplus(widen(self.decay(x)) + widen(self.dt_bias))
        log_decay, beta = -ops.exp(widen(self.A_log)) * steps, ops.sigmoid(widen(self.beta(x)))
        if mask is not None:
            log_decay, beta = (zero_padding(gate, mask) for gate in (log_decay, beta))
        return log_decay, beta


def log_of_rates(least):
    """The initializer of the reference implementations: the logarithm of a number between the least one and 16."""
    return lambda shape, dtype=None: ops.cast(ops.log(_uniform(least, 16.0, shape)), dtype)


def inverse_softplus_of_steps(shape, dtype=None):
    """The initializer of the reference implementation: its softplus is log-uniform between 0.001 and 0.1."""
    steps = ops.exp(_uniform(math.log(0.001), math.log(0.1), shape))
    return ops.cast(ops.log(ops.expm1(steps)), dtype)


def _uniform(least, most, shape):
    """Draws with its own seed: Keras' seed generator may not exist yet if Keras delays the creation of weights."""
    return keras.initializers.RandomUniform(least, most)(shape, "float32")


def unit_length(x):
    """Vectors divided by their length; a zero vector stays zero."""
    return x * ops.rsqrt(ops.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def gated_delta_rule(query, key, value, log_decay, beta, state):
    """Updates a state by tokens, and computes their outputs.

    Args:
        query, key: (B, T, N, K).
        value: (B, T, N, V).
        log_decay, beta: (B, T, N).
        state: (B, N, K, V).

    Returns:
        The outputs (B, T, N, V), and the state after the tokens (B, N, K, V).
    """
    gates = ops.stack([log_decay, beta], axis=-1)
    tokens = swap_heads(ops.concatenate([query, key, value, gates], axis=-1))  # (B, N, T, 2 K + V + 2)
    read = _read_token if query.shape[1] == 1 else _read_chunks
    outputs, state = read(tokens, state)
    return swap_heads(outputs), state


def _split_tokens(tokens, state):
    """Splits the last axis of tokens into queries, keys, values, log_decay and beta (..., 1)."""
    width = state.shape[2]
    end = tokens.shape[-1] - 2
    return (
        tokens[..., :width], tokens[..., width : 2 * width], tokens[..., 2 * width : end],
        tokens[..., end : end + 1], tokens[..., end + 1 :],
    )  # fmt: skip


def _read_token(tokens, state):
    query, key, value, log_decay, beta = _split_tokens(tokens, state)  # (B, N, 1, ...)
    state = ops.exp(log_decay) * state
    state = state + ops.swapaxes(key, -1, -2) * (beta * (value - ops.matmul(key, state)))
    return ops.matmul(query, state), state


def _read_chunks(tokens, state):
    """All chunks at once, except the states between them: the WY form of the paper, section 3.3.

    Within a chunk S = decay S_0 + sum of decayed k u^T. The u = U - W S_0 solve a triangular system.
    """
    length, heads = ops.shape(tokens)[2], state.shape[1]
    if isinstance(length, int):
        size = min(CHUNK, 2 ** max(length - 1, 0).bit_length())
        chunks = max(-(-length // size), 1)
    else:
        size = CHUNK
        chunks = ops.maximum(length + size - 1, size) // size
    tokens = ops.pad(tokens, ((0, 0), (0, 0), (0, chunks * size - length), (0, 0)))  # beta and log_decay 0: no change
    tokens = ops.reshape(tokens, (batch_size(tokens), heads, chunks, size, tokens.shape[-1]))  # (B, N, M, C, ...)
    query, key, value, log_decay, beta = _split_tokens(tokens, state)

    total = ops.cumsum(log_decay, axis=-2)  # since the start of the chunk, (B, N, M, C, 1)
    index = ops.arange(size, dtype="int32")
    visible, earlier = index[:, None] >= index, index[:, None] > index  # (C, C)
    between = ops.exp(ops.where(visible, total - ops.swapaxes(total, -1, -2), 0.0))
    keys = ops.swapaxes(key, -1, -2)
    inverse = inverse_of_unit_triangle(ops.where(earlier, beta * ops.matmul(key, keys) * between, 0.0))
    both = ops.matmul(inverse, beta * ops.concatenate([value, key * ops.exp(total)], axis=-1))  # U and W, (..., V + K)

    width, split, last = value.shape[-1], key.shape[-1], total[..., -1:, :]
    change = ops.matmul(ops.swapaxes(key * ops.exp(last - total), -1, -2), both)  # (B, N, M, K, V + K)
    stay = ops.exp(last) * ops.eye(split, dtype=key.dtype) - change[..., width:]
    changes = ops.transpose(ops.concatenate([stay, change[..., :width]], axis=-1), (2, 0, 1, 3, 4))  # (M, B, N, K, ...)

    def next_state(state, change):
        return ops.matmul(change[..., :split], state) + change[..., split:]

    state, before = compilers.scan_states(next_state, state, changes)
    before = ops.transpose(before, (1, 2, 0, 3, 4))  # (B, N, M, K, V), the state before each chunk
    new = both[..., :width] - ops.matmul(both[..., width:], before)
    scores = ops.where(visible, ops.matmul(query, keys) * between, 0.0)
    outputs = ops.matmul(query * ops.exp(total), before) + ops.matmul(scores, new)
    outputs = ops.reshape(outputs, (batch_size(tokens), heads, chunks * size, width))
    return outputs[:, :, :length], state


def inverse_of_unit_triangle(below):
    """The inverse of 1 + below, where `below` (..., C, C) is zero on and above its diagonal; C is a power of 2.

    [[a, 0], [b, c]] has the inverse [[a', 0], [-c' b a', c']]. This needs only products of matrices, which all backends
    and exports support, and is as exact as substitution. Powers of `below` would overflow float32 for repeated keys.
    """
    half = below.shape[-1] // 2
    if half < SMALL:
        return _inverse_of_small(below)
    blocks = ops.stack([below[..., :half, :half], below[..., half:, half:]], axis=-3)
    blocks = inverse_of_unit_triangle(blocks)
    first, second = blocks[..., 0, :, :], blocks[..., 1, :, :]
    corner = -ops.matmul(ops.matmul(second, below[..., half:, :half]), first)
    top, bottom = [first, ops.zeros_like(corner)], [corner, second]
    return ops.concatenate([ops.concatenate(row, axis=-1) for row in (top, bottom)], axis=-2)


def _inverse_of_small(below):
    """Inverts all blocks of 2 tokens along the diagonal at once, then all blocks of 4, of 8, ..."""
    size = below.shape[-1]
    index = ops.arange(size, dtype="int32")
    inverse, half = ops.eye(size, dtype=below.dtype), 1
    while half < size:
        blocks = index // half
        corners = ops.logical_and(blocks[:, None] == blocks + 1, blocks[:, None] % 2 == 1)
        corner = ops.where(corners, below, 0.0)
        inverse = inverse - (corner if half == 1 else ops.matmul(ops.matmul(inverse, corner), inverse))
        half *= 2
    return inverse
