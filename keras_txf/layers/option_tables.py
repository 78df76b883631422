"""The options that layers and builders share: type, default, meaning and check of each, said once.

`shown_options.py` has constructors and builders take them, and `help` and editors show them.
"""

import typing
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

from keras_txf import checks
from keras_txf.checks import or_none
from keras_txf.layers.serialization import get_initializer

Norm = Any  # "layer", "rms", "rms_zero_centered" or a Keras layer
Value = typing.TypeVar("Value")
Each = Value | Sequence[Value]  # of a block one value; of a builder one for all blocks, or a list with one for each


class LayerOptions(TypedDict, total=False):
    """What Keras takes for every layer."""

    name: str | None
    dtype: Any
    trainable: bool
    autocast: bool
    activity_regularizer: Any


class WidthOptions(TypedDict, total=False):
    intermediate_dim: Annotated[
        Each[int | None], None, "width of the feed-forward network in between; default 4 times D."
    ]


class HeadOptions(TypedDict, total=False):
    """Options of every attention, by itself or in a block."""

    head_dim: Annotated[
        Each[int | None], None, "width H of a head; default D / N, which must then be whole.", or_none(checks.size)
    ]
    num_key_value_heads: Annotated[
        Each[int | None],
        None,
        "number K of key-value heads, a divisor of N: 1 is multi-query, between is grouped-query attention. Default N.",
        or_none(checks.size),
    ]
    kernel_initializer: Annotated[
        Any,
        "glorot_uniform",
        "of every projection. With one seed projections still begin differently: the names of layer and projection "
        "count.",
        get_initializer,
    ]


class PlaceOptions(TypedDict, total=False):
    """Options of self-attention, by itself or in a block."""

    window: Annotated[
        Each[int | None],
        None,
        "how many tokens a token attends to on each side, itself included: |t - s| < window.",
        or_none(checks.size),
    ]
    position: Annotated[
        Any,
        None,
        'positions that attention applies: "rotary", "alibi", "relative" (T5), or a position layer, which layers may '
        "share.",
    ]


class CausalOptions(TypedDict, total=False):
    causal: Annotated[Each[bool], False, "whether a token attends only to itself and what came before.", checks.boolean]


class AttentionOptions(HeadOptions, LayerOptions, total=False):
    """Options of both attention layers."""

    dropout: Annotated[float, 0.0, "rate on the attention weights.", checks.rate]
    use_bias: Annotated[bool, True, "whether the projections have a bias.", checks.boolean]
    output_bias: Annotated[
        bool | None, None, "whether the output projection has a bias; default `use_bias`.", or_none(checks.boolean)
    ]
    key_bias: Annotated[
        bool | None,
        None,
        "whether the projection of the keys has a bias; default `use_bias`. BEiT and Whisper have none: the bias adds "
        "the same to all logits of a query.",
        or_none(checks.boolean),
    ]
    qk_norm: Annotated[
        bool | str,
        False,
        'whether queries and keys go through an RMS norm before rotation: "head", or True, head by head (Qwen 3); '
        '"head_zero_centered" with factors of 1 + scale (Gemma 3); "full" over all heads together '
        '(OLMo 2). Or through a layer norm head by head: "layer" (Phi), or "layer_per_head", with factors of each '
        "head's own and without bias (StableLM 2 12B, Command R+).",
    ]
    norm_epsilon: Annotated[float, 1e-6, "of the norms of `qk_norm`.", checks.positive_number]
    logit_soft_cap: Annotated[
        float | None,
        None,
        "c bends the logits of attention to c · tanh(logits / c) (Gemma 2).",
        or_none(checks.positive_number),
    ]
    scale: Annotated[
        float | None, None, "factor on the logits of attention; default 1 / sqrt(H).", or_none(checks.positive_number)
    ]
    sinks: Annotated[
        bool,
        False,
        "whether each head has a learned logit next to the logits of the keys, to which a query may give weight "
        "instead of to a key (gpt-oss). The logit is 0 at first.",
        checks.boolean,
    ]
    output_projection: Annotated[
        bool,
        True,
        "whether the output projection W^O follows the heads. The paper's attention is Concat(heads) W^O; with False "
        "the heads are concatenated alone, (B, T, N * H), as in graph attention networks.",
        checks.boolean,
    ]


class SelfAttentionOptions(AttentionOptions, PlaceOptions, CausalOptions, total=False):
    """Options of `MultiHeadSelfAttention`."""


class CrossAttentionOptions(AttentionOptions, total=False):
    """Options of `CrossAttention`."""

    causal: Annotated[
        bool,
        False,
        "whether a token attends only to the context's vectors up to its own place. The context is then made of the "
        "same tokens, such as the output of an earlier layer (YOCO).",
        checks.boolean,
    ]


class BlockOptions(WidthOptions, HeadOptions, PlaceOptions, total=False):
    """Options of both blocks, and of every builder."""

    activation: Annotated[
        Any,
        "relu",
        'of the feed-forward network: any Keras activation, "gelu_tanh" (GPT-2, Gemma) or "gelu_sigmoid" (CLIP).',
    ]
    gated: Annotated[
        Each[bool], False, 'whether a second projection gates the first: SwiGLU with "silu", GEGLU with "gelu".'
    ]
    use_bias: Annotated[Each[bool], True, "whether projections and layer norms have a bias.", checks.boolean]
    norm: Annotated[
        Norm,
        "layer",
        '"layer", "rms", which has no bias, "rms_zero_centered", which multiplies by 1 + scale (Gemma), or a layer, of '
        "which each norm is a copy; `norm_epsilon` then keeps its default.",
    ]
    norm_placement: Annotated[
        Each[str], "post",
        '"post" normalises the sum, as the paper does: norm(x + f(x)). "pre" leaves the residual stream alone, x + '
        'f(norm(x)), which trains deep stacks without warm-up. "sandwich" is x + norm(f(norm(x))), "res_post" x + '
        'norm(f(x)) (OLMo 2, Swin v2).',
    ]  # fmt: skip
    residual: Annotated[
        Each[Any],
        "sequential",
        '"sequential", or "parallel": all sublayers read the stream as it enters the block, '
        'x + f(norm(x)) + g(norm(x)) (GPT-NeoX), but not with the norms "post"; "parallel_one_norm": the same with '
        'one norm for all, which needs the norms "pre" (GPT-J, Phi, Cohere). Or a `Residual`, for stochastic depth, '
        "layer scale or a factor.",
    ]
    norm_epsilon: Annotated[Each[float], 1e-5, "of every norm.", checks.positive_number]
    dropout: Annotated[Each[float], 0.1, "rate on what each sublayer adds to the residual stream.", checks.rate]
    attention: Annotated[
        Any, None,
        "a layer instead of the self-attention, such as a `MultiHeadSelfAttention` with options that a block does not "
        "have; the block's options of attention then keep their defaults. The layer is called with "
        "those of `mask`, `attention_mask`, `segment_ids`, `positions`, `cache`, `return_attention_scores` that are "
        "given; with `cache` among the arguments of its `call` it decodes, see `Cache`.",
    ]  # fmt: skip
    feed_forward: Annotated[
        Any,
        None,
        "a layer instead of the feed-forward network, such as a `FeedForward` with dropout inside, called on (B, T, D) "
        "and, if it takes it, `mask`; `intermediate_dim`, `activation` and `gated` then keep their defaults.",
    ]


class EncoderBlockOptions(BlockOptions, CausalOptions, LayerOptions, total=False):
    """Options of `EncoderBlock`."""


class DecoderBlockOptions(BlockOptions, LayerOptions, total=False):
    """Options of `DecoderBlock`."""

    cross_attention: Annotated[
        Any, False, "whether the block attends to a context; or a layer that does, called on (B, T, D) and the context."
    ]
