"""Sampling filters equal transformers."""

import functools

import numpy as np
import pytest
import torch
from keras import ops
from parity.weights import normal, to_numpy
from transformers.generation import logits_process as theirs

from keras_txf.generation import Sampling
from keras_txf.ops.tensors import LOWEST

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


@pytest.mark.parametrize("case", FILTERS)
def test_filters(case):
    """Our logits count from the largest, theirs from 0; a softmax sees no difference."""
    logits = np.concatenate([normal(ROWS, VOCABULARY, seed=seed) * (1 + seed % 4) for seed in SEEDS])
    logits[::3, ::5] = -np.inf
    for options in FILTERS[case]:
        found = to_numpy(Sampling(**options).filtered(ops.convert_to_tensor(logits)))
        found = np.where(found > LOWEST, found, -np.inf)
        expected = to_numpy(their_filters(**options)(torch.from_numpy(logits)))
        expected = expected - expected.max(axis=-1, keepdims=True)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=2e-6, err_msg=str(options))
