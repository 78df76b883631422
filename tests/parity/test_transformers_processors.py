"""Sampling filters and logits processors are those of transformers."""

import functools

import numpy as np
import pytest
import torch
from keras import ops
from parity.weights import normal, to_numpy
from transformers.generation import logits_process as theirs

from keras_txf import generation as ours
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


def histories():
    """Logits, and tokens of one row: the prompt and the answer."""
    for seed in SEEDS:
        random = np.random.default_rng(seed)
        kinds = random.integers(2, VOCABULARY)  # few, so that they repeat
        prompt, answer = (random.integers(0, kinds, random.integers(least, 9)).tolist() for least in (1, 0))
        yield normal(1, VOCABULARY, seed=seed), prompt, answer


def assert_same(processor, their_processor, stops=(-3,)):
    """`their_processor` makes theirs from the length of the prompt. Ours sees padding on both sides."""
    changed = 0
    for logits, prompt, answer in histories():
        tokens = np.array([[-1] * (9 - len(prompt)) + prompt + answer + [-1] * (11 - len(answer))], "int32")
        history = ours.History(tokens, 9, np.int32(len(answer)), np.array(stops, "int32")[:, None])
        history = ours.History(*map(ops.convert_to_tensor, history))
        mine = to_numpy(processor(ops.convert_to_tensor(logits), history))
        expected = their_processor(len(prompt))(torch.tensor([prompt + answer]), torch.from_numpy(logits))
        np.testing.assert_allclose(mine, to_numpy(expected), rtol=1e-6, err_msg=f"{prompt} {answer}")
        changed += (mine != logits).any()
    assert changed


@pytest.mark.parametrize("penalty", [0.6, 1.3, 5.0])
def test_repetition_penalty(penalty):
    assert_same(ours.RepetitionPenalty(penalty), lambda _: theirs.RepetitionPenaltyLogitsProcessor(penalty))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_no_repeat_ngrams(size):
    assert_same(ours.NoRepeatNgrams(size), lambda _: theirs.NoRepeatNGramLogitsProcessor(size))


@pytest.mark.parametrize("length, stops", [(1, [3]), (4, [0, 12]), (9, [5, 1, 2])])
def test_minimum_length(length, stops):
    def make(prompt_length):
        return theirs.MinNewTokensLengthLogitsProcessor(prompt_length, length, stops)

    assert_same(ours.MinimumLength(length), make, [*stops, -3])


@pytest.mark.parametrize("ids", [[[3]], [[0], [11], [4]], [[1, 0], [0, 1], [1, 1, 1], [7]], [[0, 1, 0, 0], [2, 2]]])
def test_forbidden_tokens(ids):
    assert_same(ours.ForbiddenTokens(ids), lambda _: theirs.NoBadWordsLogitsProcessor(ids))


def test_forced_tokens():
    """Theirs forces the token after the first, which is all that their decoders' prompts hold."""
    for count in (0, 1):
        tokens = np.array([[2, 5, -1]], "int32")[:, : 2 + count]
        tokens[:, 1 + count :] = -1
        logits = normal(1, VOCABULARY)
        history = ours.History(tokens, 1, np.int32(count), np.array([[-3]], "int32"))
        mine = ours.ForcedTokens({0: 7})(ops.convert_to_tensor(logits), history)
        so_far = torch.from_numpy(tokens[:, : 1 + count])
        expected = theirs.ForcedBOSTokenLogitsProcessor(7)(so_far, torch.from_numpy(logits))
        np.testing.assert_array_equal(to_numpy(mine), to_numpy(expected))
