"""With a state a call reads only new tokens, and the answers equal those of a call with all tokens."""

import keras
import numpy as np
import pytest
from random_models import V, generating

import keras_txf as txf

PROMPTS = [[5, 3, 8], [7], [4, 4]]
TURNS = [[[9, 2, 6, 1], [], [3]], [[8], [9, 5], []]]


def chat(model, inputs=None, **options):
    """The tokens and log-probabilities of three turns, with a state and with all tokens read again."""
    found, texts, state = [], [[] for _ in PROMPTS], None
    for turn in (PROMPTS, *TURNS):
        own = {"return_scores": True, "padded": False, **options}
        result = model.generate(
            turn, 6, inputs=inputs if state is None else None, state=state, return_state=True, **own
        )
        texts = [text + new for text, new in zip(texts, turn)]
        whole = model.generate(texts, 6, inputs=inputs, **own)
        answers = [ids[len(new) :] for ids, new in zip(result.ids, turn)]
        assert [text + answer for text, answer in zip(texts, answers)] == whole.ids == result.state.ids
        found += [np.abs(np.subtract(a, b)).max() for a, b in zip(result.scored.log_probs, whole.log_probs)]
        texts, state = whole.ids, result.state
    return max(found)


def generator(**options):
    keras.utils.set_random_seed(1)
    return txf.models.decoder_generator(V, num_layers=2, dim=16, num_heads=2, **options)


@pytest.mark.long
@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("options", "of_call"),
    [
        ({"position": "rotary"}, {"stop_ids": 3, "processors": [txf.generation.RepetitionPenalty(1.5)]}),
        ({"position": "rotary", "window": 3}, {"stop_ids": 3}),
        ({"attention": [txf.layers.GatedDeltaNet(2, 8), None]}, {"stop_ids": 3}),
    ],
    ids=["processors", "window", "states"],
)
def test_turns_are_those_of_all_tokens(options, of_call):
    assert chat(generator(max_length=80, **options), **of_call) < 1e-5


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() == "jax", reason="compiles each of the models for minutes")
@pytest.mark.filterwarnings("ignore")
def test_random_models_go_on_from_a_state(uncompiled, request):
    right = 0
    for seed, model, inputs in generating(12 * request.config.option.turn, 12, PROMPTS):
        found = chat(model, inputs, stop_ids=3)
        assert found < 1e-4, seed
        right += 1
    assert right >= 6


@pytest.mark.long
@pytest.mark.drawn(2)
@pytest.mark.parametrize("options", [{"window": 3}, {"attention": [txf.layers.GatedDeltaNet(2, 8), None]}])
def test_streams_and_texts_that_are_read_alone_have_a_state(options):
    model = generator(position="rotary", **options)
    whole = model.generate(PROMPTS, 5, stop_ids=3, return_state=True, padded=False)
    stream = model.generate(PROMPTS, 5, stop_ids=3, stream=True, return_state=True)
    assert stream.state is None
    columns = np.stack(list(stream), axis=1)
    assert [[*prompt, *row[row >= 0]] for prompt, row in zip(PROMPTS, columns)] == whole.ids == stream.state.ids
    read = model.generate([prompt[:2] for prompt in PROMPTS], 0, return_state=True, padded=False, return_scores=True)
    assert read.ids == read.state.ids == [prompt[:2] for prompt in PROMPTS] and not read.scored.scores.any()
    answers = model.generate([prompt[2:] for prompt in PROMPTS], 5, stop_ids=3, state=read.state, return_state=True)
    assert answers.state.ids == whole.ids
    turn, options = [[9, 2], [], [3]], {"return_scores": True, "padded": False}
    texts = [ids + new for ids, new in zip(whole.ids, turn)]
    expected = model.generate(texts, 4, **options)
    for state in (whole.state, stream.state, answers.state):
        found = model.generate(turn, 4, state=state, **options)
        assert [ids[len(new) :] for ids, new in zip(found.ids, turn)] == [
            ids[len(text) :] for ids, text in zip(expected.ids, texts)
        ]
        np.testing.assert_allclose(np.concatenate(found.log_probs), np.concatenate(expected.log_probs), atol=1e-5)
    draws = txf.generation.Sampling()
    once, twice = (
        model.generate(PROMPTS, 0, draws, num_return_sequences=number, return_state=True).state for number in (1, 2)
    )
    again = [row for row in model.generate([[]] * 3, 4, state=once, padded=False) for _ in range(2)]
    assert model.generate([[]] * 6, 4, state=twice, padded=False) == again


def test_generated_padding_stays_a_token():
    """The answer continues as in one call, also for a recurrence, which has read the padding token."""
    model = generator(position="rotary", attention=[txf.layers.GatedDeltaNet(2, 8), None])
    forced = txf.generation.ForcedTokens
    whole = model.generate(PROMPTS, 5, processors=[forced({0: 4, 1: 0, 2: 9})], return_scores=True)
    first = model.generate(PROMPTS, 2, processors=[forced({0: 4, 1: 0})], return_state=True)
    found = model.generate([[9]] * 3, 2, state=first.state, return_scores=True)
    np.testing.assert_allclose(found.log_probs, whole.log_probs[:, 3:], atol=1e-5)


def test_a_state_draws_as_all_tokens_do():
    model, draws = generator(), txf.generation.Sampling(temperature=2.0)
    first = model.generate(PROMPTS, 4, draws, seed=1, num_return_sequences=2, return_state=True, padded=False)
    texts = [text for each in first.ids for text in each]
    found = model.generate([[2]] * 6, 5, draws, seed=3, state=first.state, padded=False)
    whole = model.generate([text + [2] for text in texts], 5, draws, seed=3, padded=False)
    assert [text + own for text, own in zip(texts, found)] == whole


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "beam", "return_state": True}, "chooses token by token"),
        ({"max_new_tokens": 0}, "`max_new_tokens` must be a positive integer.*received 0"),
        ({"max_new_tokens": 0, "stream": True, "return_state": True}, "`max_new_tokens` must be a positive integer"),
        ({"state": 3}, r"`state` must be the state that `generate\(..., return_state=True\)` returns; received 3"),
        ({"state": "other"}, "come from the same model"),
        ({"state": "own", "prompts": [[5]] * 4}, "one row for each of the 4 prompts"),
        ({"state": "own", "inputs": {}}, "`inputs` does not go with `state`"),
        ({"state": "own", "max_new_tokens": 80}, "max_length=40"),
    ],
)
def test_options_that_do_not_go_with_a_state_raise_errors(options, message):
    model, other = generator(max_length=40), generator(max_length=40)
    states = {
        name: each.generate(PROMPTS, 2, return_state=True).state for name, each in (("own", model), ("other", other))
    }
    options = {**options, "state": states.get(options.get("state"), options.get("state"))}
    with pytest.raises(ValueError, match=message):
        model.generate(options.pop("prompts", PROMPTS), **options)
