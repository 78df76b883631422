"""The options of a builder, grouped by the layers that take them."""

import dataclasses

import keras

from keras_txf import checks
from keras_txf.layers.parts import OPTIONS, check_replaced, take_layer
from keras_txf.layers.positions import ENCODINGS
from keras_txf.layers.serialization import option_names
from keras_txf.layers.shown_options import ARGUMENTS, checked, default_options
from keras_txf.models.embeddings import EMBEDDING_OPTIONS


@dataclasses.dataclass
class Options:
    """The options of a builder, grouped by the layers that take them."""

    embedding: dict
    embedding_norm: bool
    block: dict
    final_norm: bool
    dtype: object
    share_blocks: int | None = None
    embedding_layer: object = None
    placement_is_default: bool = False


def sort_options(builder, block_class, options, table, embedding_options=EMBEDDING_OPTIONS):
    """Groups a builder's options as `Options`.

    Args:
        builder: name of the builder, for errors.
        block_class: EncoderBlock or DecoderBlock.
        options: dict of all options, with the caller's values or the defaults.
        table: the table of the builder's options, see `option_tables`.
        embedding_options: dict of the embedding's options: name in the builder -> name in the embedding layer.

    Raises:
        ValueError: a name that `table` does not have, or a value that does not fit an option.
    """
    defaults = default_options(table)
    checks.known_names(f"an option of {builder}", options, defaults, ARGUMENTS.get(builder, ()))
    options = without_replaced(options, defaults)
    placement_is_default = options.get("norm_placement", "") is None
    if placement_is_default:
        options["norm_placement"] = "post"
    block_names = set(option_names(block_class)) & defaults.keys()
    # The blocks check their own options, which may be lists with one value for each block.
    options |= checked(table, {name: value for name, value in options.items() if name not in block_names})
    block = {name: options[name] for name in block_names & options.keys()}
    layer = take_layer("embedding", options.get("embedding"))
    if layer is not None:
        check_replaced("embedding", options, defaults, embedding_options.keys() & defaults.keys())
    embedding = {layer_name: options[name] for name, layer_name in embedding_options.items() if name in options}
    embedding["position_encoding"] = resolve_encoding(options)
    final_norm = options.get("final_norm")
    if final_norm is None:  # pre-norm leaves the residual stream without a norm at its end
        placement = each_value(block["norm_placement"])[-1]
        final_norm = not isinstance(placement, str) or placement != "post"
    embedding_norm = options.get("embedding_norm", False)
    share_blocks = options.get("share_blocks")
    return Options(
        embedding, embedding_norm, block, final_norm, options.get("dtype"), share_blocks, layer, placement_is_default
    )


def without_replaced(options, defaults):
    """The options without those that a layer replaces in all blocks, as far as they have their defaults."""
    replaced = [
        name
        for part, names in OPTIONS.items()
        if all(isinstance(layer, keras.layers.Layer) for layer in each_value(options.get(part)))
        for name in names
    ]
    return {name: value for name, value in options.items() if name not in replaced or value != defaults.get(name)}


def resolve_encoding(options, absolute="sinusoidal"):
    """The caller's `position_encoding`. "auto" becomes `absolute`, or None if attention applies positions."""
    embedding = options.get("embedding")
    if isinstance(embedding, keras.layers.Layer):
        return getattr(embedding, "position_encoding", None)
    position_encoding = checks.one_of(
        "position_encoding", options.get("position_encoding", "auto"), (*ENCODINGS, "auto", None)
    )
    if position_encoding != "auto":
        return position_encoding
    in_attention = [
        *each_value(options.get("position")),
        *(getattr(layer, "position_layer", None) for layer in each_value(options.get("attention"))),
    ]
    return absolute if all(position is None for position in in_attention) else None


def heads_for(num_heads, *attentions):
    """`num_heads` of one side of a model, or None if a layer replaces each attention in all blocks."""
    layers = [layer for attention in attentions for layer in each_value(attention)]
    return None if all(isinstance(layer, keras.layers.Layer) for layer in layers) else num_heads


def each_value(value):
    """The values of an option: the items of a list or tuple with one value for each block, or the value alone."""
    return value if isinstance(value, (list, tuple)) and value else [value]
