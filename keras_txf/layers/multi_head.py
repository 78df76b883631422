"""The common functions of the attention layers: options, projections, checks of masks, and the call of the kernel.

Legend: B batch, T query length, S context length, D model dim, N heads, K key-value heads, H head dim.
"""

import keras
from keras import ops

from keras_txf import checks
from keras_txf.layers.base import Layer
from keras_txf.layers.cache_slots import positions_of
from keras_txf.layers.norms import make_norm
from keras_txf.layers.projections import Dropout, make_projection
from keras_txf.layers.serialization import register
from keras_txf.ops.attention import WeightDropout, attention
from keras_txf.ops.masks import ATTENTION_MASKS
from keras_txf.ops.tensors import batch_size, widen

# Of the attentions: how `layout_map` splits each weight over devices. See `Layer.weight_splits`.
WEIGHT_SPLITS = {
    "query": "columns",
    "key": "columns",
    "value": "columns",
    "gate": "columns",
    "output": "rows",
    "sinks": "columns",
    "position_query": "whole",
    "position_key": "whole",
}


def set_attention_options(layer, num_heads, options):
    """Sets the options as attributes; raises ValueError if two options do not go together."""
    for name, value in options.items():
        setattr(layer, name, value)
    layer.num_heads = checks.size("num_heads", num_heads)
    if layer.num_key_value_heads is not None:
        checks.divides("num_key_value_heads", layer.num_key_value_heads, "num_heads", layer.num_heads)
    checks.one_of("qk_norm", layer.qk_norm, QK_NORMS)
    checks.combinations(layer, "attention")
    layer.supports_masking = True


def build_projections(layer, inputs_shape, context_shape):
    """Makes the projections, output gate, sinks, dropout and head norms of an attention layer."""
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
    layer.key = make_projection(layer, "key", kv_heads * head_dim, context_shape, layer.key_bias)
    layer.value = make_projection(layer, "value", kv_heads * head_dim, context_shape)
    layer.gate_dense = layer.output_dense = None
    if layer.output_gate:
        layer.gate_dense = make_projection(layer, "gate", layer.num_heads * head_dim, inputs_shape)
    if layer.output_projection:
        layer.output_dense = make_projection(layer, "output", dim, heads_shape, layer.output_bias)
    layer.sink_logits = None
    if layer.sinks:
        layer.sink_logits = layer.add_weight(
            name="sinks", shape=(layer.num_heads,), initializer="zeros", autocast=False
        )
    layer.dropout_layer = Dropout(layer.dropout, dtype=layer.dtype_policy, name="dropout")
    if layer.qk_norm:
        options = head_dim, layer.norm_epsilon, layer.dtype_policy
        layer.query_norm = make_head_norm(layer.qk_norm, layer.num_heads, *options, "query_norm")
        layer.key_norm = make_head_norm(layer.qk_norm, kv_heads, *options, "key_norm")


def check_masks(layer, inputs, context, attention_mask, **others):
    """Raises ValueError for a tensor of a wrong shape, which the backend reports unclearly or not at all.

    `others` are tensors (B, T) by name.
    """
    for name, tensor in (("inputs", inputs), ("context", context)):
        checks.rank(name, tensor, (3, "(batch, length, dim)"))
    batch, length, _ = inputs.shape
    checks.broadcasts("context", context, batch, *context.shape[1:])
    for name, tensor in others.items():
        checks.broadcasts(name, tensor, batch, length)
    check_attention_mask("attention_mask", attention_mask, layer.num_heads, inputs, context)


def check_bias(layer, inputs, context, attention_bias):
    """Raises ValueError for a wrong `attention_bias`."""
    if attention_bias is not None:
        checks.rank("attention_bias", attention_bias, (4, "(batch or 1, heads or 1, query length, key length)"))
        checks.floats("attention_bias", attention_bias)
        sizes = inputs.shape[0], layer.num_heads, inputs.shape[1], context.shape[1]
        checks.broadcasts("attention_bias", attention_bias, *sizes)


def check_two_ways(layer, inputs, prefix_length, bidirectional_mask):
    """Raises ValueError for a wrong `prefix_length` or `bidirectional_mask`."""
    for name, value in (("prefix_length", prefix_length), ("bidirectional_mask", bidirectional_mask)):
        if value is not None and not layer.causal:
            raise ValueError(f"`{name}` was passed, but causal=False: it would not be used.")
    if prefix_length is not None:
        checks.rank("prefix_length", prefix_length, (1, "(batch,)"))
        checks.integers("prefix_length", prefix_length)
        checks.broadcasts("prefix_length", prefix_length, inputs.shape[0])
    if bidirectional_mask is not None:
        checks.mask("bidirectional_mask", bidirectional_mask, (2, "(batch, length)"))
        checks.broadcasts("bidirectional_mask", bidirectional_mask, *inputs.shape[:2])


def check_attention_mask(name, mask, num_heads, inputs, context):
    """Raises ValueError for a mask, the argument `name`, of a wrong dtype or shape."""
    if mask is not None:
        checks.mask(name, mask, *ATTENTION_MASKS)
        heads = () if len(mask.shape) == 3 else (num_heads,)
        checks.broadcasts(name, mask, inputs.shape[0], *heads, inputs.shape[1], context.shape[1])


def project_query(layer, inputs):
    """(B, T, D) -> queries (B, T, N, H)."""
    return norm_heads(layer, "query_norm", layer.query(inputs), layer.num_heads)


def project_context(layer, context):
    """(B, S, width) -> keys and values (B, S, K, H)."""
    kv_heads = layer.num_key_value_heads or layer.num_heads
    key = norm_heads(layer, "key_norm", layer.key(context), kv_heads)
    return key, split_heads(layer.value(context), kv_heads)


def project_gate(layer, inputs):
    """(B, T, D) -> the factors of the heads, sigmoid(gate(x)), (B, T, N * H); None without `output_gate`."""
    return None if layer.gate_dense is None else ops.sigmoid(layer.gate_dense(inputs))


def norm_heads(layer, name, x, heads):
    """(B, T, heads * H) -> (B, T, heads, H), normalised as the option `qk_norm` says."""
    if layer.qk_norm == "full":
        return split_heads(getattr(layer, name)(x), heads)
    x = split_heads(x, heads)
    return getattr(layer, name)(x) if layer.qk_norm else x


def token_positions(inputs, positions, cache=None, padding=None):
    """The positions of tokens, int (T,) or (B, T): the caller's, else those of the cache, else 0, 1, 2, ...

    With `padding`, bool (B, T), they begin at the first real token of each row.
    """
    if positions is None and cache is not None:
        return cache.positions
    if positions is None:
        columns = ops.arange(ops.shape(inputs)[1], dtype="int32")
        return columns if padding is None else positions_of(padding, columns)
    positions = ops.convert_to_tensor(positions)
    checks.positions(positions, *inputs.shape[:2])
    return ops.cast(positions, "int32")  # differences of unsigned integers are never negative


def split_heads(x, num_heads):
    """(B, T, heads * H) -> (B, T, heads, H)."""
    return ops.reshape(x, (batch_size(x), ops.shape(x)[1], num_heads, x.shape[-1] // num_heads))


def check_absent_with_cache(**arguments):
    """Raises ValueError if an argument that does not go with a cache is not None."""
    for name, value in arguments.items():
        if value is not None:
            raise ValueError(f"`{name}` does not go with `cache`, which holds the keys and the attention mask.")


def check_context(context):
    """Raises ValueError for a missing context."""
    if context is None:
        raise ValueError("`context` must be passed unless a `cache` holds its keys and values; received None.")


def check_same_length(layer, inputs, context):
    """Raises ValueError if the context of a layer with `causal` has another length than the inputs."""
    lengths = inputs.shape[1], context.shape[1]
    if layer.causal and lengths[0] != lengths[1] and None not in lengths:
        raise ValueError(
            f"`context` must be as long as `inputs` with causal=True; received shapes {tuple(context.shape)} and "
            f"{tuple(inputs.shape)}."
        )


def check_positions_with_cache(layer, positions, bias):
    """Raises ValueError for `positions` next to a cache if the position layer needs the positions of all keys."""
    if positions is not None and layer.position_layer is None:
        raise ValueError("`positions` was passed, but position=None: it would not be used.")
    if positions is not None and bias is not None:
        raise ValueError(
            "`positions` goes with `cache` only if `position` rotates queries and keys, such as 'rotary'; received "
            f"{type(layer.position_layer).__name__}, which needs the positions of all keys."
        )


def attend(
    layer,
    query,
    key,
    value,
    mask=None,
    *,
    bias=None,
    zero_empty_rows=False,
    return_attention_scores=False,
    training=False,
    scale=None,
    gate=None,
):
    """Attention and output projection of a layer: (B, T, D or N * H), and the scores with `return_attention_scores`.

    `gate` (B, T, N * H) multiplies the heads before the projection.
    """
    drop = training and layer.dropout
    result = attention(
        query,
        key,
        value,
        mask=mask,
        bias=bias,
        scale=layer.scale if scale is None else scale,
        logit_soft_cap=layer.logit_soft_cap,
        dropout=WeightDropout(layer.dropout, layer.dropout_layer.seed_generator) if drop else None,
        return_scores=return_attention_scores,
        zero_empty_rows=zero_empty_rows,
        sinks=layer.sink_logits,
    )
    output, scores = result if return_attention_scores else (result, None)
    width = query.shape[2] * value.shape[3]
    output = ops.reshape(output, (batch_size(query), ops.shape(query)[1], width))
    if gate is not None:
        output = output * gate
    if layer.output_dense is not None:
        output = layer.output_dense(output)
    return (output, scores) if return_attention_scores else output


def attend_spec(layer, inputs, context, return_attention_scores):
    """The symbolic outputs of an attention for symbols (B, T, D) and (B, S, width), from the widths of its kernels."""
    layer.key(context)  # raises ValueError for another width than in `build`
    query, value = layer.query(inputs), layer.value(context)
    width = layer.num_heads * value.shape[-1] // (layer.num_key_value_heads or layer.num_heads)
    output = keras.KerasTensor((*query.shape[:-1], width), layer.compute_dtype)
    if layer.output_dense is not None:
        output = keras.KerasTensor(layer.output_dense(output).shape, layer.compute_dtype)
    if not return_attention_scores:
        return output
    batch, length, _ = inputs.shape
    return output, keras.KerasTensor((batch, layer.num_heads, length, context.shape[1]), layer.compute_dtype)


@register
class PerHeadNormalization(Layer):
    """Layer norm of each head with separate factors and without bias, in float32 or wider (StableLM 2, Command R+).

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

    weight_splits = {"gamma": "whole"}

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
    """Makes and builds a norm of queries or keys; `kind` is the option `qk_norm`, other than False."""
    if kind == "layer_per_head":
        norm = PerHeadNormalization(epsilon, dtype=dtype, name=name)
    else:
        norm = make_norm(NORM_NAMES.get(kind, "rms"), epsilon, dtype, name)
    norm.build((None, None, heads * head_dim) if kind == "full" else (None, None, heads, head_dim))
    return norm


NORM_NAMES = {"layer": "layer", "head_zero_centered": "rms_zero_centered"}  # `qk_norm` -> `norm`; others: "rms"
QK_NORMS = (True, False, "head", "head_zero_centered", "full", "layer", "layer_per_head")
