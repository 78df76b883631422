"""Mamba2: a selective state space model, computed by products of matrices.

Legend: B batch, T length, D model dim, N heads, P width of a head, G groups, R heads of a group, S width of the state,
    C tokens of a chunk, M number of chunks.
"""

from typing import Any, Unpack

import keras
from keras import ops

from keras_txf import checks
from keras_txf.backend import compilers
from keras_txf.layers.base import Layer
from keras_txf.layers.features import zero_padding
from keras_txf.layers.gated_delta_net import inverse_softplus_of_steps, log_of_rates
from keras_txf.layers.option_tables import LayerOptions
from keras_txf.layers.projections import make_projection
from keras_txf.layers.serialization import get_initializer, register
from keras_txf.layers.short_convolution import add_convolution, check_tokens, convolve, known_dim, rows_of
from keras_txf.ops.tensors import batch_size, widen

CHUNK = 64  # tokens of a chunk


@register
class Mamba2(Layer):
    """The selective state space model of Mamba 2, as in nine of ten blocks of Granite 4.

    Pass it as `attention` to some or all blocks of a builder. Each head has a state h (S, P). A token x (P,) updates
    the state, h <- exp(dt A) h + dt B x^T, and reads y = C h + D x. The step dt = softplus(dt(x) + dt_bias) is a number
    for each token and head. The vectors B and C (S,) of a token serve all heads of a group. A = -exp(A_log) and D are
    numbers for each head. A short causal convolution and SiLU precede the update. A gate SiLU(z), an RMS norm over the
    heads of each group and a projection make the output. Decoding keeps the state and the last inputs of the
    convolution, for any number of tokens.

    Training computes chunks of 64 tokens by products of matrices, the duality of the paper. Only the states between
    chunks are computed one after another. The update is computed in float32 under every policy, and in float64 under
    float64.

    Args:
        num_heads: number N of heads.
        head_dim: width P of a head; default 2 * D / N, the paper's expansion.
        state_dim: width S of the state of a feature.
        num_groups: number G of groups of consecutive heads, a divisor of `num_heads`.
        conv_kernel_size: number of tokens that the short convolution reads.
        use_bias: whether the projections have a bias.
        conv_bias: whether the convolution has a bias.
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
        ValueError: a size that is not a positive integer, `num_groups` that does not divide `num_heads`, `num_heads`
            that does not divide 2 * D without `head_dim`, inputs of another rank or of unknown D.

    Reference:
        [Transformers are SSMs](https://arxiv.org/abs/2405.21060), sections 6 and 7.

    Example:

    >>> mamba = txf.layers.Mamba2(num_heads=4, state_dim=8)
    >>> model = txf.models.decoder_generator(100, num_layers=4, dim=32, num_heads=4, attention=[mamba, None] * 2)
    >>> model.generate([[5, 6, 7]], max_new_tokens=4).shape
    (1, 7)
    """

    weight_splits = dict.fromkeys(
        ("input", "output", "convolution_kernel", "convolution_bias", "A_log", "D", "dt_bias", "norm_scale"), "whole"
    )

    def __init__(
        self,
        num_heads: int,
        head_dim: int | None = None,
        state_dim: int = 128,
        num_groups: int = 1,
        conv_kernel_size: int = 4,
        use_bias: bool = False,
        conv_bias: bool = True,
        norm_epsilon: float = 1e-5,
        kernel_initializer: Any = "glorot_uniform",
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
        self.num_heads = checks.size("num_heads", num_heads)
        self.head_dim = checks.optional(checks.size, "head_dim", head_dim)
        self.state_dim = checks.size("state_dim", state_dim)
        self.num_groups = checks.size("num_groups", num_groups)
        checks.divides("num_groups", self.num_groups, "num_heads", self.num_heads)
        self.conv_kernel_size = checks.size("conv_kernel_size", conv_kernel_size)
        self.use_bias = checks.boolean("use_bias", use_bias)
        self.conv_bias = checks.boolean("conv_bias", conv_bias)
        self.norm_epsilon = checks.positive_number("norm_epsilon", norm_epsilon)
        self.kernel_initializer = get_initializer("kernel_initializer", kernel_initializer)
        self.supports_masking = True

    def build(self, inputs_shape):
        dim = known_dim(inputs_shape)
        if self.head_dim is None:
            checks.divides("num_heads", self.num_heads, "2 * dim", 2 * dim)
        self.width = self.num_heads * self.head_dim if self.head_dim else 2 * dim  # of x, z and y
        self.channels = self.width + 2 * self.num_groups * self.state_dim  # of the convolution: x, B and C
        self.input_dense = make_projection(self, "input", self.width + self.channels + self.num_heads, inputs_shape)
        add_convolution(self, self.conv_kernel_size, self.channels, self.conv_bias)
        initializers = {"A_log": log_of_rates(1.0), "D": "ones", "dt_bias": inverse_softplus_of_steps}
        for name, initializer in initializers.items():
            weight = self.add_weight(name=name, shape=(self.num_heads,), initializer=initializer, autocast=False)
            setattr(self, name, weight)
        self.norm_scale = self.add_weight(name="norm_scale", shape=(self.width,), initializer="ones", autocast=False)
        self.output_dense = make_projection(self, "output", dim, (None, None, self.width))

    def compute_output_spec(self, inputs, mask=None, cache=None):
        check_tokens(inputs, mask)
        self.input_dense(inputs)  # raises ValueError for another width than in `build`
        return keras.KerasTensor(inputs.shape, self.compute_dtype)

    def call(self, inputs, mask=None, cache=None):
        check_tokens(inputs, mask)
        rows, mask = rows_of(inputs, mask, cache)
        parts = self.input_dense(rows)
        gate, mixed = parts[..., : self.width], parts[..., self.width : self.width + self.channels]
        dt = self._steps(parts[..., self.width + self.channels :], mask)  # (B, T, N)
        x, b, c = self._mix(mixed, mask, cache)
        state = ops.zeros((ops.shape(rows)[0], *b.shape[2:], *x.shape[3:]), x.dtype)
        if cache is not None:
            state = cache.read_state("state", state)
        log_decay = -dt * ops.exp(widen(self.A_log))
        shape = batch_size(x), ops.shape(x)[1], *x.shape[2:4]
        dt, log_decay = (ops.reshape(y, shape) for y in (dt, log_decay))  # (B, T, G, R)
        y, state = selective_state_space(x * ops.expand_dims(dt, -1), b, c, log_decay, state)
        y = y + x * ops.reshape(widen(self.D), (*x.shape[2:4], 1))  # (B, T, G, R, P)
        outputs = self.output_dense(ops.cast(self._norm(y, gate), self.compute_dtype))
        if cache is None:
            return outputs
        cache.write_state("state", state)
        return cache.join(outputs)

    def _steps(self, dt, mask):
        """The steps of tokens and heads (B, T, N), at least in float32: 0 at padding."""
        dt = ops.softplus(widen(dt) + widen(self.dt_bias))
        return dt if mask is None else zero_padding(dt, mask)

    def _mix(self, mixed, mask, cache):
        """x (B, T, G, R, P), B and C (B, T, G, S) after the convolution, at least in float32."""
        mixed = convolve(mixed, self.convolution_kernel, self.convolution_bias, mask, cache)
        mixed = widen(ops.silu(mixed))
        shape, groups = (batch_size(mixed), ops.shape(mixed)[1]), self.num_groups
        states = groups * self.state_dim
        x = mixed[..., : self.width]
        x = ops.reshape(x, (*shape, groups, self.num_heads // groups, self.width // self.num_heads))
        b, c = mixed[..., self.width : self.width + states], mixed[..., self.width + states :]
        return x, *(ops.reshape(y, (*shape, groups, self.state_dim)) for y in (b, c))

    def _norm(self, y, gate):
        """The gated RMS norm of the heads of each group, (B, T, N P)."""
        shape = (batch_size(y), ops.shape(y)[1])
        y = ops.reshape(y, (*shape, self.width)) * ops.silu(widen(gate))
        y = ops.reshape(y, (*shape, self.num_groups, self.width // self.num_groups))
        y = y * ops.rsqrt(ops.mean(ops.square(y), axis=-1, keepdims=True) + self.norm_epsilon)
        return ops.reshape(y, (*shape, self.width)) * widen(self.norm_scale)


def selective_state_space(x, b, c, log_decay, state):
    """Updates a state by tokens, and computes their outputs: h <- exp(log_decay) h + b x^T, y = c h.

    Args:
        x: (B, T, G, R, P).
        b, c: (B, T, G, S).
        log_decay: (B, T, G, R).
        state: (B, G, S, R, P).

    Returns:
        The outputs (B, T, G, R, P), and the state after the tokens (B, G, S, R, P).
    """
    if x.shape[1] == 1:
        decay = ops.exp(log_decay[:, 0])[:, :, None, :, None]  # (B, G, 1, R, 1)
        state = decay * state + b[:, 0, :, :, None, None] * x[:, 0, :, None]
        y = ops.sum(c[:, 0, :, :, None, None] * state, axis=2)
        return y[:, None], state
    return _read_chunks(x, b, c, log_decay, state)


def _read_chunks(x, b, c, log_decay, state):
    """All chunks at once, except the states between them: section 6 of the paper."""
    length = ops.shape(x)[1]
    groups, size, heads, width = state.shape[1:]
    if isinstance(length, int):
        tokens = min(CHUNK, max(length, 1))
        chunks = max(-(-length // tokens), 1)
    else:
        tokens = CHUNK
        chunks = ops.maximum(length + tokens - 1, tokens) // tokens

    def in_chunks(y):
        """(B, T, ...) -> (B, M, C, ...). The tokens that fill the last chunk are zeros, which change no state."""
        y = ops.pad(y, ((0, 0), (0, chunks * tokens - length), *[(0, 0)] * (len(y.shape) - 2)))
        return ops.reshape(y, (batch_size(y), chunks, tokens, *y.shape[2:]))

    x, b, c, log_decay = map(in_chunks, (x, b, c, log_decay))
    x = ops.transpose(x, (0, 3, 1, 4, 2, 5))  # (B, G, M, R, C, P)
    b, c = (ops.transpose(y, (0, 3, 1, 2, 4)) for y in (b, c))  # (B, G, M, C, S)
    log_decay = ops.transpose(log_decay, (0, 3, 1, 4, 2))  # (B, G, M, R, C)
    total = ops.cumsum(log_decay, axis=-1)  # since the start of the chunk

    # Sums from one token to another: the difference of two totals would lose digits after a strong decay.
    index = ops.arange(tokens, dtype="int32")
    visible = index[:, None] >= index  # (C, C)
    after = ops.where(index[:, None] > index, log_decay[..., :, None], 0.0)
    after = ops.cumsum(after, axis=-2)  # (B, G, M, R, C, C)
    between, to_end = ops.exp(after), ops.exp(after[..., -1, :])
    scores = ops.matmul(c, ops.swapaxes(b, -1, -2))[:, :, :, None]  # (B, G, M, 1, C, C)
    within = ops.matmul(ops.where(visible, scores * between, 0.0), x)  # (B, G, M, R, C, P)

    def joined(y):
        """(B, G, M, R, C, P) -> (B, G, M, C, R P)."""
        y = ops.transpose(y, (0, 1, 2, 4, 3, 5))
        return ops.reshape(y, (batch_size(y), groups, chunks, tokens, heads * width))

    last = total[..., -1:]
    change = ops.matmul(ops.swapaxes(b, -1, -2), joined(x * to_end[..., None]))  # (B, G, M, S, R P)
    decay = ops.repeat(ops.swapaxes(ops.exp(last), -1, -2), width, axis=-1)  # (B, G, M, 1, R P)

    def next_state(state, step):
        decay, change = step
        return decay * state + change

    state = ops.reshape(state, (batch_size(state), groups, size, heads * width))
    steps = tuple(ops.transpose(y, (2, 0, 1, 3, 4)) for y in (decay, change))
    state, before = compilers.scan_states(next_state, state, steps)
    before = ops.transpose(before, (1, 2, 0, 3, 4))  # (B, G, M, S, R P), the state before each chunk
    y = ops.matmul(c, before)  # (B, G, M, C, R P)
    y = ops.reshape(y, (batch_size(y), groups, chunks, tokens, heads, width))
    y = y * ops.swapaxes(ops.exp(total), -1, -2)[..., None] + ops.transpose(within, (0, 1, 2, 4, 3, 5))
    y = ops.reshape(ops.transpose(y, (0, 2, 3, 1, 4, 5)), (batch_size(y), chunks * tokens, groups, heads, width))
    return y[:, :length], ops.reshape(state, (batch_size(state), groups, size, heads, width))
