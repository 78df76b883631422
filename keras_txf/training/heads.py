"""The heads of a model: what fine-tuning trains as a whole."""

import keras

from keras_txf import layers
from keras_txf.backend.keras_private import flatten_layers, trainable_by_nature
from keras_txf.layers.heads import LogitAdjustment
from keras_txf.training.patterns import select

BASE = (
    layers.CrossAttention, layers.DecoderBlock, layers.EncoderBlock, layers.FeedForward, layers.LatentAttention,
    layers.MultiHeadSelfAttention, layers.RecurrentDecoder,
)  # fmt: skip
NO_HEADS = (keras.layers.LayerNormalization, keras.layers.RMSNormalization, LogitAdjustment)


def heads_of(model, patterns=None):
    """The layers whose paths match patterns of `heads`; for None what comes after the last block, but for norms and for
    logits over the vocabulary.
    """
    if patterns is not None:
        known = {layer.path: layer for layer in flatten_layers(model) if layer.path and trainable_by_nature(layer)}
        return [known[path] for path in select("heads", patterns, known, "layers", least=0)]
    parts = outermost_layers(model)
    last = max((i for i, layer in enumerate(parts) if isinstance(layer, BASE)), default=len(parts))
    vocabularies = {layer.vocab_size for layer in parts if isinstance(layer, layers.PositionalEmbedding)}
    return [
        layer
        for layer in parts[last + 1 :]
        if trainable_by_nature(layer)
        and not isinstance(layer, NO_HEADS)
        and not (layer.name == "logits" and getattr(layer, "units", None) in vocabularies)
    ]


def outermost_layers(model):
    """The layers of a model and of the models inside of it, in order."""
    inner = [outermost_layers(layer) if isinstance(layer, keras.Model) else [layer] for layer in model.layers]
    return [layer for layers in inner for layer in layers]
