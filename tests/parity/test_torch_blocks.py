"""EncoderBlock and DecoderBlock are torch.nn.TransformerEncoderLayer and TransformerDecoderLayer."""

import numpy as np
import pytest
import torch
from parity.weights import DECODER_LAYER, ENCODER_LAYER, both, causal_mask, close, hide, holes, normal, paired_blocks

from keras_txf.layers import DecoderBlock, EncoderBlock

pytestmark = pytest.mark.parity

BATCH, TARGET, SOURCE, DIM, HEADS = 2, 5, 7, 12, 3
# Under a causal mask the first two queries of the second row see no key: they are padding, and their
# output is of no concern.
LEFT_PADDING = np.arange(TARGET) >= np.array([[0], [2]])

options = pytest.mark.parametrize("options", [
    dict(norm_first=False, activation="relu", bias=True, epsilon=1e-5),
    dict(norm_first=True, activation="relu", bias=False, epsilon=1e-2),
    dict(norm_first=False, activation="gelu", bias=False, epsilon=1e-6),
    dict(norm_first=True, activation="gelu", bias=True, epsilon=1e-1),
], ids=lambda options: "-".join(map(str, options.values())))  # fmt: skip

# Whether causal, padding (B, T), attention mask.
ENCODER_MASKS = {
    "none": (False, None, None),
    "padding": (False, holes(BATCH, TARGET), None),
    "mask": (False, None, holes(TARGET, TARGET)),
    "both": (False, holes(BATCH, TARGET), holes(TARGET, TARGET)),
    "each head": (False, holes(BATCH, TARGET), holes(BATCH, HEADS, TARGET, TARGET)),
    "causal": (True, None, None),
    "causal, left padding": (True, LEFT_PADDING, None),
    "causal, both": (True, holes(BATCH, TARGET), holes(TARGET, TARGET)),
}


def concerned(padding, causal):
    """At padding, where a causal token of ours sees itself, theirs sees something else."""
    return padding if causal or padding is LEFT_PADDING else None


@options
@pytest.mark.parametrize("masks", ENCODER_MASKS)
def test_encoder(options, masks):
    causal, padding, mask = ENCODER_MASKS[masks]
    shape = (BATCH, TARGET, DIM)
    theirs, ours = paired_blocks(
        torch.nn.TransformerEncoderLayer, EncoderBlock, ENCODER_LAYER, shapes=[shape], causal=causal, **options
    )
    x = normal(*shape)
    expected = theirs(
        torch.from_numpy(x),
        src_mask=hide(both(mask, causal_mask(TARGET) if causal else None)),
        src_key_padding_mask=hide(padding),
    )
    close(ours(x, mask=padding, attention_mask=mask), expected, where=concerned(padding, causal))


# Padding of target and memory, then the attention masks of both.
DECODER_MASKS = {
    "none": (None, None, None, None),
    "target padding": (holes(BATCH, TARGET), None, None, None),
    "left padding": (LEFT_PADDING, None, None, None),
    "memory padding": (None, holes(BATCH, SOURCE), None, None),
    "target mask": (None, None, holes(TARGET, TARGET), None),
    "memory mask": (None, None, None, holes(TARGET, SOURCE)),
    "all": (holes(BATCH, TARGET), holes(BATCH, SOURCE), holes(TARGET, TARGET), holes(TARGET, SOURCE, seed=1)),
    "each head": (holes(BATCH, TARGET), holes(BATCH, SOURCE), holes(BATCH, HEADS, TARGET, TARGET),
                  holes(BATCH, HEADS, TARGET, SOURCE)),
}  # fmt: skip


@options
@pytest.mark.parametrize("masks", DECODER_MASKS)
def test_decoder(options, masks):
    shapes = [(BATCH, TARGET, DIM), (BATCH, SOURCE, DIM)]
    theirs, ours = paired_blocks(
        torch.nn.TransformerDecoderLayer, DecoderBlock, DECODER_LAYER, shapes=shapes, cross_attention=True, **options
    )
    x, memory = normal(*shapes[0]), normal(*shapes[1], seed=1)
    padding, memory_padding, mask, memory_mask = DECODER_MASKS[masks]
    expected = theirs(
        torch.from_numpy(x),
        torch.from_numpy(memory),
        tgt_mask=hide(both(mask, causal_mask(TARGET))),
        tgt_key_padding_mask=hide(padding),
        memory_mask=hide(memory_mask),
        memory_key_padding_mask=hide(memory_padding),
    )
    result = ours(
        x, memory, mask=padding, context_mask=memory_padding, attention_mask=mask, context_attention_mask=memory_mask
    )
    close(result, expected, where=concerned(padding, causal=True))
