"""MultiHeadSelfAttention and CrossAttention.

Legend: B batch, T query length, S context length, D model dim, N heads, K key-value heads, H head dim.
"""

import math
from typing import Unpack

from keras import ops

from keras_txf import checks
from keras_txf.layers.base import Layer
from keras_txf.layers.multi_head import (
    WEIGHT_SPLITS,
    attend,
    attend_spec,
    build_projections,
    check_absent_with_cache,
    check_bias,
    check_context,
    check_masks,
    check_positions_with_cache,
    check_same_length,
    check_two_ways,
    project_context,
    project_gate,
    project_query,
    set_attention_options,
    token_positions,
)
from keras_txf.layers.option_tables import CrossAttentionOptions, SelfAttentionOptions
from keras_txf.layers.positions import build_named, make_position
from keras_txf.layers.rotary import Rotary
from keras_txf.layers.serialization import register, revive
from keras_txf.layers.shown_options import take_options
from keras_txf.ops.masks import AttentionMask, check_conditions, first_real, number_runs
from keras_txf.ops.positions import PositionBias, add_bias


@register
class MultiHeadSelfAttention(Layer):
    """Attention of a sequence to itself, with all masks and positions of the package.

    Use it alone in any Keras model, or through `EncoderBlock` and `DecoderBlock`. The width of a head is
    `dim // num_heads`, or `head_dim`.

    Args:
        num_heads: number N of query heads.
        {options}

    Call arguments:
        inputs: float (B, T, D).
        mask: bool (B, T), True at real tokens. Keras fills it, or `inputs_mask` next to other tensors.
        attention_mask: bool (T, T), (B, T, T) or (B, N or 1, T, T), True where a token may attend.
        segment_ids: int (B, T); tokens attend only to their own segment. For packed sequences.
        positions: int (T,) or (B, T), for `position`; default 0, 1, 2, ... With a cache: for rotary positions only.
        attention_bias: float (B or 1, N or 1, T, T), added to the scaled logits.
        prefix_length: int (B,), with `causal`: this number of first tokens attend to each other in both directions (a
            prefix language model). Padding before the first token does not count.
        bidirectional_mask: bool (B, T), with `causal`: each run of consecutive True tokens attends to itself in both
            directions, such as the tokens of an image, or the prefix of each packed sequence. A `window` does not hide
            tokens of the same run.
        cache: a `Cache`, which decoding passes. It keeps keys and values, and holds padding and positions.
            `attention_mask` and `attention_bias` then cover all positions, (..., L, L).
        return_attention_scores: also return the weights (B, N, T, T), before dropout.

    A token attends only where all masks allow it. If `attention_mask` allows nothing for a token, the heads return
    zeros for it. The outputs at padding tokens are finite and have no meaning.

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

    weight_splits = WEIGHT_SPLITS
    is_absolute = False  # whether more than the distance of two positions matters, so that left padding must not count

    def __init__(self, num_heads: int, **options: Unpack[SelfAttentionOptions]):
        own = take_options(MultiHeadSelfAttention, options)
        super().__init__(**options)
        set_attention_options(self, num_heads, own)
        self.position = revive(self.position)
        self.position_layer = make_position(self.position, self.num_heads, self.causal, self.dtype_policy)

    def build(self, inputs_shape):
        build_projections(self, inputs_shape, inputs_shape)
        build_named(self.position_layer)
        if hasattr(self.position_layer, "build_for"):
            self.position_layer.build_for(self, inputs_shape)

    def call(
        self,
        inputs,
        mask=None,
        inputs_mask=None,
        attention_mask=None,
        segment_ids=None,
        positions=None,
        attention_bias=None,
        prefix_length=None,
        bidirectional_mask=None,
        cache=None,
        return_attention_scores=False,
        training=None,
    ):
        if cache is not None:
            check_absent_with_cache(segment_ids=segment_ids)
            allowed, added = cache.pairs(attention_mask, attention_bias, prefix_length, self.window, bidirectional_mask)
            query, key, value = self._project(inputs, token_positions(inputs, positions, cache))
            key, value = cache.update(key, value)
            position_bias, training = self._bias(query, key, cache.positions, cache.key_positions), False
            check_positions_with_cache(self, positions, position_bias)
        else:
            padding = inputs_mask if mask is None else mask
            pairs = attention_mask, attention_bias, prefix_length, bidirectional_mask
            self._check_call(inputs, padding, segment_ids, positions, *pairs)
            absolute = self.is_absolute or getattr(self.position_layer, "is_absolute", False)
            positions = token_positions(inputs, positions, padding=padding if absolute else None)
            query, key, value = self._project(inputs, positions)
            if prefix_length is not None and padding is not None:
                prefix_length = ops.add(prefix_length, first_real(padding))
            runs = None if bidirectional_mask is None else number_runs(bidirectional_mask)
            allowed = AttentionMask(
                self.causal, self.window, padding, segment_ids, segment_ids, attention_mask, prefix=prefix_length,
                query_runs=runs, key_runs=runs,
            )  # fmt: skip
            position_bias, added = self._bias(query, key, positions, positions, training), attention_bias
        zero_empty_rows = attention_mask is not None
        return attend(
            self, query, key, value, allowed, bias=add_bias(position_bias, added), zero_empty_rows=zero_empty_rows,
            return_attention_scores=return_attention_scores, training=training, scale=self.logit_scale(),
            gate=project_gate(self, inputs),
        )  # fmt: skip

    def _check_call(self, inputs, padding, segment_ids, positions, attention_mask, attention_bias, *of_causal):
        check_bias(self, inputs, inputs, attention_bias)
        check_two_ways(self, inputs, *of_causal)
        check_masks(self, inputs, inputs, attention_mask, mask=padding, segment_ids=segment_ids)
        check_conditions(padding, segment_ids, segment_ids)
        if positions is not None and self.position_layer is None:
            raise ValueError("`positions` was passed, but position=None: it would not be used.")

    def compute_output_spec(
        self,
        inputs,
        mask=None,
        inputs_mask=None,
        attention_mask=None,
        segment_ids=None,
        positions=None,
        attention_bias=None,
        prefix_length=None,
        bidirectional_mask=None,
        cache=None,
        return_attention_scores=False,
        training=None,
    ):
        padding = inputs_mask if mask is None else mask
        pairs = attention_mask, attention_bias, prefix_length, bidirectional_mask
        self._check_call(inputs, padding, segment_ids, positions, *pairs)
        if positions is not None:
            checks.positions(positions, *inputs.shape[:2])
        if hasattr(self.position_layer, "check_heads"):
            self.position_layer.check_heads(inputs.shape[1], self.query.units // self.num_heads)
        return attend_spec(self, inputs, inputs, return_attention_scores)

    def logit_scale(self):
        """The factor on the logits: `scale`, or 1 / sqrt(terms · H), where positions may add terms to the product."""
        terms = 1 + getattr(self.position_layer, "added_terms", 0)
        return 1 / math.sqrt(terms * (self.query.units // self.num_heads)) if self.scale is None else self.scale

    def cache_spec(self, inputs_shape):
        """The shape of the output of a call with a cache, and (heads, width) of its keys and of its values."""
        head_dim = self.key.units // (self.num_key_value_heads or self.num_heads)
        width = inputs_shape[-1] if self.output_projection else self.num_heads * head_dim
        return (*inputs_shape[:-1], width), *[(self.num_key_value_heads or self.num_heads, head_dim)] * 2

    def _bias(self, query, key, query_positions, key_positions, training=False):
        layer = self.position_layer
        if hasattr(layer, "bias_of_content"):
            return layer.bias_of_content(self, query, key, query_positions, key_positions, training)
        if layer is None or getattr(type(layer), "bias", None) is Rotary.bias:  # rotary positions have no bias
            return None
        return PositionBias(layer, query_positions, key_positions)

    def _project(self, inputs, positions):
        """Queries (B, T, N, H), keys and values (B, T, K, H), rotated by their positions."""
        query, (key, value) = project_query(self, inputs), project_context(self, inputs)
        if self.position_layer is not None:
            query = self.position_layer.rotate(query, positions)
            key = self.position_layer.rotate(key, positions)
        return query, key, value


@register
class CrossAttention(Layer):
    """Attention of a sequence to a context of another length and width, such as an encoder's output.

    Args:
        num_heads: number N of query heads.
        {options}

    Call arguments:
        inputs: float (B, T, D), the queries.
        context: float (B, S, any width), for keys and values. None if a cache holds them. With `causal` S is T; a call
            with a cache then takes the context of the new tokens.
        context_mask: bool (B, S), True at real tokens of the context. Keras fills it from the context.
        attention_mask: bool (T, S), (B, T, S) or (B, N or 1, T, S), True where a query may attend.
        attention_bias: float (B or 1, N or 1, T, S), added to the scaled logits.
        segment_ids, context_segment_ids: int (B, T) and (B, S), always together: a query attends only to
            the context of its own segment.
        cache: a `Cache`, which decoding passes instead of the context, its mask and the arguments above.
        return_attention_scores: also return the weights (B, N, T, S), before dropout.

    The heads return zeros for a query that may attend to nothing, such as with a context that is all padding.

    Returns:
        (B, T, D), or (B, T, N * H) with `output_projection=False`; and the scores if asked for.

    Raises:
        ValueError: as `MultiHeadSelfAttention`; one of the two segment ids without the other; with `causal` a context
            of another length than the inputs.

    Reference:
        [Attention Is All You Need](https://arxiv.org/abs/1706.03762), section 3.2.3;
        [You Only Cache Once](https://arxiv.org/abs/2405.05254) for `causal`.

    Example:

    >>> layer = txf.layers.CrossAttention(num_heads=4)
    >>> layer(keras.random.normal((2, 7, 32)), keras.random.normal((2, 5, 48))).shape
    (2, 7, 32)
    """

    weight_splits = WEIGHT_SPLITS

    def __init__(self, num_heads: int, **options: Unpack[CrossAttentionOptions]):
        own = take_options(CrossAttention, options)
        super().__init__(**options)
        set_attention_options(self, num_heads, own)

    def build(self, inputs_shape, context_shape=None):
        check_context(context_shape)
        build_projections(self, inputs_shape, context_shape)

    def call(
        self,
        inputs,
        context=None,
        context_mask=None,
        attention_mask=None,
        segment_ids=None,
        context_segment_ids=None,
        attention_bias=None,
        cache=None,
        return_attention_scores=False,
        training=None,
    ):
        if cache is not None:
            check_absent_with_cache(
                context=None if self.causal else context, context_mask=context_mask, attention_mask=attention_mask,
                segment_ids=segment_ids, context_segment_ids=context_segment_ids, attention_bias=attention_bias,
            )  # fmt: skip
            query = project_query(self, inputs)
            key, value = cache.update(*self.project_context(context)) if self.causal else cache.read()
            return attend(
                self, query, key, value, cache.attention_mask, zero_empty_rows=True,
                return_attention_scores=return_attention_scores, gate=project_gate(self, inputs),
            )  # fmt: skip
        self._check_call(
            inputs, context, context_mask, attention_mask, segment_ids, context_segment_ids, attention_bias
        )
        query, (key, value) = project_query(self, inputs), self.project_context(context)
        allowed = AttentionMask(self.causal, None, context_mask, segment_ids, context_segment_ids, attention_mask)
        return attend(
            self, query, key, value, allowed, bias=attention_bias, zero_empty_rows=True,
            return_attention_scores=return_attention_scores, training=training, gate=project_gate(self, inputs),
        )  # fmt: skip

    def _check_call(
        self, inputs, context, context_mask, attention_mask, segment_ids, context_segment_ids, attention_bias
    ):
        check_context(context)
        check_masks(self, inputs, context, attention_mask, segment_ids=segment_ids)
        check_same_length(self, inputs, context)
        check_bias(self, inputs, context, attention_bias)
        if (segment_ids is None) != (context_segment_ids is None):
            raise ValueError("`segment_ids` and `context_segment_ids` must be passed together; received one.")
        check_conditions(None, segment_ids, context_segment_ids)
        if context_mask is not None:
            checks.mask("context_mask", context_mask, (2, "(batch, length)"))
        for name, tensor in (("context_mask", context_mask), ("context_segment_ids", context_segment_ids)):
            checks.broadcasts(name, tensor, *context.shape[:2])

    def compute_output_spec(
        self,
        inputs,
        context=None,
        context_mask=None,
        attention_mask=None,
        segment_ids=None,
        context_segment_ids=None,
        attention_bias=None,
        cache=None,
        return_attention_scores=False,
        training=None,
    ):
        masks = context_mask, attention_mask, segment_ids, context_segment_ids
        self._check_call(inputs, context, *masks, attention_bias)
        return attend_spec(self, inputs, context, return_attention_scores)

    def project_context(self, context):
        """Keys and values (B, S, K, H) of a context (B, S, any width), which `Cache` keeps."""
        return project_context(self, context)
