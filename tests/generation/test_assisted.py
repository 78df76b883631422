"""With an assistant, greedy answers equal the answers without one, and draws have the model's distribution."""

import drawing
import keras
import numpy as np
import pytest
from random_models import V, generating
from scipy import stats

import keras_txf as txf

PROMPTS = [[5, 3, 8], [7], [4, 4]]
BUILDERS = {
    "window": lambda: txf.models.decoder_generator(V, 1, 16, 2, position="rotary", window=2),
    "learned": lambda: txf.models.decoder_generator(V, 1, 16, 2, max_length=40),
    "states": lambda: txf.models.decoder_generator(V, 2, 16, 2, attention=[txf.layers.GatedDeltaNet(2, 8), None]),
}


def greedy_is_exact(model, assistant, inputs=None, **options):
    own = {"return_scores": True, "padded": False, "inputs": inputs, **options}
    expected = model.generate(PROMPTS, 9, **own)
    found = model.generate(PROMPTS, 9, assistant=assistant, **own)
    assert found.ids == expected.ids
    for one, other in zip(found.log_probs, expected.log_probs):
        np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.long
@pytest.mark.drawn(3)
@pytest.mark.parametrize(("name", "other"), [("window", "states"), ("states", "window"), ("learned", "learned")])
def test_greedy_answers_are_those_without_an_assistant(uncompiled, name, other):
    keras.utils.set_random_seed(1)
    model, assistant = BUILDERS[name](), BUILDERS[other]()
    penalty = [txf.generation.RepetitionPenalty(1.3)]
    greedy_is_exact(model, assistant, stop_ids=3, draft_tokens=3)
    greedy_is_exact(model, model, stop_ids=3, draft_tokens=2, processors=penalty)
    streamed = [*model.generate(PROMPTS, 9, assistant=assistant, stream=True)]
    np.testing.assert_array_equal(streamed, [*model.generate(PROMPTS, 9, stream=True)])


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() == "jax", reason="compiles each of the models for minutes")
@pytest.mark.filterwarnings("ignore")
def test_random_models_with_random_assistants(uncompiled, request):
    right = 0
    for seed, model, inputs in generating(12 * request.config.option.turn, 12, PROMPTS):
        greedy_is_exact(model, [BUILDERS["states"](), model][seed % 2], inputs, stop_ids=3)
        right += 1
    assert right >= 6


@pytest.mark.long
@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", ["window", "states"])
def test_draws_have_the_distribution_of_the_model(name):
    keras.utils.set_random_seed(3)
    model, assistant, sampler = BUILDERS[name](), BUILDERS["learned"](), txf.generation.Sampling(0.7, top_k=4)
    random = np.random.default_rng(0)
    for variable in [*model.variables, *assistant.variables]:
        if len(variable.shape) > 1:  # else all tokens are about as likely
            variable.assign(0.35 * random.normal(size=variable.shape))
    draws = model.generate([[5, 3]], 3, sampler, assistant=assistant, draft_tokens=2, num_return_sequences=4000, seed=1)
    seen, counts = np.unique(draws[0, :, 2:], axis=0, return_counts=True)
    chances = np.ones(len(seen))
    for place in range(3):
        ids = np.concatenate([np.tile([5, 3], (len(seen), 1)), seen[:, :place]], axis=1).astype("int32")
        logits = drawing.array(model(ids))[:, -1]
        logits[:, 0] = -np.inf  # padding is never chosen
        kept = logits >= np.sort(logits)[:, -4:-3]
        p = np.where(kept, np.exp((logits - logits.max(-1, keepdims=True)) / 0.7), 0)
        chances *= (p / p.sum(-1, keepdims=True))[np.arange(len(seen)), seen[:, place]]
    assert chances.sum() > 0.99 and len(seen) > 30
    often = chances * 4000 >= 5
    observed, expected = (
        np.append(counts[often], counts[~often].sum()),
        np.append(chances[often], chances[~often].sum()),
    )
    assert stats.chisquare(observed, expected / expected.sum() * observed.sum()).pvalue > 1e-4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "beam"}, '`assistant` needs the sampler "greedy" or "sampling"'),
        ({"draft_tokens": 0}, "`draft_tokens`"),
        ({"assistant": 3}, "`assistant` must be a functional keras.Model"),
        ({"assistant": "other vocabulary"}, "vocabulary of 23"),
        ({"assistant": "learned", "max_new_tokens": 60}, "`assistant` must have positions for 63 tokens"),
        ({"return_state": True}, "`return_state` does not go with `assistant`"),
    ],
)
def test_a_bad_assistant_raises_an_error(options, message):
    builders = {**BUILDERS, "other vocabulary": lambda: txf.models.decoder_generator(9, 1, 16, 2)}
    assistant = options.get("assistant", "window")
    assistant = builders[assistant]() if isinstance(assistant, str) else assistant
    with pytest.raises(ValueError, match=message):
        BUILDERS["window"]().generate(PROMPTS, **{**options, "assistant": assistant})
