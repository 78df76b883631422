"""The options that layers and builders share: type, default and meaning of each, said once.

A constructor or builder that ends in `**options: Unpack[Table]` and has the decorator `shows_options` takes the options
of the table by name, with their defaults. `help` and an editor show each one, and the docstring lists the meanings in
place of its line `{options}`.
"""

import functools
import inspect
import operator
import textwrap
import typing
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

LINE = "{options}"  # of a docstring, in whose place the options are listed
WIDTH = 118
ARGUMENTS = {}  # those that a builder has beside its table, by its name: a misspelt one arrives among the options

Norm = Any  # "layer", "rms" or a Keras layer
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

    head_dim: Annotated[Each[int | None], None, "width H of a head; default D / N, which must then be whole."]
    num_key_value_heads: Annotated[
        Each[int | None],
        None,
        "number K of key-value heads, a divisor of N: 1 is multi-query, between is grouped-query attention. Default N.",
    ]
    qk_norm: Annotated[
        Each[bool | str],
        False,
        'whether queries and keys go through an RMS norm before rotation: "head", or True, head by head (Qwen 3); '
        '"full" over all heads together (OLMo 2). Or through a layer norm head by head: "layer" (Phi), or '
        '"layer_per_head", with factors of each head\'s own and without bias (StableLM 2 12B, Command R+).',
    ]
    logit_soft_cap: Annotated[Each[float | None], None, "c bends the logits of attention to c · tanh(logits / c)."]
    scale: Annotated[Each[float | None], None, "factor on the logits of attention; default 1 / sqrt(H)."]
    sinks: Annotated[
        Each[bool],
        False,
        "whether each head has a learned logit beside those of the keys, to which a query may give weight instead of "
        "to a key (gpt-oss). It begins as 0.",
    ]
    output_projection: Annotated[
        Each[bool], True,
        "whether the output projection W^O follows the heads. The paper's attention is Concat(heads) W^O; with False "
        "the heads are concatenated alone, (B, T, N * H), as in graph attention networks. A block then needs "
        "N * H = D.",
    ]  # fmt: skip
    kernel_initializer: Annotated[
        Any,
        "glorot_uniform",
        "of every projection. A seed is mixed with the names of layer and projection: each has numbers of its own.",
    ]


class PlaceOptions(TypedDict, total=False):
    """Options of self-attention, by itself or in a block."""

    window: Annotated[
        Each[int | None], None, "how many tokens a token attends to on each side, itself included: |t - s| < window."
    ]
    position: Annotated[
        Any,
        None,
        'positions that attention applies: "rotary", "alibi", "relative" (T5), or a position layer, which layers may '
        "share.",
    ]


class CausalOptions(TypedDict, total=False):
    causal: Annotated[Each[bool], False, "whether a token attends only to itself and what came before."]


class AttentionOptions(HeadOptions, LayerOptions, total=False):
    """Options of both attention layers."""

    dropout: Annotated[float, 0.0, "rate on the attention weights."]
    use_bias: Annotated[bool, True, "whether the projections have a bias."]
    output_bias: Annotated[bool | None, None, "whether the last of them has one; default as `use_bias`."]
    key_bias: Annotated[bool | None, None, "whether that of the keys has one; default as `use_bias`."]
    norm_epsilon: Annotated[float, 1e-6, "of the norms of `qk_norm`."]


class SelfAttentionOptions(AttentionOptions, PlaceOptions, CausalOptions, total=False):
    """Options of `MultiHeadSelfAttention`."""


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
    use_bias: Annotated[
        Each[bool], True, "whether projections and layer norms have a bias; the next six say where that differs."
    ]
    attention_bias: Annotated[Each[bool | None], None, "of queries, keys and values; default `use_bias`."]
    attention_output_bias: Annotated[
        Each[bool | None], None, "of the projection after the heads; default `attention_bias`."
    ]
    attention_key_bias: Annotated[
        Each[bool | None],
        None,
        "of the keys alone; default `attention_bias`. BEiT and Whisper have none: it adds the same to all logits of a "
        "query.",
    ]
    feed_forward_bias: Annotated[Each[bool | None], None, "of the feed-forward network; default `use_bias`."]
    feed_forward_output_bias: Annotated[
        Each[bool | None], None, "of the last projection of the feed-forward network; default `feed_forward_bias`."
    ]
    norm_bias: Annotated[Each[bool | None], None, "of layer norms; default `use_bias`."]
    norm: Annotated[Norm, "layer", '"layer", "rms", which has no bias, or a layer, of which each norm is a copy.']
    norm_placement: Annotated[
        Each[str], "post",
        '"post" normalises the sum, as the paper does: norm(x + f(x)). "pre" leaves the residual stream alone, x + '
        'f(norm(x)), which trains deep stacks without warm-up. "sandwich" is x + norm(f(norm(x))), "res_post" x + '
        'norm(f(x)) (OLMo 2, Swin v2).',
    ]  # fmt: skip
    residual: Annotated[
        Each[str],
        "sequential",
        '"sequential", or "parallel": all sublayers read the stream as it enters the block, '
        'x + f(norm(x)) + g(norm(x)) (GPT-NeoX), but not with the norms "post"; "parallel_one_norm": the same with '
        'one norm for all, which needs the norms "pre" (GPT-J, Phi, Cohere).',
    ]
    residual_scale: Annotated[
        Each[float | None], None, "factor on what each sublayer adds to the residual stream (Granite)."
    ]
    layer_scale: Annotated[
        Each[float | None],
        None,
        "learned factors on what each sublayer adds to the stream, one a feature, begin as this (CaiT).",
    ]
    norm_attention: Annotated[
        Each[bool],
        True,
        'whether self-attention has its norm; False needs "pre" (ModernBERT\'s first block, whose inputs come from a '
        "norm).",
    ]
    norm_epsilon: Annotated[Each[float], 1e-5, "of every norm."]
    dropout: Annotated[Each[float], 0.1, "rate on what each sublayer adds to the residual stream."]
    attention_dropout: Annotated[Each[float], 0.0, "rate on the attention weights."]
    feed_forward_dropout: Annotated[Each[float], 0.0, "rate inside the feed-forward network."]
    stochastic_depth: Annotated[Each[float], 0.0, "rate at which training leaves out a sublayer, sample by sample."]
    rematerialize: Annotated[
        Each[bool],
        False,
        "whether training keeps the block's inputs alone, and computes its inside again for the gradient: less memory, "
        "about a third more time (Chen et al. 2016).",
    ]
    attention: Annotated[
        Any, None,
        "a layer in place of the self-attention; the options of attention then keep their defaults. It is called with "
        "those of `mask`, `attention_mask`, `segment_ids`, `positions`, `cache`, `return_attention_scores` that are "
        "given; with `cache` among the arguments of its `call` it decodes, see `KVCache`.",
    ]  # fmt: skip
    feed_forward: Annotated[
        Any,
        None,
        "a layer in place of the feed-forward network, called on (B, T, D) and, if it takes it, `mask`; those options "
        "then keep their defaults.",
    ]


class ConvolutionOptions(TypedDict, total=False):
    convolution: Annotated[
        Any,
        None,
        "of encoders: a layer such as `Convolution`, called on the block's inputs (B, T, D) and, if it takes it, "
        "`mask`. What it returns is added after the feed-forward network, and a norm follows (DeBERTa v2's first "
        'block). Needs norm_placement="post" and causal=False.',
    ]


class EncoderBlockOptions(BlockOptions, CausalOptions, ConvolutionOptions, LayerOptions, total=False):
    """Options of `EncoderBlock`."""


class DecoderBlockOptions(BlockOptions, LayerOptions, total=False):
    """Options of `DecoderBlock`."""

    cross_attention: Annotated[
        Any, False, "whether the block attends to a context; or a layer that does, called on (B, T, D) and the context."
    ]


Thing = typing.TypeVar("Thing")


def shows_options(thing: Thing) -> Thing:
    """Has a class or function show the options of its `**options: Unpack[Table]`, and fills in their defaults."""
    if isinstance(thing, type):
        thing.__doc__ = describe(thing.__doc__, option_table(thing.__init__))
        thing.__init__ = _with_defaults(thing.__init__)
        return thing
    shown = _with_defaults(thing)
    shown.__doc__ = describe(thing.__doc__, option_table(thing))
    return shown


def take_options(cls, options):
    """Takes the options of a class's table out of all that its constructor was given: what is left is Keras' own."""
    return {name: options.pop(name) for name in option_table(cls.__init__)}


@functools.cache
def option_table(function):
    """The options that a function takes by `**options: Unpack[Table]`: (type, default, meaning) by name."""
    [hint] = [hint for hint in typing.get_type_hints(function).values() if typing.get_origin(hint) is typing.Unpack]
    return _fields(typing.get_args(hint)[0])


def default_options(table):
    """The defaults of a table, by name."""
    return {name: default for name, (_, default, _) in _fields(table).items()}


@functools.cache
def _fields(table):
    return {
        name: (hint.__origin__, *hint.__metadata__)
        for name, hint in typing.get_type_hints(table, include_extras=True).items()
        if hasattr(hint, "__metadata__")  # not those of `LayerOptions`, which Keras takes
    }


def _with_defaults(function):
    signature, table = inspect.signature(function), option_table(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    is_constructor = own[0].name == "self"
    if not is_constructor:
        ARGUMENTS[function.__name__] = [p.name for p in own]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if is_constructor else inspect.Parameter.KEYWORD_ONLY
    shown = [
        inspect.Parameter(name, kind, default=default, annotation=_of_one(type_))
        for name, (type_, default, _) in table.items()
    ]
    defaults = {name: default for name, (_, default, _) in table.items()}

    @functools.wraps(function)
    def call(*args, **kwargs):
        more = dict(zip(table, args[len(own) :])) if is_constructor else {}  # options in the order of the table
        return function(*args[: len(own) if is_constructor else None], **{**defaults, **more, **kwargs})

    rest = (
        [inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)] if is_constructor else []
    )  # what every Keras layer takes
    call.__signature__ = signature.replace(parameters=[*own, *shown, *rest])
    return call


def _of_one(type_):
    """The type of a value, without the list of `Each`, which would double what `help` shows."""
    types = [one for one in typing.get_args(type_) if typing.get_origin(one) is not Sequence]
    return functools.reduce(operator.or_, types) if types else type_


def describe(text, table):
    """The docstring with the meanings of the options in place of its line `{options}`."""
    lines = []
    for line in (text or "").splitlines():
        if line.strip() != LINE:
            lines.append(line)
            continue
        indent = line[: line.index(LINE)]
        for name, (_, _, meaning) in table.items():
            lines += textwrap.wrap(
                f"{name}: {meaning}", WIDTH, initial_indent=indent, subsequent_indent=indent + "    "
            )
    return "\n".join(lines)
