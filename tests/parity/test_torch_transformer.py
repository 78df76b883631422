"""encoder_decoder is torch.nn.Transformer between the paper's embedding and tied or free logits."""

import warnings

import numpy as np
import pytest
import torch
from parity.weights import DECODER_LAYER, ENCODER_LAYER, causal_mask, close, copy_weights, hide, numbered, randomize

from keras_txf.models import encoder_decoder

pytestmark = pytest.mark.parity

SOURCE_VOCAB, TARGET_VOCAB, DIM, HEADS, WIDTH = 17, 13, 12, 3, 20
SOURCE_IDS = np.array([[3, 16, 5, 2, 9, 4, 7], [8, 1, 6, 6, 0, 0, 0]], "int32")
TARGET_IDS = np.array([[1, 12, 4, 0, 0], [1, 5, 2, 7, 3]], "int32")

TABLE = {
    **numbered(ENCODER_LAYER, "encoder_*", "stack.encoder.layers.*"),
    **numbered(DECODER_LAYER, "decoder_*", "stack.decoder.layers.*"), "encoder_norm": "stack.encoder.norm",
    "decoder_norm": "stack.decoder.norm", "source_embedding/token": "source", "target_embedding/token": "target",
    "embedding/token": "source", "logits": "logits",
}  # fmt: skip


class Reference(torch.nn.Module):
    """torch.nn.Transformer as the paper uses it."""

    def __init__(self, source_vocab, norm_first, final_norm, tie, share):
        super().__init__()
        with warnings.catch_warnings():  # about nested tensors, which these options do not allow
            warnings.simplefilter("ignore")
            self.stack = torch.nn.Transformer(DIM, HEADS, 2, 3, WIDTH, norm_first=norm_first, batch_first=True)
        if not final_norm:
            self.stack.encoder.norm = self.stack.decoder.norm = None
        self.source = torch.nn.Embedding(source_vocab, DIM)
        self.target = self.source if share else torch.nn.Embedding(TARGET_VOCAB, DIM)
        if not tie:
            self.logits = torch.nn.Linear(DIM, TARGET_VOCAB, bias=False)

    def forward(self, source_ids, target_ids):
        hidden = self.stack(
            self.embed(self.source, source_ids),
            self.embed(self.target, target_ids),
            tgt_mask=hide(causal_mask(target_ids.shape[1])),
            src_key_padding_mask=source_ids == 0,
            tgt_key_padding_mask=target_ids == 0,
            memory_key_padding_mask=source_ids == 0,
        )
        head = self.logits.weight if hasattr(self, "logits") else self.target.weight
        return hidden, hidden @ head.T

    @staticmethod
    def embed(table, ids):
        features = np.arange(DIM)  # section 3.5 of the paper
        angles = np.arange(ids.shape[1])[:, None] / 10000 ** (features // 2 * 2 / DIM)
        return table(ids) * DIM**0.5 + torch.tensor(np.where(features % 2, np.cos(angles), np.sin(angles))).float()


@pytest.mark.parametrize("placement, final_norm, tie, share", [
    ("post", False, True, False),  # the paper
    ("post", True, False, True),  # torch.nn.Transformer as it comes
    ("pre", True, True, False),
])  # fmt: skip
def test_encoder_decoder(placement, final_norm, tie, share):
    source_vocab = TARGET_VOCAB if share else SOURCE_VOCAB
    source_ids = np.minimum(SOURCE_IDS, source_vocab - 1)
    theirs = randomize(Reference(source_vocab, placement == "pre", final_norm, tie, share))
    ours = encoder_decoder(
        source_vocab, TARGET_VOCAB, 2, DIM, HEADS, num_decoder_layers=3, intermediate_dim=WIDTH,
        norm_placement=placement, final_norm=final_norm, tie_embeddings=tie, return_hidden_states=True,
    )  # fmt: skip
    copy_weights(theirs, ours.weights, TABLE)
    outputs = ours({"source_ids": source_ids, "target_ids": TARGET_IDS})
    hidden, logits = theirs(torch.from_numpy(source_ids), torch.from_numpy(TARGET_IDS))
    real = TARGET_IDS != 0  # at padding the reference counts positions on, which nobody sees
    close(outputs["decoder_hidden_states_3"], hidden, where=real)
    close(outputs["logits"], logits, where=real)
