"""Hidden states -> logits over the vocabulary: what generators and masked language models end with."""

import dataclasses
from typing import Any

from keras_txf import checks
from keras_txf.layers.heads import LogitAdjustment
from keras_txf.layers.projections import LogitProjection
from keras_txf.models.head_layers import head_transform


@dataclasses.dataclass
class Logits:
    """How logits come from hidden states; the fields are arguments of the builders."""

    tie_embeddings: bool = True
    logit_scale: float | None = None
    logit_bias: bool = False
    final_logit_soft_cap: float | None = None
    head_activation: Any = None
    head_bias: bool = True

    def check(self, options):
        """Refuses what does not go with a builder's `options`."""
        checks.boolean("tie_embeddings", self.tie_embeddings)
        checks.boolean("logit_bias", self.logit_bias)
        if not checks.boolean("head_bias", self.head_bias) and self.head_activation is None:
            raise ValueError("head_bias=False needs `head_activation`, which makes the layer that has it.")
        for name in ("logit_scale", "final_logit_soft_cap"):
            checks.optional(checks.positive_number, name, getattr(self, name))
        if self.tie_embeddings and str(options.get("combine")) == "concat":
            raise ValueError(
                "`tie_embeddings` does not go with combine='concat': the table is narrower than `dim`. "
                "Pass tie_embeddings=False."
            )

    def __call__(self, hidden, embedding, vocab_size, dtype, block=None):
        """(B, T, D) -> (B, T, V); `block` says which norm follows the layer with `head_activation`."""
        if self.head_activation is not None:
            width = hidden.shape[-1]
            hidden = head_transform(hidden, width, self.head_activation, self.head_bias, True, block, dtype)
        if self.tie_embeddings:
            logits = embedding(hidden, reverse=True)
        else:
            logits = LogitProjection(vocab_size, use_bias=False, dtype=dtype, name="logits")(hidden)
        adjusts = self.logit_bias or self.logit_scale is not None or self.final_logit_soft_cap is not None
        if not adjusts and not self.tie_embeddings:
            return logits
        # Tied logits have a row of their own in `summary`: the row of the embedding is at the top.
        adjustment = LogitAdjustment(
            self.logit_scale,
            self.logit_bias,
            self.final_logit_soft_cap,
            dtype=dtype,
            name="logit_adjustment" if adjusts else "tied_logits",
        )
        return adjustment(logits)
