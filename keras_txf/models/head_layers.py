"""The layers of heads, between an encoder and its logits.

Legend: B batch, T length, D width, C classes.
"""

import dataclasses
from typing import Any

import keras

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers import Pooling
from keras_txf.layers.activations import get_activation
from keras_txf.layers.dropout import Dropout
from keras_txf.layers.heads import POOLINGS, LogitAdjustment
from keras_txf.layers.parts import copy_layer
from keras_txf.layers.projections import LogitProjection, Projection
from keras_txf.models import stack


def next_sentence_logits(x, dim, dtype):
    """(B, T, D) -> (B, 2), from the first token.

    A dense layer with tanh stands between, as in BERT.
    """
    x = Pooling("first", dtype=dtype, name="pooling")(x)
    x = Projection(dim, dtype=dtype, name="pooler")(x)
    x = keras.layers.Activation("tanh", dtype=dtype, name="pooler_activation")(x)
    return Projection(2, dtype=dtype, name="next_sentence_logits")(x)


def apply_head(x, head, width, dtype, block=None):
    """What stands before logits: a Dense layer by its activation, or a copy of a layer.

    Args:
        x: (B, D) or (B, T, D).
        head: an activation, a layer, or None.
        width: of the Dense layer.
        dtype: dtype policy of all layers.
        block: a block whose kind of norm follows the Dense layer, or None.
    """
    if head is None:
        return x
    if isinstance(head, keras.layers.Layer) and not isinstance(head, keras.layers.Activation):
        return copy_layer(head, "head", dtype=dtype)(x)
    activation = get_activation("head", head)
    x = Projection(width, dtype=dtype, name="head")(x)
    x = keras.layers.Activation(activation, dtype=dtype, name="head_activation")(x)
    return x if block is None else stack.like_norm(block, "head_norm", dtype)(x)


def class_logits(x, num_classes, width, head, dtype):
    """The logits of classes, (B, C) of (B, D), or (B, T, C) of (B, T, D).

    Args:
        x: (B, D) or (B, T, D).
        num_classes: number C.
        width: of a dense layer before the logits.
        head: `ClassHeadOptions` or `SequenceHeadOptions`.
        dtype: dtype policy of all layers.
    """
    x = apply_head(x, head["head"], width, dtype)
    if head["head_dropout"]:
        x = Dropout(head["head_dropout"], dtype=dtype, name="head_dropout")(x)
    return Projection(num_classes, use_bias=head.get("logit_bias", True), dtype=dtype, name="logits")(x)


def make_pooling(argument, pooling, name, dtype):
    """The layer of a pooling: a `Pooling` by its kind, or a copy of a layer."""
    if isinstance(pooling, keras.layers.Layer):
        return copy_layer(pooling, name, dtype=dtype)
    return Pooling(checks.one_of(argument, pooling, POOLINGS), dtype=dtype, name=name)


@dataclasses.dataclass
class Logits:
    """How logits come from hidden states; the fields are arguments of the builders."""

    tie_embeddings: bool = True
    logit_adjustment: LogitAdjustment | None = None
    head: Any = None

    def check(self, embedding):
        """Raises ValueError for what does not go with a builder's `embedding`."""
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
        """(B, T, D) -> (B, T, V); `block` says which norm follows a head that is an activation."""
        hidden = apply_head(hidden, self.head, hidden.shape[-1], dtype, block)
        if self.tie_embeddings:
            if hidden.shape[-1] != embedding.dim:
                raise ValueError(
                    f"`head` must return the width of the embedding, {embedding.dim}; received a head that returns "
                    f"{tuple(hidden.shape)}."
                )
            logits = embedding(hidden, reverse=True)
        else:
            logits = LogitProjection(vocab_size, use_bias=False, dtype=dtype, name="logits")(hidden)
        if self.logit_adjustment is not None:
            return copy_layer(self.logit_adjustment, "logit_adjustment", dtype=dtype)(logits)
        if not self.tie_embeddings:
            return logits
        # Tied logits have a row of their own in `summary`: the row of the embedding is at the top.
        return LogitAdjustment(dtype=dtype, name="tied_logits")(logits)
