"""The residual stream of a block: what each sublayer reads of it and adds to it."""

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.parts import check_width

RESIDUALS = {  # option -> which stream a sublayer reads: as it entered the block, or as it is now
    "sequential": lambda entered, now: now,
    "parallel": lambda entered, now: entered,
    "parallel_one_norm": lambda entered, now: entered,
}
PLACEMENTS = {  # option -> what has a norm: a sublayer's input, its output, the sum of the stream and its output
    "pre": ("input",),
    "post": ("sum",),
    "sandwich": ("input", "output"),
    "res_post": ("output",),
}


def add_to_stream(block, x, sublayers):
    """Adds to the stream what each sublayer of a block returns, a function of (B, T, D) by its name.

    Returns:
        The stream (B, T, D), and a list of the attention scores that the sublayers return.
    """
    normed, all_scores = PLACEMENTS[block.norm_placement], []
    one_norm = block.residual == "parallel_one_norm"
    entered = block.attention_norm(x) if one_norm else x
    for name, sublayer in sublayers.items():
        norm = getattr(block, f"{name}_norm", lambda x: x)
        read = RESIDUALS[block.residual](entered, x)
        result = sublayer(norm(read) if "input" in normed and not one_norm else read)
        update, *scores = result if isinstance(result, tuple) else (result,)
        all_scores += scores
        check_width(name, layer_of(block, name), tuple(update.shape), x.shape)
        if "output" in normed:
            update = getattr(block, f"{name}_post_norm", norm)(update)
        update = getattr(block, f"{name}_scale", lambda x: x)(update)
        update = update if block.residual_scale is None else update * block.residual_scale
        x = x + block.stochastic_depth_layer(block.dropout_layer(update))
        if "sum" in normed:
            x = norm(x)
    return x, all_scores


def layer_of(block, name):
    """The layer of a sublayer."""
    return block.cross_attention_layer if name == "cross_attention" else getattr(block, name)


def norm_names(block, name):
    """The names of the norms of a sublayer."""
    if name == "attention" and not block.norm_attention:
        return []
    own = name == "attention" or block.residual != "parallel_one_norm"
    return [f"{name}_norm"] * own + [f"{name}_post_norm"] * (block.norm_placement == "sandwich")


def check_residual(block):
    """Refuses unknown options of the residual stream, and those that do not go together."""
    checks.one_of("norm_placement", block.norm_placement, PLACEMENTS)
    checks.one_of("residual", block.residual, RESIDUALS)
    block.residual_scale = checks.optional(checks.positive_number, "residual_scale", block.residual_scale)
    if block.residual == "parallel" and block.norm_placement == "post":
        raise ValueError("residual='parallel' needs another norm_placement than 'post'; received 'post'.")
    pre = block.norm_placement == "pre" and block.norm_attention
    if block.residual == "parallel_one_norm" and not pre:
        raise ValueError(
            "residual='parallel_one_norm' needs norm_placement='pre' and norm_attention=True; received "
            f"norm_placement={short_repr(block.norm_placement)} and norm_attention={block.norm_attention}."
        )
    if not block.norm_attention and block.norm_placement != "pre":
        raise ValueError(
            "norm_attention=False needs norm_placement='pre'; received "
            f"norm_placement={short_repr(block.norm_placement)}."
        )
