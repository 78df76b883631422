"""Sampling filters are those of transformers."""

import functools

import numpy as np
import pytest
import torch
from keras import ops
from parity.weights import normal, to_numpy
from transformers.generation import logits_process as theirs

from keras_txf.generation import Sampling

pytestmark = pytest.mark.parity

SEEDS, ROWS, VOCABULARY = range(40), 6, 13

FILTERS = {
    "temperature": [dict(temperature=0.3), dict(temperature=2.5)],
    "top_k": [dict(top_k=k) for k in (1, 4, VOCABULARY, 50)],
    "top_p": [dict(top_p=p) for p in (1e-6, 0.2, 0.75, 0.99)],
    "min_p": [dict(min_p=p) for p in (0.0, 0.05, 0.3, 1.0)],
    "pairs": [dict(top_k=5, top_p=0.6), dict(top_k=7, min_p=0.2), dict(top_p=0.8, min_p=0.3)],
    "all": [dict(temperature=0.8, top_k=8, top_p=0.9, min_p=0.1), dict(temperature=3.0, top_k=6, top_p=0.7, min_p=0.8)],
}


def their_filters(temperature=1.0, top_k=None, top_p=None, min_p=None):
    """In the order in which their `generate` puts them."""
    made = [theirs.TemperatureLogitsWarper(temperature)]
    made += [] if top_k is None else [theirs.TopKLogitsWarper(top_k)]
    made += [] if top_p is None else [theirs.TopPLogitsWarper(top_p)]
    made += [] if min_p is None else [theirs.MinPLogitsWarper(min_p)]
    return lambda scores: functools.reduce(lambda scores, one: one(None, scores), made, scores)


def both(options, logits):
    """Subtracts the largest of their logits: ours count from it, theirs from 0; a softmax sees no difference."""
    ours = to_numpy(Sampling(**options).filtered(ops.convert_to_tensor(logits)))
    theirs = to_numpy(their_filters(**options)(torch.from_numpy(logits)))
    return ours, theirs - theirs.max(axis=-1, keepdims=True)


@pytest.mark.parametrize("case", FILTERS)
def test_filters(case):
    logits = np.concatenate([normal(ROWS, VOCABULARY, seed=seed) * (1 + seed % 4) for seed in SEEDS])
    logits[::3, ::5] = -np.inf
    for options in FILTERS[case]:
        mine, expected = both(options, logits)
        np.testing.assert_allclose(mine, expected, rtol=1e-6, atol=2e-6, err_msg=str(options))


@pytest.mark.parametrize("case", FILTERS)
def test_filters_among_equals(case):
    """As many tokens are kept, with the same logits; which of the equals, their sort leaves open."""
    logits = np.concatenate([np.round(normal(ROWS, VOCABULARY, seed=seed)) for seed in SEEDS])
    for options in FILTERS[case]:
        mine, expected = both(options, logits)
        np.testing.assert_allclose(np.sort(mine), np.sort(expected), rtol=1e-6, atol=2e-6, err_msg=str(options))


def test_filters_of_a_large_vocabulary():
    logits = 3 * normal(2, 50_000)
    for options in (dict(top_k=50), dict(top_p=0.9), dict(min_p=0.01), dict(top_k=2000, top_p=0.95)):
        mine, expected = both(options, logits)
        np.testing.assert_allclose(mine, expected, rtol=1e-6, atol=2e-6, err_msg=str(options))
