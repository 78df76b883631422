"""Makes the parts of a family's blocks from the options in its table.

A table holds options such as `qk_norm` or `attention_dropout` next to `num_heads`. A builder does not take them: they
are options of the attention, the feed-forward network, the norm or the residual stream. The functions here make a part
if the table sets such an option, and leave it out if the builder would make the same part without it.
"""

import inspect

import keras

from keras_txf.checkpoints.families.bert_kin import FactorizedEmbedding
from keras_txf.checkpoints.families.ernie import TaskEmbedding
from keras_txf.checkpoints.families.esm import TokenDropoutEmbedding
from keras_txf.checks import short_repr
from keras_txf.layers import CrossAttention, FeedForward, LogitAdjustment, MultiHeadSelfAttention, PositionalEmbedding
from keras_txf.layers.option_tables import OF_ATTENTION
from keras_txf.layers.parts import OPTIONS, set_policy
from keras_txf.layers.residual import as_residual
from keras_txf.models.embeddings import EMBEDDING_OPTIONS
from keras_txf.models.options import each_value, resolve_encoding

TABLE_OPTIONS = {  # part -> option in the table of a family -> option of the part
    "attention": {
        "attention_bias": "use_bias",
        "attention_output_bias": "output_bias",
        "attention_key_bias": "key_bias",
        "attention_dropout": "dropout",
        **{name: name for name in OF_ATTENTION},
    },
    "feed_forward": {
        "feed_forward_bias": "use_bias",
        "feed_forward_output_bias": "output_bias",
        "feed_forward_dropout": "dropout",
    },
    "norm": {"norm_bias": "center"},
    "residual": {"residual_scale": "scale", "layer_scale": "layer_scale", "stochastic_depth": "stochastic_depth"},
    "logit_adjustment": {"logit_scale": "scale", "logit_bias": "use_bias", "final_logit_soft_cap": "soft_cap"},
    "embedding": {
        "embedding_dim": "dim",
        "token_dim": "token_dim",
        "masked_id": "masked_id",
        "task_types": "task_types",
        "embedding_dropout": "dropout",
    },
}
EMBEDDINGS = {
    "masked_id": TokenDropoutEmbedding,
    "task_types": TaskEmbedding,
    "dim": FactorizedEmbedding,
}  # by an option from the table
BLOCK_PARTS = ("attention", "feed_forward", "norm", "residual")
BLOCK_TABLE_OPTIONS = {name for part in BLOCK_PARTS for name in TABLE_OPTIONS[part]}
CROSS_ATTENTION_OPTIONS = ("num_heads", "num_key_value_heads", "head_dim")
SIDES = (("encoder_options", "decoder_options"), ("image_options", "text_options"))


def with_parts(builder, options):
    """Returns the options of a builder, in which parts replace the table's options of parts.

    Args:
        builder: a function of `txf.models`, or a partial of one.
        options: options of a family's table, and of the builder.
    """
    for side in (options, *(value for value in options.values() if isinstance(value, dict))):
        for position in each_value(side.get("position")):
            set_policy(position, options.get("dtype"))  # an attention builds its position layer at once
    parameters = inspect.signature(builder).parameters
    if "norm_placement" in parameters and parameters["norm_placement"].default is None:
        options = {"norm_placement": "post", **options}
    if "logit_adjustment" in parameters:
        options = _with_adjustment(options)
    for sides in SIDES:
        if sides[0] in parameters:
            return _with_sides(options, sides)
    if "embedding" in parameters:
        options = _with_embedding(options)
    name = getattr(builder, "func", builder).__name__
    return block_parts(options, causal=name in ("decoder", "decoder_generator"), cross_attention=name == "decoder")


def block_parts(options, causal=False, cross_attention=False):
    """Replaces options such as `attention_dropout` by layers: the attention, the feed-forward network and the norm.

    Args:
        options: options of a family's table, and of a block or a builder.
        causal: whether the blocks are blocks of a decoder.
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
    replaced = BLOCK_TABLE_OPTIONS.union(*(OPTIONS.get(name, ()) for name in parts))
    return {**_without(options, replaced), **parts}


def _with_adjustment(options):
    """Returns the options of a builder with a `LogitAdjustment`, if the table sets an option of it."""
    adjustment = _part_options("logit_adjustment", options, unset=(None, 0.0))
    rest = _without(options, TABLE_OPTIONS["logit_adjustment"])
    return {**rest, "logit_adjustment": LogitAdjustment(**adjustment)} if adjustment else rest


def _with_embedding(options):
    """Returns the options of a builder with a `PositionalEmbedding`, if the table sets an option of it alone."""
    from_table = _part_options("embedding", options)
    rest = _without(options, TABLE_OPTIONS["embedding"])
    if not from_table:
        return rest
    if options.get("embedding") is not None:
        name = next(name for name in TABLE_OPTIONS["embedding"] if options.get(name) is not None)
        raise ValueError(
            f"`{name}` does not go with a layer as `embedding`, which brings its own; received "
            f"{short_repr(options[name])}."
        )
    from_builder = {name: rest.pop(option) for option, name in EMBEDDING_OPTIONS.items() if option in rest}
    from_builder["position_encoding"] = resolve_encoding(options)
    cls = next((cls for name, cls in EMBEDDINGS.items() if name in from_table), PositionalEmbedding)
    layer = cls(options["vocab_size"], **{"dim": options["dim"], "scale": True, **from_builder, **from_table})
    return {**rest, "embedding": layer}


def _with_sides(options, sides):
    """Returns the options of a model with two sides: the parts of a side's blocks are in the options of the side."""
    for name in TABLE_OPTIONS["embedding"]:
        if options.get(name) is not None:
            raise ValueError(f"`{name}` is for models of one side; received {short_repr(options[name])}.")
    own = {side: options.get(side) or {} for side in sides}
    rest = _without(options, sides)
    if BLOCK_TABLE_OPTIONS.isdisjoint(rest.keys() | set().union(*own.values())):
        return options
    movable = BLOCK_TABLE_OPTIONS.union(*OPTIONS.values(), BLOCK_PARTS, ("use_bias", "norm_epsilon"))
    shared = {name: rest.pop(name) for name in movable & rest.keys()}
    for side in sides:
        default = {"causal": True} if side == "text_options" else {}
        is_decoder = side == "decoder_options"
        rest[side] = block_parts({**default, **shared, **own[side]}, is_decoder, is_decoder)
    return {**rest, "num_heads": shared.get("num_heads")}


def _attention(cls, options, causal=False):
    """Returns the attention that the table asks for, or None if a block would make the same one.

    In a list of other layers, the attention replaces each None, which stands for a block with attention. A list without
    None replaces the attention of all blocks.
    """
    is_self_attention = cls is MultiHeadSelfAttention
    others = options.get("attention") if is_self_attention else None
    is_hybrid = isinstance(others, (list, tuple))
    from_table = _needed_options("attention", {**options, "attention": None} if is_hybrid else options)
    if from_table is None and is_hybrid and None in others and options.get("causal"):
        from_table = {}  # `causal` of a builder does not go with layers in the list
    if from_table is None:
        return None
    names = OPTIONS["attention"] if is_self_attention else CROSS_ATTENTION_OPTIONS
    from_block = {name: options[name] for name in ("norm_epsilon", "use_bias", *names) if name in options}
    if is_self_attention:
        from_block["causal"] = causal or options.get("causal", False)
    attention = _each(cls, {"norm_epsilon": 1e-5, **from_block, **from_table})
    return _filled(others, attention) if is_hybrid else attention


def _feed_forward(options):
    """Returns the feed-forward network that the table asks for, or None if a block would make the same one.

    In a list of layers of experts, the network replaces each None, which stands for a block without experts.
    """
    experts = options.get("feed_forward")
    has_dense_blocks = isinstance(experts, (list, tuple)) and None in experts
    from_table = _needed_options("feed_forward", {**options, "feed_forward": None} if has_dense_blocks else options)
    if from_table is None:
        return None
    from_block = {name: options[name] for name in ("use_bias", *OPTIONS["feed_forward"]) if name in options}
    network = _each(FeedForward, {"activation": "relu", **from_block, **from_table})
    return _filled(experts, network) if has_dense_blocks else network


def _norm(options):
    """Returns a layer norm if its bias is not as `use_bias` says, which a block would follow; else None."""
    bias = options.get("norm_bias")
    if bias is None or bias == options.get("use_bias", True) or options.get("norm", "layer") != "layer":
        return None
    return keras.layers.LayerNormalization(epsilon=options.get("norm_epsilon", 1e-5), center=bias)


def _residual(options):
    """Returns the residual stream that the table asks for, or None if a block would make the same one."""
    from_table = _part_options("residual", options, unset=(None, 0.0))
    if not from_table:
        return None

    def make(residual, **changed):
        residual = as_residual(residual)
        return residual.from_config({**residual.get_config(), **changed})

    residuals = _each(make, {"residual": options.get("residual", "sequential"), **from_table})
    if isinstance(residuals, list) and isinstance(from_table.get("stochastic_depth"), float):
        return [residual.of_block(i, len(residuals)) for i, residual in enumerate(residuals)]
    return residuals


def _part_options(part, options, unset=(None,)):
    """Returns the options of a part that the table sets, by their names on the part."""
    names = TABLE_OPTIONS[part].items()
    return {name: options[table_name] for table_name, name in names if options.get(table_name) not in unset}


def _needed_options(part, options):
    """Returns the options of a part that the table sets, or None if a block would make the same part without them.

    Args:
        part: "attention" or "feed_forward".
        options: options of a family's table, and of a block or a builder.

    Raises:
        ValueError: a layer as the part, next to options of the part.
    """
    from_table, use_bias = _part_options(part, options), options.get("use_bias", True)
    biased = from_table.get("use_bias", use_bias)
    defaults = {"use_bias": use_bias, "output_bias": biased, "key_bias": biased, "dropout": 0.0}
    changed = [name for name, value in from_table.items() if value != defaults.get(name, False)]
    if not changed:
        return None
    if options.get(part) is not None:
        table_name = next(key for key, name in TABLE_OPTIONS[part].items() if name == changed[0])
        raise ValueError(
            f"`{table_name}` does not go with a layer as `{part}`, which replaces what it is for; received "
            f"{short_repr(options[table_name])}."
        )
    return from_table


def _each(make, options):
    """Calls a function with options; returns a list with a result for each block if an option is a list."""
    lists = {name: value for name, value in options.items() if isinstance(value, (list, tuple))}
    if not lists:
        return make(**options)
    lengths = {name: len(values) for name, values in lists.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"Lists of options must have one value for each block; received the lengths {lengths}.")
    return [make(**{**options, **dict(zip(lists, values))}) for values in zip(*lists.values())]


def _filled(layers, part):
    """Returns a list of layers with a part instead of each None; `part` may be a list with a part for each block."""
    parts = part if isinstance(part, list) else [part] * len(layers)
    return [other if layer is None else layer for layer, other in zip(layers, parts, strict=True)]


def _without(options, names):
    return {name: value for name, value in options.items() if name not in names}
