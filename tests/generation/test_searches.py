"""Beam search and contrastive search against slow searches that run the whole prefix, one sequence at a time."""

import functools
import itertools

import drawing
import keras
import numpy as np
import pytest
from generation.test_generate import FEWER, KINDS, OPTIONS, PROMPTS, VOCABULARY, enliven, log_probs_after, make, naive
from keras import ops

import keras_txf as txf
from keras_txf.generation import Beam, Contrastive, Sampling

TINY = 4


def elsewhere(value):
    return pytest.param(value, marks=drawing.not_on_jax)


def slow_beams(model, prompt, new, num_beams, penalty=1.0, early_stopping=False, stop_ids=(), start_id=1):
    """The best that ended, as pairs of score and tokens."""
    running, ended = [(0.0, [])], []
    for length in range(1, new + 1):
        log_probs = log_probs_after(model, prompt, [tokens for _, tokens in running], start_id, padding=True)
        candidates = [
            (total + log_prob, [*tokens, token])
            for (total, tokens), row in zip(running, log_probs, strict=True)
            for token, log_prob in enumerate(row)
        ]
        candidates.sort(reverse=True)

        def ends(candidate):
            return length == new or candidate[1][-1] in stop_ids

        ended += [(total / length**penalty, tokens) for total, tokens in filter(ends, candidates[:num_beams])]
        ended = sorted(ended, reverse=True)[:num_beams]
        running = [candidate for candidate in candidates if not ends(candidate)][:num_beams]
        if not running:
            break
        best_length = new if early_stopping == "never" and penalty > 0 else length
        hopeless = running[0][0] / best_length**penalty <= ended[-1][0] if ended else False
        if len(ended) == num_beams and (early_stopping is True or num_beams == 1 or hopeless):
            break
    return ended


def all_beams(model, prompts, new, beam, stop_ids=None, **options):
    """What a search finds, all of its beams."""
    options |= dict(num_return_sequences=beam.num_beams, padded=False, return_scores=True)
    return model.generate(prompts, new, beam, stop_ids, **options)


def assert_beams(model, prompts, new, num_beams, penalty=1.0, early_stopping=False, stop_ids=None):
    result = all_beams(model, prompts, new, Beam(num_beams, penalty, early_stopping), stop_ids)
    for row, prompt in enumerate(prompts):
        expected = slow_beams(model, prompt, new, num_beams, penalty, early_stopping, stop_ids or ())
        skip = 0 if isinstance(model.input, dict) else len(prompt)
        assert [ids[skip:] for ids in result.ids[row]] == [tokens for _, tokens in expected]
        np.testing.assert_allclose(result.scores[row], [score for score, _ in expected], rtol=2e-5, atol=2e-5)
        for ids, log_probs, score in zip(result.ids[row], result.log_probs[row], result.scores[row], strict=True):
            assert len(log_probs) == len(ids) - skip
            np.testing.assert_allclose(sum(log_probs) / len(log_probs) ** penalty, score, rtol=2e-5, atol=2e-5)


def unpadded(kind, name):
    """Token 0 is padding with its own rules: these models have no padding."""
    return make(kind, name, pad_id=None)


OFTEN = [("decoder_generator", "llama"), ("encoder_decoder", "alibi and window")]
SELDOM = [(kind, name) for kind in KINDS for name in OPTIONS if (kind, name) not in OFTEN]


@pytest.mark.parametrize("kind, name", [*OFTEN, *(pytest.param(*case, marks=pytest.mark.slow) for case in SELDOM)])
def test_beams_equal_a_slow_search(kind, name):
    prompts = [[5, 3, 8], [7, 2, 2], [4, 10, 6]] if kind == "encoder_decoder" else PROMPTS
    assert_beams(unpadded(kind, name), prompts, 4, 3, stop_ids=[2, 9])


@pytest.mark.slow
@pytest.mark.parametrize("position", ["rotary", elsewhere("alibi"), elsewhere("relative")])
@pytest.mark.parametrize("kind", FEWER)
def test_a_start_that_is_padding(kind, position):
    """No token of the prompt is seen. With these weights no beam continues the likeliest first token."""
    model = make(kind, num_layers=2, position=position, return_hidden_states=True)
    arguments, prompt = ({}, [0]) if kind == "decoder_generator" else ({"source_ids": [[5, 3, 8]]}, [5, 3, 8])
    arguments |= dict(max_new_tokens=5, stop_ids=[0], start_id=0, padded=False)
    skip = 1 if kind == "decoder_generator" else 0
    for seed in (0, 5, 16):
        enliven(model, seed)
        for layer in model.layers:
            if isinstance(layer, txf.layers.PositionalEmbedding):
                layer.token.embeddings.assign(0.3 * layer.token.embeddings)  # that the tokens are about as likely
        result = model.generate(**arguments, sampler=Beam(3), num_return_sequences=3, return_scores=True)
        expected = slow_beams(model, prompt, 5, 3, stop_ids=[0], start_id=0)
        assert [ids[skip:] for ids in result.ids[0]] == [tokens for _, tokens in expected]
        np.testing.assert_allclose(result.scores[0], [score for score, _ in expected], rtol=2e-5, atol=2e-5)
        if kind == "decoder_generator":
            wanted = slow_contrastive(model, prompt, 5, 3, 0.6)
            end = next((i + 1 for i, token in enumerate(wanted) if i and token == 0), len(wanted))
            assert model.generate(**arguments, sampler=Contrastive(3, 0.6)) == [wanted[:end]]


@drawing.not_on_jax
@pytest.mark.parametrize("dead_end", [[], [(5, 4), (4, 7)]], ids=["ended", "forbidden"])
def test_a_beam_that_cannot_go_on_spoils_no_other(dead_end):
    """The answers are [1, 3] and [2, 0, 3]; 3 is the end. Nothing may follow [4, 7]."""
    after = np.full((VOCABULARY, VOCABULARY), -np.inf, "float32")
    for last, token in ((5, 1), (1, 3), (5, 2), (2, 0), (0, 3), *dead_end):
        after[last, token] = 0.0

    def follow(logits, history):
        column = ops.expand_dims(history.prompt_length + history.count - 1, 0)
        return logits + ops.take(ops.convert_to_tensor(after), ops.take(history.tokens, column, axis=1)[:, 0], axis=0)

    beams = 3 if dead_end else 2
    result = all_beams(unpadded("decoder_generator", "llama"), [[5]], 6, Beam(beams), 3, processors=[follow])
    found = [ids for ids, score in zip(result.ids[0], result.scores[0]) if np.isfinite(score)]
    assert sorted(found) == [[5, 1, 3], [5, 2, 0, 3]]


STOPS = ([0], [1, 4, 6, 10])
PENALTIES = itertools.product(enumerate((1.0, 0.0, 2.5, -1.0)), enumerate((False, True, "never")))


@pytest.mark.drawn(6)
@pytest.mark.parametrize("penalty, early_stopping, stop_ids", [
    (1.0, False, None),  # all end together, whatever the penalty
    *((penalty, early, STOPS[(i + j) % 2]) for (i, penalty), (j, early) in PENALTIES),  # each two of the three are met
])  # fmt: skip
def test_length_penalty_and_early_stopping(penalty, early_stopping, stop_ids):
    assert_beams(unpadded("decoder_generator", "llama"), PROMPTS, 5, 2, penalty, early_stopping, stop_ids)


@functools.cache
def tiny():
    return enliven(txf.models.decoder_generator(TINY, 1, 8, 2, pad_id=None), seed=7)


@functools.cache
def follows(prompt, tokens):
    return log_probs_after(tiny(), prompt, [tokens])[0]


def totals(prompt, new, stop):
    """The log-probability of every sequence that there is."""
    every = itertools.product(range(TINY), repeat=new)
    every = {tokens[: tokens.index(stop) + 1] if stop in tokens else tokens for tokens in every}
    return {tokens: sum(follows(prompt, tokens[:i])[token] for i, token in enumerate(tokens)) for tokens in every}


@pytest.mark.drawn(3)
@pytest.mark.parametrize("penalty", [1.0, 0.0, 3.0])
def test_beams_equal_brute_force(penalty):
    """With a beam for each sequence there is, the result is all of them, best first."""
    new, stop, prompt = 3, 2, (1, 3)
    every = totals(prompt, new, stop)
    scored = sorted(((total / len(tokens) ** penalty, list(tokens)) for tokens, total in every.items()), reverse=True)
    result = all_beams(tiny(), [prompt], new, Beam(len(every), penalty, "never"), stop)
    assert [ids[2:] for ids in result.ids[0]] == [tokens for _, tokens in scored]
    np.testing.assert_allclose(result.scores[0], [score for score, _ in scored], rtol=1e-5, atol=1e-5)
    assert {len(tokens) for _, tokens in scored} == {1, 2, 3}  # they end at different times


def test_more_beams_than_sequences_leave_some_empty():
    result = all_beams(tiny(), [[1]], 1, Beam(6))
    assert sorted(len(ids) for ids in result.ids[0]) == [1, 1, 2, 2, 2, 2]
    assert np.isinf(result.scores[0, 4:]).all() and np.isfinite(result.scores[0, :4]).all()


@pytest.mark.long
@pytest.mark.drawn(3)
@pytest.mark.parametrize("kind", FEWER)
def test_searches_that_are_greedy(kind):
    model = make(kind, "llama")
    greedy = model.generate(PROMPTS, 4, stop_ids=[3, 6], return_scores=True)
    searches = [Beam(1), Contrastive(1, 0.7)]
    if keras.backend.backend() != "jax":  # which compiles each
        searches += [Beam(1, 2.0, "never"), Contrastive(3, 0.0)]
    for search in searches:
        result = model.generate(PROMPTS, 4, search, [3, 6], return_scores=True)
        np.testing.assert_array_equal(result.ids, greedy.ids)
        np.testing.assert_allclose(result.log_probs, greedy.log_probs, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("search", [Beam(3), Contrastive(3, 0.5), Sampling(1.5, top_p=0.9)], ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_compiled_searches_are_the_same(kind, search, request):
    model, arguments = make(kind, "alibi and window"), dict(stop_ids=[3, 6], seed=3, padded=False, return_scores=True)
    expected = model.generate(PROMPTS, 5, search, **arguments)
    request.getfixturevalue("compiled")
    result = model.generate(PROMPTS, 5, search, **arguments)
    assert result.ids == expected.ids
    np.testing.assert_allclose(result.scores, expected.scores, rtol=1e-5, atol=1e-5)


def slow_contrastive(model, prompt, new, width, penalty):
    """`model` returns hidden states."""
    last = max((name for name in model.output if "hidden_states" in name), key=lambda name: int(name.split("_")[-1]))
    ids = list(prompt)
    for _ in range(new):
        log_probs = log_probs_after(model, ids, [[]], padding=True)[0]
        candidates = np.argsort(-log_probs)[:width]
        hidden = drawing.array(model(np.array([[*ids, token] for token in candidates], "int32"))[last])
        hidden = hidden / np.linalg.norm(hidden, axis=-1, keepdims=True)
        likeness = np.einsum("wd,wtd->wt", hidden[:, -1], hidden[:, :-1]).max(axis=1)
        scores = (1 - penalty) * np.exp(log_probs[candidates]) - penalty * likeness
        ids.append(int(candidates[scores.argmax()]))
    return ids


@pytest.mark.long
@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", ["llama", "gemma", "alibi and window"])
def test_contrastive_search_equals_a_slow_one(name):
    model = make("decoder_generator", name, pad_id=None, return_hidden_states=True)
    for width, penalty in ((3, 0.4), (VOCABULARY, 0.9)):
        result = model.generate(PROMPTS[:2], 3, Contrastive(width, penalty), padded=False)
        assert result == [slow_contrastive(model, prompt, 3, width, penalty) for prompt in PROMPTS[:2]]
    greedy = [prompt + naive(model, prompt, 3) for prompt in PROMPTS[:2]]
    assert result != greedy
