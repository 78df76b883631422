"""The sublayers of a block, made from its options: attention, cross-attention and feed-forward."""

import keras

from keras_txf import checks
from keras_txf.layers.attention import CrossAttention, MultiHeadSelfAttention
from keras_txf.layers.feed_forward import FeedForward
from keras_txf.layers.norms import check_norm
from keras_txf.layers.option_tables import DecoderBlockOptions, EncoderBlockOptions
from keras_txf.layers.parts import (
    OPTIONS,
    Pattern,
    build_part,
    check_replaced,
    check_width,
    is_layer,
    output_shape,
    take_layer,
)
from keras_txf.layers.residual import PLACEMENTS, as_residual
from keras_txf.layers.serialization import inherit, revive
from keras_txf.layers.shown_options import default_options

DEFAULTS = {"num_heads": None, **default_options(EncoderBlockOptions), **default_options(DecoderBlockOptions)}


def set_options(block, num_heads, options):
    """Sets each option as an attribute of a block, and checks options that inner layers would report by another name.

    `block.given_parts` holds the caller's layers, or None, for `get_config`. `add_sublayers` sets the attributes
    `attention` and `feed_forward`.
    """
    makes_cross_attention = options.get("cross_attention") is True
    options = {"num_heads": num_heads, **options}
    for part in ("attention", "feed_forward", "norm"):
        if is_layer(options[part]):
            # A cross-attention that the block makes has the options of the self-attention, except these two.
            shares = part == "attention" and makes_cross_attention
            check_replaced(part, options, DEFAULTS, ("window", "position") if shares else OPTIONS[part])
    options["norm"] = check_norm(options["norm"])
    parts = ["attention", "feed_forward"]
    if is_layer(options.get("cross_attention")):
        parts.append("cross_attention")
    block.given_parts = {name: take_layer(name, options[name]) for name in parts}
    for name, value in options.items():
        if name == "cross_attention":
            block.cross_attention = name in parts or checks.boolean(name, value)
        elif name not in parts:
            setattr(block, name, value)
    block.position = revive(block.position)
    checks.one_of("norm_placement", block.norm_placement, PLACEMENTS)
    block.residual = revive(block.residual)
    block.stream = as_residual(block.residual)
    block.supports_masking = True


def add_sublayers(block, causal, cross_attention=False):
    """Sets the sublayers of a block, the caller's or new ones, and the layers of the residual stream."""
    block.attention = block.given_parts["attention"]
    if block.attention is None:
        attention = inherit_attention(block, MultiHeadSelfAttention, causal=causal, name="attention")
        block.attention = MultiHeadSelfAttention(**attention)
    block.feed_forward = block.given_parts["feed_forward"]
    if block.feed_forward is None:
        block.feed_forward = FeedForward(**inherit(block, FeedForward, dropout=0.0, name="feed_forward"))
    block.sublayers = ["attention", "feed_forward"]
    if cross_attention:
        block.sublayers.insert(1, "cross_attention")
        block.cross_attention_layer = block.given_parts.get("cross_attention")
        if block.cross_attention_layer is None:
            options = inherit_attention(block, CrossAttention, causal=False, name="cross_attention")
            block.cross_attention_layer = CrossAttention(**options)
    block.stream.add_layers(block)


def inherit_attention(block, cls, **changed):
    """The arguments of an attention of class `cls` that a block makes."""
    if block.num_heads is None:
        part = "attention" if cls is MultiHeadSelfAttention else "cross_attention"
        raise ValueError(f"`num_heads` must be given, unless a layer is passed as `{part}`; received None.")
    return inherit(block, cls, dropout=0.0, **changed)


def build_sublayers(block, shape, context_shape=None):
    """Builds the sublayers and the layers of the residual stream."""
    build_part(block.attention, shape)
    if context_shape is not None:
        build_part(block.cross_attention_layer, shape, context_shape)
    build_part(block.feed_forward, shape)
    if block.given_parts["feed_forward"] is not None:
        check_width("feed_forward", block.feed_forward, output_shape(block.feed_forward, shape), shape)
    block.stream.build(block, shape)
    block.input_spec = keras.layers.InputSpec(axes={-1: shape[-1]})


def options_of_parts(block):
    """For `get_config`: the options that differ from the attributes of the same names."""
    norm = block.norm.layer if isinstance(block.norm, Pattern) else block.norm
    return {**block.given_parts, "norm": norm}


def cache_spec(block, inputs_shape):
    """The shape of a block's output, and (heads, width) of the tensors in its cache. None: nothing is cached."""
    if not hasattr(block.attention, "cache_spec"):
        return None
    _, *caches = block.attention.cache_spec(inputs_shape)
    return inputs_shape, *caches
