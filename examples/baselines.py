"""Recurrent models beside a Transformer: of the same inputs, and of as many parameters."""

import keras_txf as txf

CELLS, ATTENTIONS = ("lstm", "gru"), ("additive", "multiplicative")
MODELS = ("transformer", *CELLS, *(f"{cell}-{attention}" for cell in CELLS for attention in ATTENTIONS))


def build(kind, transformer, **options):
    """The Transformer itself, or a recurrent encoder-decoder of the even width that comes nearest in parameters.

    Args:
        kind: one of `MODELS`: a cell, and the attention after a hyphen; a cell alone has none.
        transformer: from `txf.models.encoder_decoder`.
        options: of `txf.models.recurrent_encoder_decoder`, such as `num_layers`.
    """
    if kind == "transformer":
        return transformer
    cell, _, attention = kind.partition("-")
    tables = {
        layer.name: layer.vocab_size
        for layer in transformer.layers
        if isinstance(layer, txf.layers.PositionalEmbedding)
    }
    sizes = [tables.get(f"{side}_embedding", tables.get("embedding")) for side in ("source", "target")]

    def make(dim):
        return txf.models.recurrent_encoder_decoder(
            *sizes, dim=dim, cell=cell, attention=attention or None, **options, share_embeddings="embedding" in tables
        )

    low, high = 1, 2  # of half the width
    while _size(make, high) <= transformer.count_params():  # wide models are slow to make
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _size(make, middle) <= transformer.count_params() else (low, middle)
    nearest = min((low, high), key=lambda half: abs(_size(make, half) - transformer.count_params()))
    return make(2 * nearest)


def _size(make, half):
    return make(2 * half).count_params()
