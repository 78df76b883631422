"""Runs of tokens that see each other both ways, against masks that NumPy makes one pair at a time."""

import itertools

import drawing
import keras
import numpy as np
import pytest
from refusals import refused

import keras_txf as txf

B, T, D = 2, 9, 8
X = drawing.normal(B, T, D)
RUNS = np.array([[1, 1, 1, 0, 0, 1, 1, 1, 0], [0, 1, 1, 0, 1, 1, 0, 0, 1]], "bool")
NUMBERS = np.array([[1, 1, 1, 0, 0, 2, 2, 2, 0], [0, 1, 1, 0, 2, 2, 0, 0, 3]])
PADDING = np.arange(T) < np.array([[7], [T]])  # hides the end of a run in row 0
SEGMENTS = np.array([[1] * 6 + [2] * 3, [1] * 5 + [2] * 4], "int32")  # each row has a run in both segments


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("packed", [False, True])
def test_equals_an_explicit_mask(window, packed):
    expected = np.zeros((B, T, T), "bool")
    for b, t, s in itertools.product(range(B), range(T), range(T)):
        together = NUMBERS[b, t] == NUMBERS[b, s] > 0
        seen = together or (s <= t and (window is None or t - s < window))
        own = not packed or SEGMENTS[b, t] == SEGMENTS[b, s]
        expected[b, t, s] = seen and own and (PADDING[b, s] or s == t)
    causal = txf.layers.DecoderBlock(2, window=window, position="rotary")
    others = {"segment_ids": SEGMENTS} if packed else {}
    found = causal(X, mask=PADDING, bidirectional_mask=RUNS, **others)
    free = txf.layers.EncoderBlock(2, position="rotary")
    free(X)
    free.set_weights(causal.get_weights())
    np.testing.assert_allclose(drawing.array(found), drawing.array(free(X, attention_mask=expected)), atol=1e-5)
    assert drawing.difference(found, causal(X, mask=PADDING, **others)) > 1e-3


@pytest.mark.parametrize("window", [None, 3])
def test_a_prompt_reads_the_runs_and_a_step_within_a_run_is_nan(window, uncompiled):
    layer = txf.layers.MultiHeadSelfAttention(2, causal=True, window=window, position="rotary")
    real = np.arange(T) >= np.array([[0], [2]])  # padding on the left
    cache = txf.layers.Cache.of_prompt(real, length=T, window=window)
    found = drawing.array(layer(X, bidirectional_mask=RUNS, cache=cache))
    for row, start in enumerate((0, 2)):
        alone = layer(X[row : row + 1, start:], bidirectional_mask=RUNS[row : row + 1, start:])
        np.testing.assert_allclose(found[row, start:], drawing.array(alone)[0], atol=1e-5)
    decoder = txf.models.generative(_model())
    with pytest.raises(ValueError, match="more placeholders"):
        decoder.generate([[5, 7]], 3, processors=[txf.generation.ForcedTokens({1: 7})])


def _model():
    """A model in which the tokens 7 see each other both ways."""
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    x = txf.layers.PositionalEmbedding(11, D, pad_id=None)(ids)
    x = txf.layers.DecoderBlock(2)(x, bidirectional_mask=keras.ops.equal(ids, 7))
    return drawing.randomize(keras.Model(ids, keras.layers.Dense(11)(x)))


def test_bad_masks_raise_an_error():
    layer = txf.layers.MultiHeadSelfAttention(2, causal=True)
    refused(lambda: layer(X, bidirectional_mask=RUNS[:, :3]), ["`bidirectional_mask`", "(2, 3)"])
    refused(lambda: layer(X, bidirectional_mask=X[..., 0]), ["`bidirectional_mask`", "float32"])
    refused(lambda: txf.layers.EncoderBlock(2)(X, bidirectional_mask=RUNS), ["`bidirectional_mask`", "causal=False"])
