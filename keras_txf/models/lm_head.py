"""Hidden states -> logits over the vocabulary: what generators and masked language models end with."""

import dataclasses
from typing import Any

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.heads import LogitAdjustment
from keras_txf.layers.parts import copy_layer
from keras_txf.layers.projections import LogitProjection
from keras_txf.models.head_layers import apply_head


@dataclasses.dataclass
class Logits:
    """How logits come from hidden states; the fields are arguments of the builders."""

    tie_embeddings: bool = True
    logit_adjustment: LogitAdjustment | None = None
    head: Any = None

    def check(self, embedding):
        """Raises ValueError for what does not go with a builder's `embedding`."""
        checks.boolean("tie_embeddings", self.tie_embeddings)
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
