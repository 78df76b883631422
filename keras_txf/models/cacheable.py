"""Whether decoding can call an attention with a cache."""

from keras_txf.checks import short_repr
from keras_txf.layers import DecoderBlock, EncoderBlock
from keras_txf.layers.arguments import call_parameters
from keras_txf.layers.class_change import plain_class


def check_cacheable(layer, arguments, is_new):
    """Refuses an attention, or a block, that decoding cannot call with a cache.

    Args:
        layer: a layer whose `call` takes `cache`.
        arguments: of its call, by their names.
        is_new: function that says of a symbolic tensor whether it depends on the new tokens.
    """
    if getattr(layer, "causal", True) is False:
        raise ValueError(
            f"`model` must attend to earlier tokens alone; its layer {short_repr(layer.name)} has causal=False."
        )
    if isinstance(layer, (EncoderBlock, DecoderBlock)):
        _check_parts(layer)
    for name in ("attention_mask", "segment_ids", "context_attention_mask", "context_segment_ids"):
        if arguments.get(name) is not None:
            raise ValueError(
                f"`model` must not pass `{name}` on to {short_repr(layer.name)}: decoding makes the mask of each "
                "token itself."
            )
    if is_new(arguments.get("context")):
        raise ValueError(
            f"`model` must not attend to a context made of the new tokens; its layer {short_repr(layer.name)} does."
        )


def _check_parts(block):
    """Refuses a block whose attention takes no cache."""
    attentions = {"attention": block.attention}
    if getattr(block, "cross_attention", False):
        attentions["cross_attention"] = block.cross_attention_layer
    for part, layer in attentions.items():
        known = call_parameters(type(layer))
        lacks = None
        if "cache" not in known and all(p.kind is not p.VAR_KEYWORD for p in known.values()):
            lacks = "its `call` must take `cache`"
        elif part == "cross_attention" and not hasattr(layer, "project_context"):
            lacks = "it must have a method `project_context`"
        if lacks:
            raise ValueError(
                f"`{part}` of the block {short_repr(block.name)} must decode: {lacks}, see txf.layers.KVCache; "
                f"received a layer {plain_class(layer).__name__}."
            )
