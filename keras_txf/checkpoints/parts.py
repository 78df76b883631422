"""The parts of a family's blocks: layers made from the words of its table.

A table says `qk_norm` or `attention_dropout` as a word next to `num_heads`. A builder has no such options: they are
options of the attention, the feed-forward network, the norm or the residual stream that is passed to it.
"""

import inspect

import keras

from keras_txf.checkpoints.families.esm import TokenDropoutEmbedding
from keras_txf.checks import short_repr
from keras_txf.layers import CrossAttention, FeedForward, LogitAdjustment, MultiHeadSelfAttention, PositionalEmbedding
from keras_txf.layers.parts import OPTIONS, set_policy
from keras_txf.layers.residual import as_residual
from keras_txf.models.embeddings import EMBEDDING_OPTIONS
from keras_txf.models.stack import each_value, resolve_encoding

WORDS = {  # part -> words of a table -> options of the part
    "attention": {
        "attention_bias": "use_bias",
        "attention_output_bias": "output_bias",
        "attention_key_bias": "key_bias",
        "attention_dropout": "dropout",
        "qk_norm": "qk_norm",
        "logit_soft_cap": "logit_soft_cap",
        "scale": "scale",
        "sinks": "sinks",
    },
    "feed_forward": {
        "feed_forward_bias": "use_bias",
        "feed_forward_output_bias": "output_bias",
        "feed_forward_dropout": "dropout",
    },
    "norm": {"norm_bias": "center"},
    "logit_adjustment": {"logit_scale": "scale", "logit_bias": "use_bias", "final_logit_soft_cap": "soft_cap"},
    "embedding": {
        "embedding_dim": "dim",
        "token_dim": "token_dim",
        "masked_id": "masked_id",
        "embedding_dropout": "dropout",
    },
    "residual": {"residual_scale": "scale", "layer_scale": "layer_scale", "stochastic_depth": "stochastic_depth"},
}
PARTS = "attention", "feed_forward", "norm", "residual"  # of a block
OF_BLOCKS = {word for part in PARTS for word in WORDS[part]}


def with_parts(builder, options):
    """Returns the options of a builder in which layers and values replace the words about parts.

    Args:
        builder: a function of `txf.models`, or a partial of one.
        options: the words of a family, and options of the builder.
    """
    for side in (options, *(value for value in options.values() if isinstance(value, dict))):
        for position in each_value(side.get("position")):
            set_policy(position, options.get("dtype"))  # an attention builds its position layer at once
    taken = inspect.signature(builder).parameters
    if "logit_adjustment" in taken:
        options = _with_adjustment(options)
    for sides in (("encoder_options", "decoder_options"), ("image_options", "text_options")):
        if sides[0] in taken:
            return _with_sides(options, *sides)
    if "embedding" in taken:
        options = _with_embedding(options)
    return block_parts(options, getattr(builder, "func", builder).__name__ == "decoder_generator")


def _with_adjustment(options):
    """The options in which a `LogitAdjustment` replaces the words about it."""
    words = WORDS["logit_adjustment"]
    given = {ours: options[word] for word, ours in words.items() if options.get(word)}
    rest = {name: value for name, value in options.items() if name not in words}
    return {**rest, "logit_adjustment": LogitAdjustment(**given)} if given else rest


def _with_embedding(options):
    """The options in which a `PositionalEmbedding` replaces words that a builder does not have."""
    words = WORDS["embedding"]
    given = {ours: options[word] for word, ours in words.items() if options.get(word) is not None}
    rest = {name: value for name, value in options.items() if name not in words}
    if not given:
        return rest
    own = {ours: rest.pop(name) for name, ours in EMBEDDING_OPTIONS.items() if name in rest}
    own["position_encoding"] = resolve_encoding(options)
    cls = TokenDropoutEmbedding if "masked_id" in given else PositionalEmbedding
    layer = cls(options["vocab_size"], **{"dim": options["dim"], "scale": True, **own, **given})
    return {**rest, "embedding": layer}


def _with_sides(options, *sides):
    """The options of a model of two sides, whose parts stand in the options of each side."""
    for word in WORDS["embedding"]:
        if options.get(word) is not None:
            raise ValueError(f"`{word}` is for models of one side; received {short_repr(options[word])}.")
    own = {side: options.get(side) or {} for side in sides}
    rest = {name: value for name, value in options.items() if name not in sides}
    if not OF_BLOCKS & {name for one in (rest, *own.values()) for name in one}:
        return options
    of_blocks = OF_BLOCKS.union(*OPTIONS.values(), PARTS, ("use_bias", "norm_epsilon"))
    shared = {name: rest.pop(name) for name in of_blocks & rest.keys()}
    for side in sides:
        causal = {"causal": True} if side == "text_options" else {}
        is_decoder = side == "decoder_options"
        rest[side] = block_parts({**causal, **shared, **own[side]}, is_decoder, is_decoder)
    return {**rest, "num_heads": shared.get("num_heads")}


def block_parts(options, causal=False, cross_attention=False):
    """Returns the options of blocks in which layers and values replace the words about parts.

    Args:
        options: options of a block or of a builder, and words.
        causal: whether the blocks are those of a decoder.
        cross_attention: whether the blocks attend to a context.
    """
    parts = {
        "attention": _attention(MultiHeadSelfAttention, options, causal),
        "cross_attention": _attention(CrossAttention, options) if cross_attention else None,
        "feed_forward": _feed_forward(options),
        "norm": _norm(options),
        "residual": _residual(options),
    }
    parts = {name: part for name, part in parts.items() if part is not None}
    replaced = OF_BLOCKS.union(*(OPTIONS.get(name, ()) for name in parts))
    return {**{name: value for name, value in options.items() if name not in replaced}, **parts}


def _attention(cls, options, causal=False):
    """The attention that the words ask for, or None if a block makes the same of its own options."""
    given = _given("attention", options)
    if given is None:
        return None
    names = OPTIONS["attention"] if cls is MultiHeadSelfAttention else ("num_heads", "num_key_value_heads", "head_dim")
    own = {name: options[name] for name in names if name in options}
    if cls is MultiHeadSelfAttention:
        own["causal"] = causal or options.get("causal", False)
    epsilon, bias = options.get("norm_epsilon", 1e-5), options.get("use_bias", True)
    return _each(cls, {"norm_epsilon": epsilon, "use_bias": bias, **own, **given})


def _feed_forward(options):
    given, made = options.get("feed_forward"), None
    dense = isinstance(given, (list, tuple)) and None in given  # blocks next to those with experts
    words = _given("feed_forward", {**options, "feed_forward": None} if dense else options)
    if words is not None:
        own = {name: options[name] for name in OPTIONS["feed_forward"] if name in options}
        made = _each(FeedForward, {"use_bias": options.get("use_bias", True), "activation": "relu", **own, **words})
    return [made if one is None else one for one in given] if dense and made is not None else made


def _norm(options):
    bias, norm = options.get("norm_bias"), options.get("norm", "layer")
    if bias is None or bias == options.get("use_bias", True) or norm != "layer":
        return None
    return keras.layers.LayerNormalization(epsilon=options.get("norm_epsilon", 1e-5), center=bias)


def _residual(options):
    words = {ours: options[word] for word, ours in WORDS["residual"].items() if options.get(word) not in (None, 0.0)}
    if not words:
        return None

    def make(residual, **words):
        residual = as_residual(residual)
        return residual.from_config({**residual.get_config(), **words})

    found = _each(make, {"residual": options.get("residual", "sequential"), **words})
    if isinstance(found, list) and isinstance(words.get("stochastic_depth", []), float):
        return [one.of_block(i, len(found)) for i, one in enumerate(found)]
    return found


def _given(part, options):
    """The words about a part, by the names of the part's options; None if they say what a block does without them.

    Args:
        part: "attention" or "feed_forward".
        options: the words.
    """
    given = {ours: options[word] for word, ours in WORDS[part].items() if options.get(word) is not None}
    biased = given.get("use_bias", options.get("use_bias", True))
    plain = {"use_bias": options.get("use_bias", True), "output_bias": biased, "key_bias": biased, "dropout": 0.0}
    needed = [name for name, value in given.items() if value != plain.get(name, False)]
    if not needed:
        return None
    if options.get(part) is not None:
        word = next(word for word, ours in WORDS[part].items() if ours == needed[0])
        raise ValueError(
            f"`{word}` does not go with a layer as `{part}`, which replaces what it is for; received "
            f"{short_repr(options[word])}."
        )
    return given


def _each(make, options):
    """What a function makes of options; of options with a list for the blocks, a list."""
    lists = [value for value in options.values() if isinstance(value, (list, tuple))]
    if not lists:
        return make(**options)
    rows = [
        {name: value[i] if isinstance(value, (list, tuple)) else value for name, value in options.items()}
        for i in range(len(lists[0]))
    ]
    return [make(**row) for row in rows]
