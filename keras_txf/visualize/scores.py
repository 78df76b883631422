"""Attention weights of a model: the weights of every layer, and their product over all layers (rollout)."""

import collections
import inspect
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.backend.functional_graph import is_functional, run_graph
from keras_txf.checks import in_one_line, short_repr
from keras_txf.layers import DecoderBlock, EncoderBlock, RecurrentDecoder
from keras_txf.models.checked_model import CheckedModel


def attention_scores(model: keras.Model, inputs: Any) -> dict[str, Any]:
    """Computes the attention weights of every layer and head of a model, by the layer's name.

    The model need not be built with `return_attention_scores`: its graph runs once more, and each layer whose `call`
    has the argument `return_attention_scores` returns its weights. These layers are the attentions and blocks of this
    package, Keras' own attentions, and your own layers with this argument. The function looks into models within the
    model, but not into layers within your own layers.

    Args:
        model: a functional `keras.Model`, from a builder or wired by hand.
        inputs: the inputs of the model. For a generated answer pass the answer as the tokens that the model reads. Pass
            a generator the array that `generate` returned. Pass an encoder-decoder `source_ids` and `target_ids`, the
            start token and then the answer without its last token. Row t then shows where the model looked
            when it chose token t of the answer.

    Returns:
        A dict, in the order in which the graph runs: the path of the attention layer, as in the paths of its weights
        (`"encoder_0/attention"`, `"decoder_0/cross_attention"`), -> float32 NumPy array (B, N, T, S), weights of query
        t on key s, before dropout. The second call of a layer has `":1"` after its path, the third `":2"`, in the same
        order. The graph may run two calls in any order if neither needs the result of the other.

    Raises:
        ValueError: `model` is not functional, has no attention, or does not take `inputs`.

    Example:

    >>> model = txf.models.encoder_decoder(100, 90, num_layers=2, dim=32, num_heads=4)
    >>> inputs = {"source_ids": np.array([[5, 6, 7]]), "target_ids": np.array([[1, 8]])}
    >>> scores = txf.visualize.attention_scores(model, inputs)
    >>> scores["decoder_1/cross_attention"].shape
    (1, 4, 2, 3)
    """
    if not is_functional(model):
        received = (
            short_repr(model) if not isinstance(model, keras.Model) else f"{type(model).__name__} without a graph"
        )
        raise ValueError(f"`model` must be a functional keras.Model; received {received}.")
    if isinstance(model, CheckedModel):
        inputs = model.complete_inputs(inputs)
        if isinstance(model.input, dict) and not isinstance(inputs, dict):
            raise ValueError(
                f"`inputs` must be a dict with the keys {short_repr(sorted(model.input))}; received "
                f"{short_repr(inputs)}."
            )
    scores, calls = {}, collections.Counter()

    def call(layer, *args, **kwargs):
        if isinstance(layer, keras.layers.Layer) and "training" in inspect.signature(layer.call).parameters:
            kwargs["training"] = False  # the graph of a random layer says True
        names = _score_names(layer)
        if not names:
            return layer(*args, **kwargs)
        asked = kwargs.pop("return_attention_scores", False)
        outputs = layer(*args, **kwargs, return_attention_scores=True)
        if not isinstance(outputs, (list, tuple)) or len(outputs) != 1 + len(names):
            raise ValueError(
                f"the layer {short_repr(layer.name)} must return its output and {len(names)} tensors of weights"
            )
        for name, weights in zip(names, outputs[1:]):
            scores[f"{name}:{calls[name]}" if calls[name] else name] = _as_array(weights)
            calls[name] += 1
        return outputs if asked else outputs[0]

    try:
        masks = {}
        if isinstance(model, CheckedModel):
            inputs, masks = model.split_masks(model.check_inputs(inputs))
        _check_inputs(model, inputs)
        run_graph(model, inputs, call, masks=masks.get("mask"))
    except ValueError as error:
        raise ValueError(f"`inputs` must be what the model takes: {in_one_line(error)}") from error
    if not scores:
        kinds = sorted({type(layer).__name__ for layer in model.layers})
        raise ValueError(f"`model` must have an attention layer; received a model of {', '.join(kinds)}.")
    return scores


def _check_inputs(model, inputs):
    """Raises ValueError if a dict lacks an input, as the model's own call does. The graph would not name the input."""
    expected = getattr(model, "input", None)  # a Sequential has none
    if isinstance(expected, dict) and isinstance(inputs, dict) and (missing := expected.keys() - inputs):
        raise ValueError(f"the key {short_repr(min(missing))} is missing; received {short_repr(sorted(inputs))}.")


def _score_names(layer):
    """The names of the weights that a layer returns on request, in the layer's order."""
    if isinstance(layer, EncoderBlock):
        return [layer.attention.path]
    if isinstance(layer, RecurrentDecoder):
        return [] if layer.attention is None else [layer.cross_attention_layer.path]
    if isinstance(layer, DecoderBlock):
        cross = [layer.cross_attention_layer.path] if layer.cross_attention else []
        return [layer.attention.path, *cross]
    call = getattr(layer, "call", None)  # an operation of keras.ops has one too
    if call is None or "return_attention_scores" not in inspect.signature(call).parameters:
        return []
    return [getattr(layer, "path", None) or layer.name]


def _as_array(weights):
    """Weights as float32 (B, N, T, S); weights of one head may lack the axis of heads."""
    weights = ops.convert_to_numpy(ops.cast(weights, "float32"))
    return weights[:, None] if weights.ndim == 3 else weights


# Each type of attention: its title, the sequence of the queries, and the sequence of the keys.
KINDS = {
    "self": ("Self-attention", "tokens", "tokens"),
    "encoder": ("Encoder self-attention", "source_tokens", "source_tokens"),
    "decoder": ("Decoder self-attention", "tokens", "tokens"),
    "cross": ("Cross-attention", "tokens", "source_tokens"),
}


def attention_kind(name, with_source):
    """The type of attention of the layer with this name: a key of `KINDS`.

    Args:
        name: path of the layer, such as "decoder_0/cross_attention".
        with_source: whether the model has a source sequence.
    """
    if "cross_attention" in name.rpartition("/")[2]:
        return "cross"
    if not with_source:
        return "self"
    return "encoder" if name.startswith("encoder") else "decoder"


def attention_rollout(scores: dict[str, Any] | Sequence[Any]) -> np.ndarray:
    """Follows attention through all layers: how much of each input is in each output.

    The weights of a layer are half the mean of its heads plus half the identity, for the residual connection. The
    product of all layers is the rollout. The rollout is a heuristic: it ignores the values, the feed-forwards and the
    norms.

    Args:
        scores: dict of layer names -> weights (B, N, T, T), or a list of weights, in the order of the layers. B batch,
            N heads, T tokens. Only self-attention.

    Returns:
        NumPy float64 (B, T, T): a row for each output, a column for each input; rows sum to 1.

    Raises:
        ValueError: no layers, or weights whose shape differs from the first layer's in more than the heads.

    Reference:
        [Quantifying Attention Flow in Transformers](https://arxiv.org/abs/2005.00928), section 3.

    Example:

    >>> first, second = np.array([[[[1, 0], [1, 0]]]]), np.array([[[[0, 1], [0, 1]]]])
    >>> txf.visualize.attention_rollout([first, second])[0].tolist()
    [[0.75, 0.25], [0.5, 0.5]]
    """
    layers = list(scores.values()) if isinstance(scores, dict) else scores
    if not isinstance(layers, (list, tuple)) or not layers:
        raise ValueError(f"`scores` must be a dict or list of weights (B, N, T, T); received {short_repr(scores)}.")
    rollout = None
    for layer in layers:
        weights = as_floats("scores", layer)
        checks.rank("scores", weights, (4, "(batch, heads, tokens, tokens)"))
        batch, _, queries, keys = weights.shape
        if queries != keys or (rollout is not None and rollout.shape != (batch, queries, keys)):
            raise ValueError(
                "`scores` must be of self-attention over one sequence, (B, N, T, T), without cross-attention; "
                f"received shape {weights.shape}."
            )
        mixed = weights.mean(axis=1) + np.eye(queries)
        mixed /= mixed.sum(axis=-1, keepdims=True)
        rollout = mixed if rollout is None else mixed @ rollout
    return rollout


def as_floats(name, value):
    """A tensor, an array or nested lists as float64."""
    checks.number_tensor(name, value)  # the result is not used: on JAX it would round float64 to float32
    return np.asarray(ops.convert_to_numpy(value), "float64")
