"""EncoderBlock and DecoderBlock: attention and feed-forward, each with its norm and residual."""

import keras

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.arguments import named_arguments
from keras_txf.layers.attention import CrossAttention, MultiHeadSelfAttention, check_attention_mask, check_output_bias
from keras_txf.layers.dropout import Dropout
from keras_txf.layers.feed_forward import FeedForward
from keras_txf.layers.norms import NORMS, make_norm
from keras_txf.layers.options import get_config, get_initializer, inherit, option_names, register, revive

PLACEMENTS = ("pre", "post", "sandwich")


@register
@named_arguments
class EncoderBlock(keras.layers.Layer):
    """Self-attention and feed-forward, each with a residual and a norm.

    With the defaults it is the paper's encoder layer. The paper is silent on the epsilon (1e-5 here)
    and has no biases in its attention (here `use_bias` is one option for all projections).

    Args:
        num_heads, head_dim, num_key_value_heads, causal, window, position, qk_norm,
        logit_soft_cap, scale: of the attention, see `MultiHeadSelfAttention`.
        intermediate_dim, activation, gated: of the feed-forward network, see `FeedForward`.
        use_bias: whether projections and layer norms have a bias. Where they differ: `attention_bias` is for
            queries, keys and values, `attention_output_bias` (default as `attention_bias`) for what follows
            them, `feed_forward_bias` and `norm_bias` for the rest.
        output_projection: whether W^O follows the heads of an attention, see `MultiHeadSelfAttention`. False needs
            N * H = D, for the concatenated heads are added to the residual stream as they are.
        norm: "layer" or "rms", which has no bias.
        norm_placement: "post" normalises the sum, as the paper does: norm(x + f(x)). "pre" leaves
            the residual stream alone, x + f(norm(x)), which trains deep stacks without warm-up.
            "sandwich" is x + norm(f(norm(x))).
        norm_attention: whether self-attention has its norm; False needs "pre" (ModernBERT's first block, whose
            inputs come from a norm).
        norm_epsilon: of every norm in the block.
        dropout: rate on what each sublayer adds to the residual stream.
        attention_dropout: rate on the attention weights.
        feed_forward_dropout: rate inside the feed-forward network.
        stochastic_depth: rate at which training leaves out a sublayer, sample by sample.
        kernel_initializer: of every projection. A seed is mixed with the names of layer and projection: each has numbers of its own.

    Call arguments:
        inputs: float (B, T, D).
        mask, attention_mask, segment_ids, positions, return_attention_scores: see
            `MultiHeadSelfAttention`.

    Returns:
        (B, T, D), and the scores (B, N, T, T) if asked for.

    Raises:
        ValueError: an option out of range or unknown, D not divisible by `num_heads`, `output_projection=False` with
            `attention_output_bias` or with heads that are not D wide together.

    Reference:
        [Attention Is All You Need](https://arxiv.org/abs/1706.03762), section 3.1;
        [On Layer Normalization](https://arxiv.org/abs/2002.04745) for "pre";
        [Deep Networks with Stochastic Depth](https://arxiv.org/abs/1603.09382).

    Example:

    >>> block = txf.layers.EncoderBlock(num_heads=4, norm_placement="pre")
    >>> block(keras.random.normal((2, 7, 32))).shape
    (2, 7, 32)
    """

    def __init__(
        self,
        num_heads,
        intermediate_dim=None,
        head_dim=None,
        num_key_value_heads=None,
        causal=False,
        window=None,
        position=None,
        qk_norm=False,
        logit_soft_cap=None,
        scale=None,
        activation="relu",
        gated=False,
        use_bias=True,
        attention_bias=None,
        attention_output_bias=None,
        output_projection=True,
        feed_forward_bias=None,
        norm_bias=None,
        norm="layer",
        norm_placement="post",
        norm_attention=True,
        norm_epsilon=1e-5,
        dropout=0.1,
        attention_dropout=0.0,
        feed_forward_dropout=0.0,
        stochastic_depth=0.0,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        _set_options(self, EncoderBlock, locals())
        self.causal = checks.boolean("causal", causal)
        _add_sublayers(self, causal)

    def build(self, inputs_shape):
        _build_sublayers(self, inputs_shape)

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
        def attend(x):
            return self.attention(
                x,
                mask=inputs_mask if mask is None else mask,
                attention_mask=attention_mask,
                segment_ids=segment_ids,
                positions=positions,
                return_attention_scores=return_attention_scores,
            )

        x, scores = _residual(self, "attention", inputs, attend)
        x, _ = _residual(self, "feed_forward", x, self.feed_forward)
        return (x, scores) if return_attention_scores else x

    def get_config(self):
        return get_config(self, super().get_config())


@register
@named_arguments
class DecoderBlock(keras.layers.Layer):
    """Causal self-attention, cross-attention to a context if asked for, and feed-forward.

    With `cross_attention=True` and the other defaults it is the paper's decoder layer. Without
    cross-attention it is a block of a decoder-only model, the same as `EncoderBlock(causal=True)`.

    Args:
        num_heads ... kernel_initializer: see `EncoderBlock`; the options of the attention hold for
            both attentions, `window` and `position` for the self-attention alone.
        cross_attention: whether the block attends to a context.

    Call arguments:
        inputs: float (B, T, D).
        context: float (B, S, any width), with `cross_attention` only.
        mask, attention_mask, segment_ids, positions: of the self-attention, see
            `MultiHeadSelfAttention`.
        context_mask: bool (B, S), True at real tokens of the context. Keras fills it from the context.
        context_attention_mask: bool (T, S), (B, T, S) or (B, N or 1, T, S) for the cross-attention.
        context_segment_ids: int (B, S), with `segment_ids`.
        return_attention_scores: also return the weights (B, N, T, T) of the self-attention and, with
            `cross_attention`, those of the cross-attention (B, N, T, S).

    Returns:
        (B, T, D), and the scores if asked for.

    Raises:
        ValueError: as `EncoderBlock`; a context without `cross_attention` or the reverse.

    Reference:
        [Attention Is All You Need](https://arxiv.org/abs/1706.03762), section 3.1.

    Example:

    >>> block = txf.layers.DecoderBlock(num_heads=4, cross_attention=True)
    >>> block(keras.random.normal((2, 7, 32)), keras.random.normal((2, 5, 48))).shape
    (2, 7, 32)
    """

    def __init__(
        self,
        num_heads,
        intermediate_dim=None,
        cross_attention=False,
        head_dim=None,
        num_key_value_heads=None,
        window=None,
        position=None,
        qk_norm=False,
        logit_soft_cap=None,
        scale=None,
        activation="relu",
        gated=False,
        use_bias=True,
        attention_bias=None,
        attention_output_bias=None,
        output_projection=True,
        feed_forward_bias=None,
        norm_bias=None,
        norm="layer",
        norm_placement="post",
        norm_attention=True,
        norm_epsilon=1e-5,
        dropout=0.1,
        attention_dropout=0.0,
        feed_forward_dropout=0.0,
        stochastic_depth=0.0,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        _set_options(self, DecoderBlock, locals())
        checks.boolean("cross_attention", cross_attention)
        _add_sublayers(self, causal=True)
        if cross_attention:
            self.cross_attention_layer = CrossAttention(
                **_inherit_attention(self, CrossAttention, name="cross_attention")
            )
            _add_norms(self, "cross_attention")

    def build(self, inputs_shape, context_shape=None):
        self._check_context(context_shape)
        _build_sublayers(self, inputs_shape)
        if self.cross_attention:
            self.cross_attention_layer.build(inputs_shape, context_shape)
            _build_norms(self, "cross_attention", inputs_shape)

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
        return_attention_scores=False,
        training=None,
    ):
        self._check_context(
            context,
            context_mask=context_mask,
            context_attention_mask=context_attention_mask,
            context_segment_ids=context_segment_ids,
        )
        check_attention_mask("context_attention_mask", context_attention_mask, self.num_heads, inputs, context)

        def attend_to_self(x):
            return self.attention(
                x,
                mask=inputs_mask if mask is None else mask,
                attention_mask=attention_mask,
                segment_ids=segment_ids,
                positions=positions,
                return_attention_scores=return_attention_scores,
            )

        def attend_to_context(x):
            return self.cross_attention_layer(
                x,
                context,
                context_mask=context_mask,
                attention_mask=context_attention_mask,
                segment_ids=segment_ids,
                context_segment_ids=context_segment_ids,
                return_attention_scores=return_attention_scores,
            )

        x, *scores = decode_block(self, inputs, attend_to_self, attend_to_context)
        return (x, *scores) if return_attention_scores else x

    def get_config(self):
        return get_config(self, super().get_config())


def decode_block(block, inputs, attend_to_self, attend_to_context):
    """A DecoderBlock around its two attentions, whatever their keys come from: its output, and their scores."""
    x, *scores = _residual(block, "attention", inputs, attend_to_self)
    if block.cross_attention:
        x, cross_scores = _residual(block, "cross_attention", x, attend_to_context)
        scores.append(cross_scores)
    x, _ = _residual(block, "feed_forward", x, block.feed_forward)
    return x, *scores


def _residual(block, name, x, sublayer):
    """x + sublayer(x), with the norms where `norm_placement` has them, and the sublayer's scores."""
    norm = getattr(block, f"{name}_norm", lambda x: x)
    result = sublayer(x if block.norm_placement == "post" else norm(x))
    update, scores = result if isinstance(result, tuple) else (result, None)
    if block.norm_placement == "sandwich":
        update = getattr(block, f"{name}_post_norm")(update)
    x = x + block.stochastic_depth_layer(block.dropout_layer(update))
    return (norm(x) if block.norm_placement == "post" else x), scores


def _set_options(block, cls, arguments):
    """Checks what inner layers would report under another name, and keeps every option under its own."""
    for name in option_names(cls):
        setattr(block, name, arguments[name])
    block.position = revive(block.position)
    block.kernel_initializer = get_initializer("kernel_initializer", block.kernel_initializer)
    checks.one_of("norm", block.norm, NORMS)
    checks.one_of("norm_placement", block.norm_placement, PLACEMENTS)
    if not checks.boolean("norm_attention", block.norm_attention) and block.norm_placement != "pre":
        raise ValueError(
            f"norm_attention=False needs norm_placement='pre'; received norm_placement={short_repr(block.norm_placement)}."
        )
    for name in ("attention_bias", "attention_output_bias", "feed_forward_bias", "norm_bias"):
        checks.optional(checks.boolean, name, getattr(block, name))
    checks.boolean("output_projection", block.output_projection)
    check_output_bias("attention_output_bias", block.attention_output_bias, block.output_projection)
    if block.norm == "rms" and block.norm_bias:
        raise ValueError("norm_bias=True needs norm='layer': an RMS norm has none; received norm='rms'.")
    for name in ("dropout", "attention_dropout", "feed_forward_dropout", "stochastic_depth"):
        checks.rate(name, getattr(block, name))
    block.supports_masking = True


def _add_sublayers(block, causal):
    block.attention = MultiHeadSelfAttention(
        **_inherit_attention(block, MultiHeadSelfAttention, causal=causal, name="attention")
    )
    bias, rate = has_bias(block, "feed_forward_bias"), block.feed_forward_dropout
    block.feed_forward = FeedForward(
        **inherit(block, FeedForward, use_bias=bias, dropout=rate, name="feed_forward")
    )
    _add_norms(block, "attention")
    _add_norms(block, "feed_forward")
    dtype = block.dtype_policy
    block.dropout_layer = Dropout(block.dropout, dtype=dtype, name="dropout")
    block.stochastic_depth_layer = keras.layers.Dropout(
        block.stochastic_depth, noise_shape=(None, 1, 1), dtype=dtype, name="stochastic_depth"
    )


def _inherit_attention(block, cls, **changed):
    bias = has_bias(block, "attention_bias")
    changed.update(dropout=block.attention_dropout, use_bias=bias, output_bias=block.attention_output_bias)
    return inherit(block, cls, **changed)


def has_bias(block, name):
    """What `name`, one of the four options that refine `use_bias`, comes to."""
    bias = getattr(block, name)
    return block.use_bias if bias is None else bias


def _norm_names(block, name):
    if name == "attention" and not block.norm_attention:
        return []
    return [f"{name}_norm"] + [f"{name}_post_norm"] * (block.norm_placement == "sandwich")


def _add_norms(block, name):
    for norm_name in _norm_names(block, name):
        bias = has_bias(block, "norm_bias")
        norm = make_norm(block.norm, block.norm_epsilon, block.dtype_policy, norm_name, bias)
        setattr(block, norm_name, norm)


def _build_norms(block, name, shape):
    for norm_name in _norm_names(block, name):
        getattr(block, norm_name).build(shape)


def _build_sublayers(block, shape):
    block.attention.build(shape)
    width, dim = block.attention.query.units, shape[-1]
    if not block.output_projection and width != dim:  # the heads themselves are added to the residual stream
        raise ValueError(
            f"output_projection=False needs num_heads * head_dim = dim; received num_heads={block.num_heads}, "
            f"head_dim={block.head_dim} and dim={dim}."
        )
    block.feed_forward.build(shape)
    _build_norms(block, "attention", shape)
    _build_norms(block, "feed_forward", shape)
    block.input_spec = keras.layers.InputSpec(axes={-1: shape[-1]})
