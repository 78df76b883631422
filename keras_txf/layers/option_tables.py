"""The options that layers and builders share. A table defines the type, default, meaning and check of each option once.

`shown_options.py` adds the options of a table to constructors and builders, and to their signatures and docstrings.
"""

import typing
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

from keras_txf import checks
from keras_txf.checks import or_none
from keras_txf.layers.serialization import get_initializer
from keras_txf.layers.shown_options import fields

Norm = Any  # "layer", "rms", "rms_zero_centered" or a Keras layer
Value = typing.TypeVar("Value")
Each = Value | Sequence[Value]  # one value; in a builder also a list with one value for each block


class LayerOptions(TypedDict, total=False):
    """Arguments that Keras takes for every layer."""

    name: str | None
    dtype: Any
    trainable: bool
    autocast: bool
    activity_regularizer: Any


class WidthOptions(TypedDict, total=False):
    intermediate_dim: Annotated[
        Each[int | None], None, "width of the hidden layer of the feed-forward network; default 4 times D."
    ]


class HeadOptions(TypedDict, total=False):
    """Options of every attention, alone or in a block."""

    head_dim: Annotated[
        Each[int | None], None, "width H of a head; default D / N, then N must divide D.", or_none(checks.size)
    ]
    num_key_value_heads: Annotated[
        Each[int | None],
        None,
        "number K of key-value heads, a divisor of N; default N. 1 is multi-query attention, a number between 1 and N "
        "is grouped-query attention.",
        or_none(checks.size),
    ]
    kernel_initializer: Annotated[
        Any,
        "glorot_uniform",
        "initializer of the projections. The seed of an initializer is combined with the names of layer and "
        "projection, so that all projections begin with different values. A layer as a part has its own initializer.",
        get_initializer,
    ]


class PositionOptions(TypedDict, total=False):
    """Options of self-attention, alone or in a block."""

    window: Annotated[
        Each[int | None],
        None,
        "number of tokens to which a token attends on each side, the token itself included: |t - s| < window. Default: "
        "no limit.",
        or_none(checks.size),
    ]
    position: Annotated[
        Any,
        None,
        'positions in attention: "rotary", "alibi", "relative" (T5), or a position layer, which several layers may '
        "share. Default: none.",
    ]


class CausalOptions(TypedDict, total=False):
    causal: Annotated[Each[bool], False, "whether a token attends only to itself and earlier tokens.", checks.boolean]


class AttentionOptions(HeadOptions, LayerOptions, total=False):
    """Options of both attention layers."""

    dropout: Annotated[float, 0.0, "dropout rate of the attention weights.", checks.rate]
    use_bias: Annotated[bool, True, "whether the projections have a bias.", checks.boolean]
    output_bias: Annotated[
        bool | None, None, "whether the output projection has a bias; default `use_bias`.", or_none(checks.boolean)
    ]
    key_bias: Annotated[
        bool | None,
        None,
        "whether the projection of the keys has a bias; default `use_bias`. BEiT and Whisper use False, because the "
        "bias adds one number to all logits of a query.",
        or_none(checks.boolean),
    ]
    qk_norm: Annotated[
        bool | str,
        False,
        'norm of queries and keys before rotation. RMS norms: "head", or True, for each head (Qwen 3); '
        '"head_zero_centered", for each head with factors 1 + scale (Gemma 3); "full", over all heads together '
        '(OLMo 2). Layer norms for each head: "layer" (Phi); "layer_per_head", without bias and with separate factors '
        "for each head (StableLM 2 12B, Command R+). False: no norm.",
    ]
    norm_epsilon: Annotated[float, 1e-6, "epsilon of the norms of `qk_norm`.", checks.positive_number]
    logit_soft_cap: Annotated[
        float | None,
        None,
        "c limits the logits of attention to c · tanh(logits / c) (Gemma 2). Default: no limit.",
        or_none(checks.positive_number),
    ]
    scale: Annotated[
        float | None, None, "factor on the logits of attention; default 1 / sqrt(H).", or_none(checks.positive_number)
    ]
    sinks: Annotated[
        bool,
        False,
        "whether each head has a learned logit next to the logits of the keys. A query may give weight to the sink "
        "instead of a key (gpt-oss). The initial logit is 0.",
        checks.boolean,
    ]
    output_gate: Annotated[
        bool,
        False,
        "whether a gate sigmoid(gate(x)) multiplies the heads before the output projection (Qwen3-Next). `gate` is a "
        "projection of the inputs with one factor for each feature of a head, and follows `use_bias`.",
        checks.boolean,
    ]
    output_projection: Annotated[
        bool,
        True,
        "whether the output projection W^O follows the heads. The paper's attention is Concat(heads) W^O. With False "
        "the output is Concat(heads), (B, T, N * H), as in graph attention networks.",
        checks.boolean,
    ]


class SelfAttentionOptions(AttentionOptions, PositionOptions, CausalOptions, total=False):
    """Options of `MultiHeadSelfAttention`."""


class CrossAttentionOptions(AttentionOptions, total=False):
    """Options of `CrossAttention`."""

    causal: Annotated[
        bool,
        False,
        "whether a token attends only to the vectors of the context up to the position of the token. The context is "
        "then a sequence of the same tokens, such as the output of an earlier layer (YOCO).",
        checks.boolean,
    ]


class BlockOptions(WidthOptions, HeadOptions, PositionOptions, total=False):
    """Options of both blocks, and of every builder."""

    activation: Annotated[
        Any,
        "relu",
        'activation of the feed-forward network: any Keras activation, "gelu_tanh" (GPT-2, Gemma) or "gelu_sigmoid" '
        "(CLIP).",
    ]
    gated: Annotated[
        Each[bool], False, 'whether a second projection gates the first: SwiGLU with "silu", GEGLU with "gelu".'
    ]
    use_bias: Annotated[
        Each[bool],
        True,
        "whether projections and layer norms have a bias. A layer as a part has its own `use_bias`.",
        checks.boolean,
    ]
    norm: Annotated[
        Norm,
        "layer",
        '"layer"; "rms", without bias; "rms_zero_centered", with factors 1 + scale (Gemma); or a layer, which the '
        "block copies for each of its norms. With a layer, `norm_epsilon` keeps its default.",
    ]
    norm_placement: Annotated[
        Each[str], "post",
        'where the norms of a sublayer f are. "post", as in the paper: norm(x + f(x)). "pre": x + f(norm(x)), which '
        'trains deep stacks without warm-up. "sandwich": x + norm(f(norm(x))). "res_post": x + norm(f(x)) (OLMo 2, '
        'Swin v2).',
    ]  # fmt: skip
    residual: Annotated[
        Each[Any],
        "sequential",
        'the input of the sublayers. "sequential": each sublayer reads the output of the sublayer before it. '
        '"parallel": all sublayers read the input of the block, x + f(norm(x)) + g(norm(x)) (GPT-NeoX); not with '
        'norm_placement="post". "parallel_one_norm": the same with one norm for all sublayers; only with '
        'norm_placement="pre" (GPT-J, Phi, Cohere). Or a `Residual`, for stochastic depth, layer scale or a factor.',
    ]
    norm_epsilon: Annotated[Each[float], 1e-5, "epsilon of every norm.", checks.positive_number]
    dropout: Annotated[
        Each[float],
        0.1,
        "dropout rate of the output of each sublayer, and in builders of the embeddings. The attention weights have "
        "the `dropout` of the attention.",
        checks.rate,
    ]
    attention: Annotated[
        Any, None,
        "a layer instead of the self-attention, such as a `MultiHeadSelfAttention` with options that a block does not "
        "have; the block's options of attention then keep their defaults. The block passes its call arguments "
        "`mask`, `attention_mask`, `segment_ids`, `positions`, `cache` and `return_attention_scores` to the layer, "
        "if the caller sets them. A layer whose `call` has an argument `cache` decodes, see `Cache`.",
    ]  # fmt: skip
    feed_forward: Annotated[
        Any,
        None,
        "a layer instead of the feed-forward network, such as a `FeedForward` with dropout inside. The layer is called "
        "on (B, T, D), and on `mask` if its `call` has this argument. `intermediate_dim`, `activation` and `gated` "
        "then keep their defaults.",
    ]


class EncoderBlockOptions(BlockOptions, CausalOptions, LayerOptions, total=False):
    """Options of `EncoderBlock`."""


class DecoderBlockOptions(BlockOptions, LayerOptions, total=False):
    """Options of `DecoderBlock`."""

    cross_attention: Annotated[
        Any,
        False,
        "whether the block attends to a context; or a layer for the cross-attention, called on (B, T, D) and the "
        "context.",
    ]


# The options of attention that a block does not have: a block's error says where they belong, and families use them.
OF_ATTENTION = tuple(name for name in fields(AttentionOptions) if name not in fields(BlockOptions))
checks.OF_PARTS.update(dict.fromkeys(OF_ATTENTION, checks.ATTENTION))
