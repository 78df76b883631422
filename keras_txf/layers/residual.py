"""The residual stream of a block: what each sublayer reads of it and adds to it."""

from keras_txf import checks
from keras_txf.layers.parts import check_width

RESIDUALS = {  # option -> which stream a sublayer reads: as it entered the block, or as it is now
    "sequential": lambda entered, now: now,
    "parallel": lambda entered, now: entered,
}


def add_to_stream(block, x, sublayers):
    """Adds to the stream what each sublayer of a block returns, a function of (B, T, D) by its name.

    Returns:
        The stream (B, T, D), and a list of the attention scores that the sublayers return.
    """
    entered, all_scores = x, []
    for name, sublayer in sublayers.items():
        norm = getattr(block, f"{name}_norm", lambda x: x)
        read = RESIDUALS[block.residual](entered, x)
        result = sublayer(read if block.norm_placement == "post" else norm(read))
        update, *scores = result if isinstance(result, tuple) else (result,)
        all_scores += scores
        check_width(name, layer_of(block, name), tuple(update.shape), x.shape)
        if block.norm_placement == "sandwich":
            update = getattr(block, f"{name}_post_norm")(update)
        update = getattr(block, f"{name}_scale", lambda x: x)(update)
        x = x + block.stochastic_depth_layer(block.dropout_layer(update))
        if block.norm_placement == "post":
            x = norm(x)
    return x, all_scores


def layer_of(block, name):
    """The layer of a sublayer."""
    return block.cross_attention_layer if name == "cross_attention" else getattr(block, name)


def check_residual(block):
    """Refuses an unknown `residual`, and norms of the sum where sublayers stand side by side."""
    checks.one_of("residual", block.residual, RESIDUALS)
    if block.residual == "parallel" and block.norm_placement == "post":
        raise ValueError(
            "residual='parallel' needs norm_placement='pre' or 'sandwich'; received norm_placement='post'."
        )
