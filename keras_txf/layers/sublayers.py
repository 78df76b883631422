"""The parts of a block, made from its options: attention, cross-attention, feed-forward, norms and dropouts."""

import keras

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.attention import CrossAttention, MultiHeadSelfAttention
from keras_txf.layers.dropout import Dropout
from keras_txf.layers.feed_forward import FeedForward
from keras_txf.layers.layer_scale import LayerScale
from keras_txf.layers.multi_head import check_output_bias
from keras_txf.layers.norms import check_norm, make_norm
from keras_txf.layers.option_tables import DecoderBlockOptions, EncoderBlockOptions
from keras_txf.layers.parts import Pattern, build_part, check_width, is_layer, output_shape, refuse_replaced, take_layer
from keras_txf.layers.residual import check_residual, norm_names
from keras_txf.layers.serialization import get_initializer, inherit, revive
from keras_txf.layers.shown_options import default_options

DEFAULTS = {"num_heads": None, **default_options(EncoderBlockOptions), **default_options(DecoderBlockOptions)}


def set_options(block, num_heads, options):
    """Checks what inner layers would report under another name, and keeps every option under its own.

    Layers that were given as `attention` and `feed_forward` become these attributes; `block.given_parts` remembers them
    as options.
    """
    own_cross = options.get("cross_attention") is True
    options = {"num_heads": num_heads, **options}
    for part in ("attention", "feed_forward", "norm"):
        if is_layer(options[part]):
            # A cross-attention that the block makes has the same options as the self-attention, but for these two.
            keep = set(options) - {"window", "position"} if part == "attention" and own_cross else ()
            refuse_replaced(part, options, DEFAULTS, keep)
    options["norm"] = check_norm(options["norm"])
    given = ("attention", "feed_forward") + (("cross_attention",) if is_layer(options.get("cross_attention")) else ())
    given += ("convolution",) if "convolution" in options else ()
    block.given_parts = {name: take_layer(name, options[name]) for name in given}
    for name, value in options.items():
        if name == "cross_attention":
            block.cross_attention = bool(value) if name in given else checks.boolean(name, value)
        elif name not in given:
            setattr(block, name, value)
    block.position = revive(block.position)
    block.kernel_initializer = get_initializer("kernel_initializer", block.kernel_initializer)
    checks.boolean("norm_attention", block.norm_attention)
    check_residual(block)
    block.layer_scale = checks.optional(checks.positive_number, "layer_scale", block.layer_scale)
    for name in (
        "attention_bias", "attention_output_bias", "attention_key_bias", "feed_forward_bias",
        "feed_forward_output_bias", "norm_bias",
    ):  # fmt: skip
        checks.optional(checks.boolean, name, getattr(block, name))
    checks.boolean("output_projection", block.output_projection)
    check_output_bias("attention_output_bias", block.attention_output_bias, block.output_projection)
    if block.norm in ("rms", "rms_zero_centered") and block.norm_bias:
        raise ValueError(f"norm_bias=True needs norm='layer': an RMS norm has none; received norm='{block.norm}'.")
    for name in ("dropout", "attention_dropout", "feed_forward_dropout", "stochastic_depth"):
        checks.rate(name, getattr(block, name))
    block.supports_masking = True


def add_sublayers(block, causal):
    """Makes the self-attention, the feed-forward, their norms and the dropouts, or takes the layers that were given."""
    block.attention = block.given_parts["attention"]
    if block.attention is None:
        attention = inherit_attention(block, MultiHeadSelfAttention, causal=causal, name="attention")
        block.attention = MultiHeadSelfAttention(**attention)
    block.feed_forward = block.given_parts["feed_forward"]
    if block.feed_forward is None:
        bias, rate = has_bias(block, "feed_forward_bias"), block.feed_forward_dropout
        block.feed_forward = FeedForward(
            **inherit(
                block,
                FeedForward,
                use_bias=bias,
                output_bias=block.feed_forward_output_bias,
                dropout=rate,
                name="feed_forward",
            )
        )
    add_norms(block, "attention")
    add_norms(block, "feed_forward")
    dtype = block.dtype_policy
    block.dropout_layer = Dropout(block.dropout, dtype=dtype, name="dropout")
    block.stochastic_depth_layer = keras.layers.Dropout(
        block.stochastic_depth, noise_shape=(None, 1, 1), dtype=dtype, name="stochastic_depth"
    )


def add_cross_attention(block):
    """Makes the cross-attention and its norms, or takes the layer that was given."""
    given = block.given_parts.get("cross_attention")
    if given is None:
        if block.num_heads is None:
            raise ValueError("`num_heads` must be given for the cross-attention; received None.")
        given = CrossAttention(**inherit_attention(block, CrossAttention, name="cross_attention"))
    block.cross_attention_layer = given
    add_norms(block, "cross_attention")


def add_convolution(block):
    """Takes the convolution that was given, and makes its norm."""
    block.convolution = block.given_parts["convolution"]
    if block.convolution is None:
        return
    if block.norm_placement != "post" or block.causal:
        raise ValueError(
            "`convolution` needs norm_placement='post' and causal=False; received norm_placement="
            f"{short_repr(block.norm_placement)} and causal={block.causal}."
        )
    add_norms(block, "convolution")


def inherit_attention(block, cls, **changed):
    if block.num_heads is None:
        raise ValueError("`num_heads` must be given, unless a layer is passed as `attention`; received None.")
    bias = has_bias(block, "attention_bias")
    changed.update(dropout=block.attention_dropout, use_bias=bias, output_bias=block.attention_output_bias)
    changed.update(key_bias=block.attention_key_bias)
    return inherit(block, cls, **changed)


def has_bias(block, name):
    """What `name`, one of the options that refine `use_bias`, comes to."""
    bias = getattr(block, name)
    return block.use_bias if bias is None else bias


def add_norms(block, name):
    """Makes the norms of a sublayer, and its layer scale."""
    if block.layer_scale is not None:
        setattr(block, f"{name}_scale", LayerScale(block.layer_scale, dtype=block.dtype_policy, name=f"{name}_scale"))
    for norm_name in norm_names(block, name):
        bias = has_bias(block, "norm_bias")
        norm = make_norm(block.norm, block.norm_epsilon, block.dtype_policy, norm_name, bias)
        norm.supports_masking = True  # the block keeps the mask: Keras would warn that the layer loses it
        setattr(block, norm_name, norm)


def build_norms(block, name, shape):
    if block.layer_scale is not None:
        getattr(block, f"{name}_scale").build(shape)
    for norm_name in norm_names(block, name):
        build_part(getattr(block, norm_name), shape)


def build_sublayers(block, shape):
    """Builds self-attention, feed-forward and their norms."""
    build_part(block.attention, shape)
    build_part(block.feed_forward, shape)
    if block.given_parts["feed_forward"] is not None:
        check_width("feed_forward", block.feed_forward, output_shape(block.feed_forward, shape), shape)
    if block.given_parts["attention"] is None:
        width, dim = block.attention.query.units, shape[-1]
        if not block.output_projection and width != dim:  # the heads themselves are added to the residual stream
            raise ValueError(
                f"output_projection=False needs num_heads * head_dim = dim; received num_heads={block.num_heads}, "
                f"head_dim={block.head_dim} and dim={dim}."
            )
    build_norms(block, "attention", shape)
    build_norms(block, "feed_forward", shape)
    block.input_spec = keras.layers.InputSpec(axes={-1: shape[-1]})


def options_of_parts(block):
    """The options whose attributes hold something else, for `get_config`."""
    norm = block.norm.layer if isinstance(block.norm, Pattern) else block.norm
    return {**block.given_parts, "norm": norm}


def cache_spec(block, inputs_shape):
    """The shape of a block's output, and heads and widths of its cached keys and values if its attention has any."""
    if not hasattr(block.attention, "cache_spec"):
        return None
    _, *caches = block.attention.cache_spec(inputs_shape)
    return inputs_shape, *caches
