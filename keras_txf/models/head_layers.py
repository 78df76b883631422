"""The layers between hidden states and logits.

Legend: B batch, T length, D width, C classes.
"""

import dataclasses
from typing import Any

import keras

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers import Pooling
from keras_txf.layers.feed_forward import get_activation
from keras_txf.layers.heads import POOLINGS, LogitAdjustment
from keras_txf.layers.parts import copy_layer
from keras_txf.layers.projections import Dropout, LogitProjection, Projection
from keras_txf.models import stack


def next_sentence_logits(x, dim, dtype):
    """(B, T, D) -> (B, 2), from the first token through a Dense layer with tanh, as in BERT."""
    x = Pooling("first", dtype=dtype, name="pooling")(x)
    x = Projection(dim, dtype=dtype, name="pooler")(x)
    x = keras.layers.Activation("tanh", dtype=dtype, name="pooler_activation")(x)
    return Projection(2, dtype=dtype, name="next_sentence_logits")(x)


def apply_head(x, head, width, dtype, block=None):
    """Applies the option `head` before logits.

    Args:
        x: (B, D) or (B, T, D).
        head: an activation for a Dense layer, a layer to copy, or None.
        width: width of the Dense layer.
        dtype: dtype policy of all layers.
        block: a block, whose norm the norm after the Dense layer is like; None: no norm.
    """
    if head is None:
        return x
    if isinstance(head, keras.layers.Layer) and not isinstance(head, keras.layers.Activation):
        return copy_layer(head, "head", dtype=dtype)(x)
    activation = get_activation("head", head)
    x = Projection(width, dtype=dtype, name="head")(x)
    x = keras.layers.Activation(activation, dtype=dtype, name="head_activation")(x)
    return x if block is None else stack.norm_like(block, "head_norm", dtype)(x)


def class_logits(x, num_classes, width, head, dtype):
    """Logits of classes: (B, D) -> (B, C), or (B, T, D) -> (B, T, C).

    Args:
        x: (B, D) or (B, T, D).
        num_classes: number C.
        width: width of a Dense layer before the logits.
        head: dict of `ClassHeadOptions` or `SequenceHeadOptions`.
        dtype: dtype policy of all layers.
    """
    x = apply_head(x, head["head"], width, dtype)
    if head["head_dropout"]:
        x = Dropout(head["head_dropout"], dtype=dtype, name="head_dropout")(x)
    return Projection(num_classes, use_bias=head.get("logit_bias", True), dtype=dtype, name="logits")(x)


def make_pooling(name, pooling, dtype):
    """Makes a `Pooling` by its kind, or copies a layer; `name` is the argument's and the layer's."""
    if isinstance(pooling, keras.layers.Layer):
        return copy_layer(pooling, name, dtype=dtype)
    return Pooling(checks.one_of(name, pooling, POOLINGS, "a layer"), dtype=dtype, name=name)


def pool(x, pooling, dtype):
    """Applies the option `pooling` of a classifier: (B, T, D) -> (B, width)."""
    pooled = make_pooling("pooling", pooling, dtype)(x)
    if len(pooled.shape) != 2:
        raise ValueError(f"`pooling` must return vectors (B, width); received a layer that returns {pooled.shape}.")
    return pooled


@dataclasses.dataclass
class Logits:
    """The layers from hidden states to logits of tokens. The fields are options of the builders."""

    tie_embeddings: bool = True
    logit_adjustment: LogitAdjustment | None = None
    head: Any = None

    def check(self, embedding):
        """Raises ValueError if a field does not go with a builder's `embedding`."""
        if self.logit_adjustment is not None and not isinstance(self.logit_adjustment, LogitAdjustment):
            raise ValueError(
                f"`logit_adjustment` must be None or a LogitAdjustment; received {short_repr(self.logit_adjustment)}."
            )
        if self.tie_embeddings and getattr(embedding, "combine", "add") == "concat":
            raise ValueError(
                "`tie_embeddings` does not go with an `embedding` of combine='concat', whose table is narrower than "
                "`dim`. Pass tie_embeddings=False."
            )

    def __call__(self, hidden, embedding, vocab_size, dtype, block=None):
        """(B, T, D) -> (B, T, V); `block` as in `apply_head`."""
        hidden = apply_head(hidden, self.head, hidden.shape[-1], dtype, block)
        if self.tie_embeddings:
            if hidden.shape[-1] != embedding.dim:
                raise ValueError(
                    f"`head` must return the width of the embedding, {embedding.dim}; received a head with outputs of "
                    f"shape {tuple(hidden.shape)}."
                )
            logits = embedding(hidden, reverse=True)
        else:
            logits = LogitProjection(vocab_size, use_bias=False, dtype=dtype, name="logits")(hidden)
        if self.logit_adjustment is not None:
            return copy_layer(self.logit_adjustment, "logit_adjustment", dtype=dtype)(logits)
        if not self.tie_embeddings:
            return logits
        # This layer gives tied logits their own row in `summary`: the row of the embedding is at the top.
        return LogitAdjustment(dtype=dtype, name="tied_logits")(logits)
