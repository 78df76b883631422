"""The inputs of token ids in the graph of a model: names, vocabulary, padding and length of their embeddings."""

import dataclasses
import itertools
import math

import keras
from keras import ops

from keras_txf.backend.functional_graph import layers_called_on, nodes
from keras_txf.checks import short_repr
from keras_txf.layers.embeddings import PositionalEmbedding
from keras_txf.layers.placeholders import InsertVectors

NAMES = ("target_ids", "token_ids")  # names for the input of new tokens in a model with several inputs of integers


@dataclasses.dataclass(frozen=True)
class TokenInput:
    """An input of token ids, or of the float vectors of a series.

    Args:
        name: name of the input.
        vocab_size: number of tokens, from an embedding or else from the model's logits; None for a series.
        pad_id: the padding token, or None.
        max_length: number of positions of the model, or None.
        placeholder_id: the token that stands for a vector, see `InsertVectors`, or None.
    """

    name: str
    vocab_size: int | None
    pad_id: int | None
    max_length: int | None
    placeholder_id: int | None = None


def inputs_by_name(model):
    """The input tensors of a functional model in its order, by the keys of its input dict or by their names."""
    keys = {id(x): key for key, x in model.input.items()} if isinstance(model.input, dict) else {}
    return {keys.get(id(x), x.name): x for x in model.inputs}


def target_name(model):
    """The name of the input of the tokens, or of the series, that a generative model continues."""
    found = known_target(model)
    if found is not None:
        return found
    received = [f"{name}: {tensor.dtype} {tuple(tensor.shape)}" for name, tensor in inputs_by_name(model).items()]
    raise ValueError(
        "`model` must have one input of token ids, keras.Input((None,), dtype='int32'), or call it one of "
        f"{list(NAMES)}; received inputs {short_repr(received)}. `generative(model, tokens=...)` names it too; "
        "`forecaster` feeds back float vectors."
    )


def known_target(model):
    """The name of the input that a model continues, by `tokens`, names or shapes; None if several inputs fit."""
    if getattr(model, "tokens", None) in series_inputs(model):
        return model.tokens
    inputs, ids = inputs_by_name(model), id_inputs(model)
    named = [name for name in (getattr(model, "tokens", None), *NAMES) if name in ids]
    of_any_length = [name for name in ids if inputs[name].shape[1] is None]
    return next((found[0] for found in (named[:1], ids, of_any_length) if len(found) == 1), None)


def id_inputs(model):
    """The names of the inputs of integers (B, T) of a functional model."""
    return [name for name, x in inputs_by_name(model).items() if len(x.shape) == 2 and "int" in x.dtype]


def followed_input(model):
    """The name of the one input of ids whose length the logits have; None if several inputs have the same length."""
    ids = [inputs_by_name(model)[name] for name in id_inputs(model)]
    fixed = {x.shape[1] for x in ids}
    free = (length for length in itertools.count(3, 2) if length not in fixed)
    lengths = {id(x): next(free) if x.shape[1] is None else x.shape[1] for x in ids}

    def with_length(x):
        shape = (2, lengths.get(id(x), x.shape[1]), *x.shape[2:]) if len(x.shape) > 1 else x.shape
        return keras.KerasTensor(shape, x.dtype, name=x.name)

    try:
        output = model.compute_output_spec(keras.tree.map_structure(with_length, model.input))
    except Exception:  # two inputs must have one length; each backend raises another kind of error
        return None
    logits = output.get("logits") if isinstance(output, dict) else output
    length = getattr(logits, "shape", (None, None))[1]
    found = [name for name, x in inputs_by_name(model).items() if length and lengths.get(id(x)) == length]
    return found[0] if len(found) == 1 else None


def source_name(model):
    """The name of the source ids of an encoder-decoder; None if the source is float vectors."""
    others = [name for name in id_inputs(model) if name != target_name(model)]
    return others[0] if len(others) == 1 else None


def series_inputs(model):
    """The names of the inputs of float vectors (B, T, F) of a functional model."""
    return [name for name, x in inputs_by_name(model).items() if len(x.shape) == 3 and "float" in x.dtype]


def embedded_input(model, name):
    """The `TokenInput` of an input from the `PositionalEmbedding`s called on it; None if there are no such layers."""
    layers = layers_called_on(model, inputs_by_name(model)[name])
    embeddings = [layer for layer in layers if isinstance(layer, PositionalEmbedding)]
    if not embeddings:
        return None
    tokens = [layer for layer in embeddings if layer.vocab_size is not None] or embeddings
    padding = {layer.pad_id for layer in tokens if layer.pad_id is not None}
    if len(padding) > 1:
        raise ValueError(f"`model` must have one padding token for its input {name!s}; received {sorted(padding)}.")
    lengths = [layer.max_length for layer in embeddings if layer.max_length is not None]
    return TokenInput(name, tokens[0].vocab_size, min(padding, default=None), min(lengths, default=None))


def token_input(model, name):
    """The `TokenInput` of an input of a generative model, from the embeddings called on it or from the logits."""
    layers = layers_called_on(model, inputs_by_name(model)[name])
    placeholders = {layer.placeholder_id for layer in layers if isinstance(layer, InsertVectors)}
    if len(placeholders) > 1:
        raise ValueError(f"`model` must have one placeholder token; received {sorted(placeholders)}.")
    return dataclasses.replace(_embedded_or_not(model, name, layers), placeholder_id=min(placeholders, default=None))


def _embedded_or_not(model, name, layers):
    embedded = embedded_input(model, name)
    if embedded is not None:
        return embedded
    if name in series_inputs(model):
        return TokenInput(name, None, None, None)
    of_keras = [layer for layer in layers if isinstance(layer, keras.layers.Embedding)]
    if of_keras:
        pad_id = 0 if any(layer.mask_zero for layer in of_keras) else None
        return TokenInput(name, of_keras[0].input_dim, pad_id, None)
    return TokenInput(name, logits_of(model).shape[-1], None, None)


def padding_token(decoder, name):
    """The padding token of a decoder: its embedding's, or the n of its `keras.ops.not_equal(ids, n)`; None: no such."""
    ids, of_embedding = inputs_by_name(decoder)[name], token_input(decoder, name).pad_id
    tokens = [] if of_embedding is None else [of_embedding]
    for node in nodes(decoder):
        read = keras.tree.flatten((node.arguments.args, node.arguments.kwargs))
        if type(node.operation).__name__ == "NotEqual" and any(x is ids for x in read):
            tokens += [x for x in read if x is not ids]
    return one_token(tokens) if tokens else None


def one_token(tokens):
    """The integer that all constants of a list are; raises ValueError for others."""
    arrays = [None if keras.utils.is_keras_tensor(x) else ops.convert_to_numpy(x) for x in tokens]
    values = {float(x.flat[0]) if x is not None and x.size == 1 else math.nan for x in arrays}
    value = values.pop()
    if values or not value.is_integer():
        raise ValueError(
            f"`decoder` must compare its tokens with one padding token, an integer; received {short_repr(tokens)}."
        )
    return int(value)


def logits_of(model):
    """The output tensor of a model that returns logits alone, or in a dict as "logits"."""
    return model.output["logits"] if isinstance(model.output, dict) else model.output
