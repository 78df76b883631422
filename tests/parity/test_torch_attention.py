"""MultiHeadSelfAttention and CrossAttention are torch.nn.MultiheadAttention, output and weights."""

import numpy as np
import pytest
import torch
from parity.weights import (
    attention_table,
    both,
    causal_mask,
    close,
    copy_weights,
    hide,
    holes,
    normal,
    randomize,
    state_of,
    to_numpy,
)

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
    copy_weights(state_of(theirs), ours.weights, TABLE)
    query, context = map(torch.from_numpy, (inputs[0], inputs[-1]))
    if their_mask is not None and their_mask.ndim == 4:
        their_mask = np.broadcast_to(their_mask, (BATCH, HEADS, *their_mask.shape[2:]))
    expected, expected_scores = theirs(
        query, context, context, key_padding_mask=hide(padding), attn_mask=hide(their_mask), average_attn_weights=False
    )
    output, scores = ours(*inputs, **call, return_attention_scores=True)
    close(output, expected, where=where)
    close(np.swapaxes(to_numpy(scores), 1, 2), np.swapaxes(to_numpy(expected_scores), 1, 2), where=where)
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


@pytest.mark.parametrize("case", ["mask", "mask and padding", "context"])
def test_queries_without_a_key_get_zeros_before_the_output_projection(case):
    """As with PyTorch's kernel, which its attention uses where no weights are asked for."""
    theirs = randomize(torch.nn.MultiheadAttention(DIM, HEADS, batch_first=True))
    ours = CrossAttention(HEADS, name="layer") if case == "context" else MultiHeadSelfAttention(HEADS, name="layer")
    inputs = [normal(BATCH, TARGET, DIM), normal(BATCH, SOURCE, DIM, seed=1)][: 2 if case == "context" else 1]
    ours.build(*[x.shape for x in inputs])
    copy_weights(state_of(theirs), ours.weights, TABLE)
    length = inputs[-1].shape[1]
    mask = None if case == "context" else holes(TARGET, length)
    padding = None if case == "mask" else holes(BATCH, length)
    empty = np.zeros((BATCH, TARGET), bool)
    if case == "mask":
        mask[3] = False
        empty[:, 3] = True
    else:
        padding[1] = False
        empty[1] = True
    query, context = map(torch.from_numpy, (inputs[0], inputs[-1]))
    expected, _ = theirs(
        query, context, context, key_padding_mask=hide(padding), attn_mask=hide(mask), need_weights=False
    )
    call = {"context_mask" if case == "context" else "mask": padding, "attention_mask": mask}
    output, scores = ours(*inputs, **call, return_attention_scores=True)
    close(output, expected)
    close(ours(*inputs, **call), expected)
    assert not to_numpy(scores).swapaxes(1, 2)[empty].any()
