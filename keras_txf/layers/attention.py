"""MultiHeadSelfAttention and CrossAttention.

Legend: B batch, T query length, S context length, D model dim, N heads, K key-value heads, H head dim.
"""

import keras
from keras import ops

from keras_txf import checks
from keras_txf.layers.arguments import named_arguments
from keras_txf.layers.dropout import Dropout
from keras_txf.layers.norms import make_norm
from keras_txf.layers.options import get_config, get_initializer, register, revive
from keras_txf.layers.positions import RelativeBias, make_position
from keras_txf.layers.projections import apply, make_projection
from keras_txf.ops.attention import attention, batch_size
from keras_txf.ops.masks import ATTENTION_MASKS, combine_masks


@register
@named_arguments
class MultiHeadSelfAttention(keras.layers.Layer):
    """Attention of a sequence to itself, with every mask and every kind of position.

    Use it alone in any Keras model, or through `EncoderBlock` and `DecoderBlock`. Each head is
    `dim // num_heads` wide unless `head_dim` says otherwise.

    Args:
        num_heads: number of query heads N.
        head_dim: width H of a head; default D / N, which must then be whole.
        num_key_value_heads: number K of key-value heads, a divisor of N: 1 is multi-query, between
            is grouped-query attention. Default N.
        causal: whether a token sees only itself and what came before.
        window: how many tokens a token sees on each side, itself included: |t - s| < window.
        position: "rotary", "alibi", "relative" (T5), None, or a position layer, which several
            attention layers may share.
        dropout: rate on the attention weights.
        use_bias: whether the projections have a bias.
        output_bias: whether the last of them has one; default as `use_bias`.
        output_projection: whether the output projection W^O follows the heads. The paper's attention is
            Concat(heads) W^O; with False the heads are concatenated alone, as in graph attention networks: (B, T, N * H).
        qk_norm: whether queries and keys go through an RMS norm, head by head, before rotation.
        norm_epsilon: the epsilon of that norm.
        logit_soft_cap: c bends the logits to c · tanh(logits / c).
        scale: factor on the logits; default 1 / sqrt(H).
        kernel_initializer: of the projections.

    Call arguments:
        inputs: float (B, T, D).
        mask: bool (B, T), True at real tokens. Keras fills it from the layer before (as
            `inputs_mask` where other tensors are passed too).
        attention_mask: bool (T, T), (B, T, T) or (B, N or 1, T, T), True where a token may attend.
        segment_ids: int (B, T); tokens see only their own segment. For packed sequences.
        positions: int (T,) or (B, T), for `position`; default 0, 1, 2, ...
        return_attention_scores: also return the weights (B, N, T, T), before dropout.

    All masks hold together. A token that `attention_mask` lets see nothing gets zeros before the
    output projection; what a padding token gets is finite, and of no concern.

    Returns:
        (B, T, D), or (B, T, N * H) with `output_projection=False`; and the scores if asked for.

    Raises:
        ValueError: D not divisible by `num_heads` without `head_dim`, K not a divisor of N, a mask
            of another rank, an unknown position, `output_bias` with `output_projection=False`.

    Reference:
        [Attention Is All You Need](https://arxiv.org/abs/1706.03762), section 3.2.2;
        [Graph Attention Networks](https://arxiv.org/abs/1710.10903), equation 5, for heads without W^O.

    Example:

    >>> layer = txf.layers.MultiHeadSelfAttention(num_heads=4, causal=True, position="rotary")
    >>> layer(keras.random.normal((2, 7, 32))).shape
    (2, 7, 32)
    """

    def __init__(
        self,
        num_heads,
        head_dim=None,
        num_key_value_heads=None,
        causal=False,
        window=None,
        position=None,
        dropout=0.0,
        use_bias=True,
        output_bias=None,
        output_projection=True,
        qk_norm=False,
        norm_epsilon=1e-6,
        logit_soft_cap=None,
        scale=None,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        _set_options(
            self, num_heads, head_dim, num_key_value_heads, dropout, use_bias, output_bias, output_projection,
            qk_norm, norm_epsilon, logit_soft_cap, scale, kernel_initializer,
        )
        self.causal = checks.boolean("causal", causal)
        self.window = checks.optional(checks.size, "window", window)
        self.position = revive(position)
        self.position_layer = make_position(self.position, self.num_heads, causal, self.dtype_policy)
        self.supports_masking = True

    def build(self, inputs_shape):
        _build_projections(self, inputs_shape, inputs_shape)
        if isinstance(self.position_layer, RelativeBias) and not self.position_layer.built:
            self.position_layer.build()

    def call(
        self,
        inputs,
        mask=None,
        inputs_mask=None,
        attention_mask=None,
        segment_ids=None,
        positions=None,
        return_attention_scores=False,
        training=None,
    ):
        padding = inputs_mask if mask is None else mask
        _check_masks(self, inputs, inputs, attention_mask, mask=padding, segment_ids=segment_ids)
        index = ops.arange(ops.shape(inputs)[1])
        positions = self._positions(inputs, index, positions)
        query, key, value = self.project(inputs, positions)
        bias = None if self.position_layer is None else self.position_layer.bias(positions, positions)
        others = (self.window, padding, attention_mask, segment_ids)
        causal_alone = self.causal and all(other is None for other in others)
        allowed = None
        if not causal_alone:
            allowed = combine_masks(
                index, index, self.causal, self.window, padding, segment_ids, segment_ids, attention_mask
            )
        return attend(
            self, query, key, value, allowed, bias, causal_alone, attention_mask is not None,
            return_attention_scores, training,
        )

    def _positions(self, inputs, index, positions):
        if positions is None:
            return index
        if self.position_layer is None:
            raise ValueError("`positions` was passed, but position=None: it would not be used.")
        positions = ops.convert_to_tensor(positions)
        checks.positions(positions, *inputs.shape[:2])
        return ops.cast(positions, "int32")  # of unsigned ones no difference is below zero

    def project(self, inputs, positions):
        """Queries (B, T, N, H), keys and values (B, T, K, H), turned by their positions."""
        query, (key, value) = project_query(self, inputs), project_context(self, inputs)
        if self.position_layer is not None:
            query = self.position_layer.rotate(query, positions)
            key = self.position_layer.rotate(key, positions)
        return query, key, value

    def get_config(self):
        return get_config(self, super().get_config())


@register
@named_arguments
class CrossAttention(keras.layers.Layer):
    """Attention of a sequence to a context of its own length and width, such as an encoder's output.

    Args:
        num_heads, head_dim, num_key_value_heads, dropout, use_bias, output_bias, output_projection, qk_norm,
        norm_epsilon, logit_soft_cap, scale, kernel_initializer: as in `MultiHeadSelfAttention`.

    Call arguments:
        inputs: float (B, T, D), the queries.
        context: float (B, S, any width), the keys and values.
        context_mask: bool (B, S), True at real tokens of the context. Keras fills it from the context.
        attention_mask: bool (T, S), (B, T, S) or (B, N or 1, T, S), True where a query may attend.
        segment_ids, context_segment_ids: int (B, T) and (B, S), both or none: a query sees only the
            context of its own segment.
        return_attention_scores: also return the weights (B, N, T, S), before dropout.

    A query that may see nothing, such as one with a context all of padding, gets zeros before the
    output projection.

    Returns:
        (B, T, D), or (B, T, N * H) with `output_projection=False`; and the scores if asked for.

    Raises:
        ValueError: as `MultiHeadSelfAttention`; one of the two segment ids without the other.

    Reference:
        [Attention Is All You Need](https://arxiv.org/abs/1706.03762), section 3.2.3.

    Example:

    >>> layer = txf.layers.CrossAttention(num_heads=4)
    >>> layer(keras.random.normal((2, 7, 32)), keras.random.normal((2, 5, 48))).shape
    (2, 7, 32)
    """

    def __init__(
        self,
        num_heads,
        head_dim=None,
        num_key_value_heads=None,
        dropout=0.0,
        use_bias=True,
        output_bias=None,
        output_projection=True,
        qk_norm=False,
        norm_epsilon=1e-6,
        logit_soft_cap=None,
        scale=None,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        _set_options(
            self, num_heads, head_dim, num_key_value_heads, dropout, use_bias, output_bias, output_projection,
            qk_norm, norm_epsilon, logit_soft_cap, scale, kernel_initializer,
        )
        self.supports_masking = True

    def build(self, inputs_shape, context_shape):
        _build_projections(self, inputs_shape, context_shape)

    def call(
        self,
        inputs,
        context,
        context_mask=None,
        attention_mask=None,
        segment_ids=None,
        context_segment_ids=None,
        return_attention_scores=False,
        training=None,
    ):
        if (segment_ids is None) != (context_segment_ids is None):
            raise ValueError("`segment_ids` and `context_segment_ids` must be passed together; received one.")
        _check_masks(self, inputs, context, attention_mask, segment_ids=segment_ids)
        if context_mask is not None:
            checks.mask("context_mask", context_mask, (2, "(batch, length)"))
        for name, tensor in (("context_mask", context_mask), ("context_segment_ids", context_segment_ids)):
            checks.broadcasts(name, tensor, *context.shape[:2])
        query, (key, value) = project_query(self, inputs), project_context(self, context)
        allowed = combine_masks(
            None, None, False, None, context_mask, segment_ids, context_segment_ids, attention_mask
        )
        return attend(
            self, query, key, value, allowed, None, False, True, return_attention_scores, training
        )

    def get_config(self):
        return get_config(self, super().get_config())


def _set_options(
    layer, num_heads, head_dim, num_key_value_heads, dropout, use_bias, output_bias, output_projection,
    qk_norm, norm_epsilon, logit_soft_cap, scale, kernel_initializer,
):
    """Checks and keeps the options that both attentions have."""
    layer.num_heads = checks.size("num_heads", num_heads)
    layer.head_dim = checks.optional(checks.size, "head_dim", head_dim)
    layer.num_key_value_heads = checks.optional(
        checks.size, "num_key_value_heads", num_key_value_heads
    )
    if num_key_value_heads is not None:
        checks.divides("num_key_value_heads", num_key_value_heads, "num_heads", num_heads)
    layer.dropout = checks.rate("dropout", dropout)
    layer.use_bias = checks.boolean("use_bias", use_bias)
    layer.output_bias = checks.optional(checks.boolean, "output_bias", output_bias)
    layer.output_projection = checks.boolean("output_projection", output_projection)
    check_output_bias("output_bias", output_bias, output_projection)
    layer.qk_norm = checks.boolean("qk_norm", qk_norm)
    layer.norm_epsilon = checks.positive_number("norm_epsilon", norm_epsilon)
    layer.logit_soft_cap = checks.optional(checks.positive_number, "logit_soft_cap", logit_soft_cap)
    layer.scale = checks.optional(checks.positive_number, "scale", scale)
    layer.kernel_initializer = get_initializer("kernel_initializer", kernel_initializer)


def check_output_bias(name, bias, output_projection):
    if bias is not None and not output_projection:
        raise ValueError(f"`{name}` must be None where output_projection=False: no projection would have it; received {bias}.")


def _build_projections(layer, inputs_shape, context_shape):
    for name, shape in (("inputs", inputs_shape), ("context", context_shape)):
        if len(shape) != 3:
            raise ValueError(f"`{name}` must have shape (batch, length, dim); received shape {tuple(shape)}.")
    dim = inputs_shape[-1]
    if dim is None or context_shape[-1] is None:
        raise ValueError("`inputs` must have a known dim, their last axis; received None.")
    if layer.head_dim is None:
        checks.divides("num_heads", layer.num_heads, "dim", dim)
    head_dim = layer.head_dim or dim // layer.num_heads
    kv_heads = layer.num_key_value_heads or layer.num_heads
    heads_shape = (*inputs_shape[:-1], layer.num_heads * head_dim)
    layer.query = make_projection(layer, "query", layer.num_heads * head_dim, inputs_shape)
    layer.key = make_projection(layer, "key", kv_heads * head_dim, context_shape)
    layer.value = make_projection(layer, "value", kv_heads * head_dim, context_shape)
    layer.output_dense = None
    if layer.output_projection:
        layer.output_dense = make_projection(layer, "output", dim, heads_shape, layer.output_bias)
    layer.dropout_layer = Dropout(layer.dropout, dtype=layer.dtype_policy, name="dropout")
    if layer.qk_norm:
        layer.query_norm = make_norm("rms", layer.norm_epsilon, layer.dtype_policy, "query_norm")
        layer.key_norm = make_norm("rms", layer.norm_epsilon, layer.dtype_policy, "key_norm")
        layer.query_norm.build((None, None, layer.num_heads, head_dim))
        layer.key_norm.build((None, None, kv_heads, head_dim))


def _check_masks(layer, inputs, context, attention_mask, **others):
    """What a wrong shape would otherwise meet inside the backend, or not at all; `others` are (B, T)."""
    for name, tensor in (("inputs", inputs), ("context", context)):
        checks.rank(name, tensor, (3, "(batch, length, dim)"))
    batch, length, _ = inputs.shape
    checks.broadcasts("context", context, batch, *context.shape[1:])
    for name, tensor in others.items():
        checks.broadcasts(name, tensor, batch, length)
    check_attention_mask("attention_mask", attention_mask, layer.num_heads, inputs, context)


def check_attention_mask(name, mask, num_heads, inputs, context):
    if mask is not None:
        checks.mask(name, mask, *ATTENTION_MASKS)
        heads = () if len(mask.shape) == 3 else (num_heads,)
        checks.broadcasts(name, mask, inputs.shape[0], *heads, inputs.shape[1], context.shape[1])


def project_query(layer, inputs):
    """(B, T, D) -> queries (B, T, N, H)."""
    query = _split_heads(apply(layer.query, inputs), layer.num_heads)
    return layer.query_norm(query) if layer.qk_norm else query


def project_context(layer, context):
    """(B, S, width) -> keys and values (B, S, K, H)."""
    kv_heads = layer.num_key_value_heads or layer.num_heads
    key = _split_heads(apply(layer.key, context), kv_heads)
    value = _split_heads(apply(layer.value, context), kv_heads)
    return (layer.key_norm(key) if layer.qk_norm else key), value


def _split_heads(x, num_heads):
    return ops.reshape(x, (batch_size(x), ops.shape(x)[1], num_heads, x.shape[-1] // num_heads))


def attend(
    layer, query, key, value, mask=None, bias=None, causal=False, zero_empty_rows=False,
    return_attention_scores=False, training=False, cached=False,
):
    """What both attentions do with queries, keys and values: (B, T, D or N * H), and the scores if asked for."""

    def drop(weights):
        return layer.dropout_layer(weights, training=True)

    result = attention(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        causal=causal,
        scale=layer.scale,
        logit_soft_cap=layer.logit_soft_cap,
        dropout=drop if training and layer.dropout else None,
        return_scores=return_attention_scores,
        zero_empty_rows=zero_empty_rows,
        cached_heads=(layer.num_key_value_heads or layer.num_heads) if cached else None,
    )
    output, scores = result if return_attention_scores else (result, None)
    heads, head_dim = query.shape[2], query.shape[3]
    output = ops.reshape(output, (batch_size(query), ops.shape(query)[1], heads * head_dim))
    if layer.output_dense is not None:
        output = apply(layer.output_dense, output)
    return (output, scores) if return_attention_scores else output
