"""MultiHeadSelfAttention and CrossAttention are Keras' own MultiHeadAttention and GroupQueryAttention."""

import keras
import numpy as np
import pytest
from parity.weights import close, holes, normal, to_numpy

from keras_txf.layers import CrossAttention, MultiHeadSelfAttention

pytestmark = pytest.mark.parity

BATCH, TARGET, SOURCE, DIM, WIDTH = 2, 5, 7, 12, 10

heads = pytest.mark.parametrize(
    "num_heads, head_dim, kv_heads", [(3, 4, None), (3, 5, None), (4, 3, 1), (4, 3, 2), (6, 5, 2), (6, 5, 1)]
)


def make_pair(our_class, num_heads, head_dim, kv_heads, their_options=(), **our_options):
    bias = head_dim != 5
    their_options = {"use_bias": bias, **dict(their_options)}
    if kv_heads is None:
        theirs = keras.layers.MultiHeadAttention(num_heads, head_dim, **their_options)
    else:
        theirs = keras.layers.GroupQueryAttention(head_dim, num_heads, kv_heads, **their_options)
    own_head_dim = None if num_heads * head_dim == DIM else head_dim
    return theirs, our_class(num_heads, own_head_dim, kv_heads, use_bias=bias, **our_options)


def copy_random_weights(theirs, ours):
    """Their heads and head dim are two axes of each projection."""
    arrays = {}
    for seed, variable in enumerate(theirs.weights):
        arrays["/".join(variable.path.split("/")[-2:])] = array = normal(*variable.shape, seed=seed) * 0.3
        variable.assign(array)
    for variable in ours.weights:
        name = "/".join(variable.path.split("/")[-2:]).replace("output/", "attention_output/")
        variable.assign(arrays.pop(name).reshape(variable.shape))
    assert not arrays


def check(theirs, ours, inputs, mask, padding, causal=False):
    """`inputs` are the query and, for cross-attention, the context."""
    theirs.build(inputs[0].shape, inputs[-1].shape)
    ours.build(*[x.shape for x in inputs])
    copy_random_weights(theirs, ours)
    expected, expected_scores = theirs(
        inputs[0], inputs[-1], value_mask=padding, attention_mask=mask, use_causal_mask=causal,
        return_attention_scores=True,
    )  # fmt: skip
    where = padding if causal else None  # at padding a causal token of ours sees itself
    call = {"mask" if len(inputs) == 1 else "context_mask": padding, "attention_mask": mask}
    output, scores = ours(*inputs, **call, return_attention_scores=True)
    close(output, expected, where=where)
    close(np.swapaxes(to_numpy(scores), 1, 2), np.swapaxes(to_numpy(expected_scores), 1, 2), where=where)
    close(ours(*inputs, **call), expected, where=where)


@heads
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_self_attention(num_heads, head_dim, kv_heads, causal, masked):
    theirs, ours = make_pair(MultiHeadSelfAttention, num_heads, head_dim, kv_heads, causal=causal)
    mask = holes(BATCH, TARGET, TARGET) if masked else None
    padding = holes(BATCH, TARGET, seed=1) if masked else None
    check(theirs, ours, [normal(BATCH, TARGET, DIM)], mask, padding, causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 3, TARGET])
@pytest.mark.parametrize("kv_heads", [None, 2])
def test_window(causal, window, kv_heads):
    theirs, ours = make_pair(
        MultiHeadSelfAttention, 4, 3, kv_heads, {"sliding_window": window}, causal=causal, window=window
    )
    padding = np.arange(TARGET) < np.array([[TARGET], [TARGET - 1]]) if window == 3 else None
    check(theirs, ours, [normal(BATCH, TARGET, DIM)], None, padding, causal)


@heads
@pytest.mark.parametrize("masked", [False, True])
def test_cross_attention(num_heads, head_dim, kv_heads, masked):
    theirs, ours = make_pair(CrossAttention, num_heads, head_dim, kv_heads)
    mask = holes(BATCH, TARGET, SOURCE) if masked else None
    padding = holes(BATCH, SOURCE, seed=1) if masked else None
    inputs = [normal(BATCH, TARGET, DIM), normal(BATCH, SOURCE, WIDTH, seed=1)]
    check(theirs, ours, inputs, mask, padding)
