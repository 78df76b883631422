"""The heads of a model: what fine-tuning trains as a whole."""

import keras

from keras_txf import layers
from keras_txf.backend.functional_graph import is_functional, operations_after
from keras_txf.backend.keras_private import flatten_layers, trainable_by_nature
from keras_txf.layers.heads import LogitAdjustment
from keras_txf.training.places import select_layers

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
        known = [layer for layer in flatten_layers(model) if layer.path and trainable_by_nature(layer)]
        return select_layers("heads", patterns, model, known, "layers", least=0)
    vocabularies = {
        layer.vocab_size for layer in outermost_layers(model) if isinstance(layer, layers.PositionalEmbedding)
    }
    return [
        layer
        for layer in _after_blocks(model)
        if trainable_by_nature(layer)
        and not isinstance(layer, NO_HEADS)
        and not (layer.name == "logits" and getattr(layer, "units", None) in vocabularies)
    ]


def _after_blocks(model):
    """The outermost layers after the last block; of several models with blocks that stand side by side, after each."""
    towers = [layer for layer in model.layers if isinstance(layer, keras.Model) and _has_blocks(layer)]
    if len(towers) < 2 or not is_functional(model):
        parts = outermost_layers(model)
        return parts[1 + max((i for i, layer in enumerate(parts) if isinstance(layer, BASE)), default=len(parts)) :]
    bases = {id(layer) for layer in model.layers if _has_blocks(layer)}
    last = [layer for layer in model.layers if not bases & operations_after(model, {id(layer)})]
    after = operations_after(model, bases)
    found = [_after_blocks(layer) if layer in towers else _flat(layer) for layer in last if id(layer) in after | bases]
    return [layer for layers in found for layer in layers if not isinstance(layer, BASE)]


def _has_blocks(layer):
    return any(isinstance(inner, BASE) for inner in flatten_layers(layer))


def outermost_layers(model):
    """The layers of a model and of the models inside of it, in order."""
    return [layer for outer in model.layers for layer in _flat(outer)]


def _flat(layer):
    return outermost_layers(layer) if isinstance(layer, keras.Model) else [layer]
