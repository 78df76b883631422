"""EncoderBlock and DecoderBlock: attention and feed-forward, each with its norm and residual."""

import functools
from typing import Unpack

from keras_txf.layers.base import Layer, call_on_symbols
from keras_txf.layers.multi_head import check_attention_mask
from keras_txf.layers.option_tables import DecoderBlockOptions, EncoderBlockOptions
from keras_txf.layers.parts import call_part
from keras_txf.layers.serialization import register
from keras_txf.layers.shown_options import take_options
from keras_txf.layers.sublayers import add_sublayers, build_sublayers, cache_spec, options_of_parts, set_options


@register
class EncoderBlock(Layer):
    """Self-attention and feed-forward, each with a residual and a norm.

    With the defaults the block is the paper's encoder layer, with two choices. The paper does not give the
    epsilon (1e-5 here), and its attention has no biases (here `use_bias` applies to all projections).

    Args:
        num_heads: number N of query heads; None with a layer as `attention`.
        {options}

    Call arguments:
        inputs: float (B, T, D).
        mask, attention_mask, segment_ids, positions, attention_bias, prefix_length, bidirectional_mask, cache,
            return_attention_scores: see `MultiHeadSelfAttention`.

    Returns:
        (B, T, D), and the scores (B, N, T, T) if asked for.

    Raises:
        ValueError: an option out of range or unknown, D not divisible by `num_heads`, a part that does not return D
            features.

    Reference:
        [Attention Is All You Need](https://arxiv.org/abs/1706.03762), section 3.1;
        [On Layer Normalization](https://arxiv.org/abs/2002.04745) for "pre".

    Example:

    >>> block = txf.layers.EncoderBlock(num_heads=4, norm_placement="pre")
    >>> block(keras.random.normal((2, 7, 32))).shape
    (2, 7, 32)
    """

    def __init__(self, num_heads: int | None = None, **options: Unpack[EncoderBlockOptions]):
        own = take_options(EncoderBlock, options)
        super().__init__(**options)
        set_options(self, num_heads, own)
        add_sublayers(self, self.causal)

    def build(self, inputs_shape):
        build_sublayers(self, inputs_shape)

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
        padding = inputs_mask if mask is None else mask
        attend_to_self = functools.partial(
            call_part,
            "attention",
            self.attention,
            mask=padding,
            attention_mask=attention_mask,
            segment_ids=segment_ids,
            positions=positions,
            attention_bias=attention_bias,
            prefix_length=prefix_length,
            bidirectional_mask=bidirectional_mask,
            cache=cache,
            return_attention_scores=return_attention_scores,
        )

        feed_forward = functools.partial(call_part, "feed_forward", self.feed_forward, mask=padding)
        sublayers = {"attention": attend_to_self, "feed_forward": feed_forward}
        x, scores = self.stream.run(self, inputs, sublayers, padding, segment_ids)
        return (x, *scores) if return_attention_scores else x

    cache_spec = cache_spec

    compute_output_spec = call_on_symbols

    def get_options(self):
        return {**super().get_options(), **options_of_parts(self)}


@register
class DecoderBlock(Layer):
    """Causal self-attention, optional cross-attention to a context, and feed-forward.

    With `cross_attention=True` and the other defaults the block is the paper's decoder layer. Without
    cross-attention it is the block of a decoder-only model, the same as `EncoderBlock(causal=True)`.

    Args:
        num_heads: number N of query heads of both attentions; None if layers replace both.
        {options}

    The options of attention apply to both attentions, except `window` and `position`: they apply to self-attention.

    Call arguments:
        inputs: float (B, T, D).
        context: float (B, S, any width), with `cross_attention` only.
        mask, attention_mask, segment_ids, positions, attention_bias, prefix_length, bidirectional_mask, cache:
            of the self-attention, see `MultiHeadSelfAttention`.
        context_mask: bool (B, S), True at real tokens of the context. Keras fills it from the context.
        context_attention_mask: bool (T, S), (B, T, S) or (B, N or 1, T, S) for the cross-attention.
        context_segment_ids: int (B, S), with `segment_ids`.
        context_cache: a `Cache` of the context, which decoding passes instead of the context and its masks.
        return_attention_scores: also return the weights (B, N, T, T) of the self-attention and, with
            `cross_attention`, the weights (B, N, T, S) of the cross-attention.

    Returns:
        (B, T, D), and the scores if asked for.

    Raises:
        ValueError: as `EncoderBlock`; a context without `cross_attention`, or `cross_attention` without a context.

    Reference:
        [Attention Is All You Need](https://arxiv.org/abs/1706.03762), section 3.1.

    Example:

    >>> block = txf.layers.DecoderBlock(num_heads=4, cross_attention=True)
    >>> block(keras.random.normal((2, 7, 32)), keras.random.normal((2, 5, 48))).shape
    (2, 7, 32)
    """

    def __init__(self, num_heads: int | None = None, **options: Unpack[DecoderBlockOptions]):
        own = take_options(DecoderBlock, options)
        super().__init__(**options)
        set_options(self, num_heads, own)
        add_sublayers(self, True, self.cross_attention)
        if getattr(self.attention, "causal", True) is False:
            raise ValueError(
                "`attention` must have causal=True in a DecoderBlock; received the layer "
                f"{self.attention.name!s} with causal=False."
            )

    def build(self, inputs_shape, context_shape=None):
        self._check_context(context_shape)
        build_sublayers(self, inputs_shape, context_shape)

    def _check_context(self, context, **others):
        if self.cross_attention and context is None:
            raise ValueError("`context` must be passed where `cross_attention=True`; received None.")
        if not self.cross_attention and context is not None:
            raise ValueError("`context` was passed, but `cross_attention=False`: it would not be used.")
        for name, value in others.items():
            if not self.cross_attention and value is not None:
                raise ValueError(f"`{name}` was passed, but `cross_attention=False`: it would not be used.")

    def call(
        self,
        inputs,
        context=None,
        mask=None,
        inputs_mask=None,
        context_mask=None,
        attention_mask=None,
        context_attention_mask=None,
        segment_ids=None,
        context_segment_ids=None,
        positions=None,
        attention_bias=None,
        prefix_length=None,
        bidirectional_mask=None,
        cache=None,
        context_cache=None,
        return_attention_scores=False,
        training=None,
    ):
        self._check_context(
            context if context_cache is None else context_cache,
            context_mask=context_mask,
            context_attention_mask=context_attention_mask,
            context_segment_ids=context_segment_ids,
        )
        if context is not None and self.num_heads is not None:
            check_attention_mask("context_attention_mask", context_attention_mask, self.num_heads, inputs, context)

        padding = inputs_mask if mask is None else mask
        attend_to_self = functools.partial(
            call_part,
            "attention",
            self.attention,
            mask=padding,
            attention_mask=attention_mask,
            segment_ids=segment_ids,
            positions=positions,
            attention_bias=attention_bias,
            prefix_length=prefix_length,
            bidirectional_mask=bidirectional_mask,
            cache=cache,
            return_attention_scores=return_attention_scores,
        )

        def attend_to_context(x):
            return call_part(
                "cross_attention",
                self.cross_attention_layer,
                x,
                *([] if context is None else [context]),
                context_mask=context_mask,
                attention_mask=context_attention_mask,
                segment_ids=segment_ids,
                context_segment_ids=context_segment_ids,
                cache=context_cache,
                return_attention_scores=return_attention_scores,
            )

        sublayers = {"attention": attend_to_self}
        if self.cross_attention:
            sublayers["cross_attention"] = attend_to_context
        sublayers["feed_forward"] = functools.partial(call_part, "feed_forward", self.feed_forward, mask=padding)
        x, scores = self.stream.run(self, inputs, sublayers, padding, segment_ids)
        return (x, *scores) if return_attention_scores else x

    def project_context(self, context):
        """Keys and values (B, S, K, H) of a context (B, S, any width), which `Cache` keeps."""
        return self.cross_attention_layer.project_context(context)

    cache_spec = cache_spec

    compute_output_spec = call_on_symbols

    def get_options(self):
        return {**super().get_options(), **options_of_parts(self)}
