"""MultiHeadSelfAttention and CrossAttention are torch.nn.MultiheadAttention, output and weights."""

import numpy as np
import pytest
import torch
from keras import ops
from parity.weights import attention_table, both, causal_mask, close, copy_weights, hide, holes, normal, randomize

from keras_txf.layers import CrossAttention, MultiHeadSelfAttention

pytestmark = pytest.mark.parity

BATCH, TARGET, SOURCE, DIM, HEADS, WIDTH = 2, 5, 7, 12, 3, 10
# The module itself has no name before its parts.
TABLE = {own: name.removeprefix(".") for own, name in attention_table("layer", "").items()}


def masks(length):
    """Padding (B, S) and attention mask."""
    return {
        "none": (None, None),
        "padding": (holes(BATCH, length), None),
        "mask": (None, holes(TARGET, length)),
        "each row": (None, holes(BATCH, 1, TARGET, length)),
        "each head": (holes(BATCH, length), holes(BATCH, HEADS, TARGET, length)),
    }


def check(theirs, ours, inputs, padding, mask, their_mask, causal=False):
    """Compares output and weights; inputs are the query and, for cross-attention, the context."""
    where = padding if causal else None  # at padding a causal token of ours sees itself
    call = {"mask" if len(inputs) == 1 else "context_mask": padding, "attention_mask": mask}
    ours.build(*[x.shape for x in inputs])
    copy_weights(theirs, ours.weights, TABLE)
    query, context = map(torch.from_numpy, (inputs[0], inputs[-1]))
    if their_mask is not None and their_mask.ndim == 4:
        their_mask = np.broadcast_to(their_mask, (BATCH, HEADS, *their_mask.shape[2:]))
    expected, expected_scores = theirs(
        query, context, context, key_padding_mask=hide(padding), attn_mask=hide(their_mask), average_attn_weights=False
    )
    output, scores = ours(*inputs, **call, return_attention_scores=True)
    close(output, expected, where=where)
    close(ops.swapaxes(scores, 1, 2), expected_scores.transpose(1, 2), where=where)
    close(ours(*inputs, **call), expected, where=where)  # on its own it may be another kernel


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("case", masks(TARGET))
def test_self_attention(bias, causal, case):
    theirs = randomize(torch.nn.MultiheadAttention(DIM, HEADS, bias=bias, batch_first=True))
    ours = MultiHeadSelfAttention(HEADS, use_bias=bias, causal=causal, name="layer")
    padding, mask = masks(TARGET)[case]
    their_mask = both(mask, causal_mask(TARGET) if causal else None)
    check(theirs, ours, [normal(BATCH, TARGET, DIM)], padding, mask, their_mask, causal)


@pytest.mark.parametrize("bias, width", [(True, DIM), (True, WIDTH), (False, WIDTH)])
@pytest.mark.parametrize("case", masks(SOURCE))
def test_cross_attention(bias, width, case):
    """`kdim` and `vdim` are the width of the context."""
    theirs = randomize(torch.nn.MultiheadAttention(DIM, HEADS, bias=bias, kdim=width, vdim=width, batch_first=True))
    ours = CrossAttention(HEADS, use_bias=bias, name="layer")
    padding, mask = masks(SOURCE)[case]
    inputs = [normal(BATCH, TARGET, DIM), normal(BATCH, SOURCE, width, seed=1)]
    check(theirs, ours, inputs, padding, mask, mask)
