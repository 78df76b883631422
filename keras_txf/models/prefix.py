"""A prefix of float vectors before the tokens of a model: image features, soft prompts.

In the graph of the model the prefix is concatenated with the embedded tokens. Decoding gives the prefix columns of its
own at the beginning of each prompt: the ids there are `PLACEHOLDER`, and the vectors take the place of their
embeddings.

Legend: B batch, P prompt length, L columns, n prefix length, D model dim.
"""

import keras
from keras import ops

from keras_txf.backend.functional_graph import concatenation_axis, mask_of, new_tensors, nodes, sequence_start
from keras_txf.checks import short_repr
from keras_txf.layers.cached_layers import DecodingLayer
from keras_txf.layers.serialization import register

PLACEHOLDER = -1  # which a `History` has in columns without a token, too


def prefix_length(model, ids):
    """The number n of vectors that the graph of a model puts before the embedded tokens; 0 for most models.

    Args:
        model: a functional model.
        ids: its symbolic input of token ids.
    """
    new = new_tensors(model, ids)
    parts = [
        split_prefix(node.operation, [node.arguments.args[0]], lambda x: id(x) in new)
        for node in nodes(model)
        if _joins_sequences(node.operation)
    ]
    return sum(prefix.shape[1] for found in parts if found is not None for prefix in found[0])


def split_prefix(layer, args, is_new):
    """The tensors of a prefix and the embedded tokens, where a layer concatenates them; else None."""
    if not _joins_sequences(layer) or not isinstance(args[0], (list, tuple)):
        return None
    *prefix, tokens = args[0]
    is_mask = len(tokens.shape) != 3 or "float" not in tokens.dtype  # Keras concatenates the masks of the parts, too
    if is_mask or not is_new(tokens) or any(is_new(x) for x in prefix):
        return None
    for x in prefix:
        if x.shape[1] is None:
            raise ValueError(
                f"`model` must know the length of the prefix that its layer {short_repr(layer.name)} puts before the "
                f"tokens; received vectors of shape {tuple(x.shape)}."
            )
        if mask_of(x) is not None:
            raise ValueError(
                f"`model` must have no mask on the prefix that its layer {short_repr(layer.name)} puts before the "
                "tokens."
            )
    return prefix, tokens


def _joins_sequences(layer):
    """Whether a layer or operation concatenates tensors (B, T, D) along T."""
    return concatenation_axis(layer) in (1, -2)


def cuts_prefix(layer, args, kwargs, length):
    """Whether a layer leaves out the columns of the prefix, as `x[:, n:]` or `keras.layers.Cropping1D((n, 0))`."""
    return length > 0 and sequence_start(layer, args, kwargs) == length


@register
class ClearPlaceholders(DecodingLayer):
    """Replaces the placeholders among the ids of a prompt by an id that every table has, 0."""

    def call(self, ids):
        return ops.where(ids == PLACEHOLDER, 0, ids)


@register
class InsertPrefix(DecodingLayer):
    """Puts a prefix into the first real columns of each row.

    Call arguments:
        inputs: float (B, P, D), the embedded columns of a prompt.
        prefix: float (B, n, D).
        attention_mask: bool (B, L), True at the real columns, of which the first n are the prefix's.

    Returns:
        (B, P, D).
    """

    def call(self, inputs, prefix, attention_mask):
        columns = ops.arange(ops.shape(inputs)[1], dtype="int32")
        first = ops.cast(ops.argmax(ops.cast(attention_mask, "int32"), axis=1), "int32")
        place = columns[None] - first[:, None]
        inside = ops.logical_and(place >= 0, place < prefix.shape[1])
        index = ops.clip(place, 0, prefix.shape[1] - 1)[..., None]
        vectors = ops.take_along_axis(ops.cast(prefix, inputs.dtype), index, axis=1)
        return ops.where(inside[..., None], vectors, inputs)

    def compute_output_spec(self, inputs, prefix, attention_mask):
        return keras.KerasTensor(inputs.shape, inputs.dtype)
