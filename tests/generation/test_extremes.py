"""Options and logits at the ends of float32: the choice equals that of float64, and no score is NaN."""

import itertools

import drawing
import keras
import numpy as np
import pytest
from generation.test_samplers import reference
from keras import ops
from refusals import built, generate, refused

import keras_txf as txf
from keras_txf.generation.logits import log_probabilities

generation = txf.generation
LARGEST, TINY = 3.4e38, 1.2e-38
VOCABULARY = 11
PROMPTS = [[1, 2, 3], [4]]
HISTORY = generation.History(np.array([[0, 1, 1, 3, 3, 3], [5, 5, 2, 2, 2, 4]]), 1, 5, np.array([[7]]))


def rows(seed):
    """Logits of every size, and forbidden ones."""
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(2, VOCABULARY)) * 10.0 ** generator.integers(-38, 30, (2, VOCABULARY))
    logits = np.where(np.abs(logits) < TINY, TINY, logits)  # smaller ones a processor may take for zeros
    logits[generator.random((2, VOCABULARY)) < 0.2] = -np.inf
    logits[:, 0] = np.where(np.isfinite(logits).any(axis=1), logits[:, 0], 1.0)
    return logits.astype("float32").astype("float64")


def counts(first):
    return (HISTORY.tokens[:, first:, None] == np.arange(VOCABULARY)).sum(1)


def repetition(logits, penalty):
    return np.where(counts(0) > 0, np.where(logits > 0, logits / penalty, logits * penalty), logits)


ORACLES = {
    generation.RepetitionPenalty: repetition,
    generation.PresencePenalty: lambda logits, penalty: logits - penalty * (counts(1) > 0),
    generation.FrequencyPenalty: lambda logits, penalty: logits - penalty * counts(1),
}
SIZES = (TINY, 1e-3, 1.0, 1e30)
CASES = [(cls, sign * size) for cls in list(ORACLES)[1:] for size in (*SIZES, LARGEST) for sign in (1, -1)]
# JAX divides by a number beyond 1e37 as if it were infinite: it multiplies by the reciprocal.
CASES += [(generation.RepetitionPenalty, size) for size in (*SIZES, 1e37)]


@pytest.mark.drawn(3)
@pytest.mark.parametrize("cls, penalty", CASES)
def test_penalties_are_those_of_float64_within_bounds(cls, penalty):
    for seed in range(10):
        logits = rows(seed)
        expected = np.where(np.isneginf(logits), -np.inf, np.clip(ORACLES[cls](logits, penalty), -1e30, 1e30))
        found = drawing.array(cls(penalty)(ops.convert_to_tensor(logits, "float32"), HISTORY))
        # Below 1 over the largest number a processor may have zeros: JAX multiplies by the reciprocal.
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-30 + 1e-6 * (penalty < 1e3) * np.abs(penalty))


FILTERS = [
    options
    for options in itertools.product((TINY, 1.0, 1e37), (None, 1, 10**30), (None, 1e-38, 1.0), (None, 0.0, 1.0))
    if sum(option is not None for option in options[1:]) < 2
]


@pytest.mark.drawn(4)
@pytest.mark.parametrize("temperature, top_k, top_p, min_p", FILTERS)
def test_distributions_are_those_of_float64(temperature, top_k, top_p, min_p):
    sampler = generation.Sampling(temperature, top_k, top_p, min_p)
    for seed in range(10):
        logits = rows(seed)
        found = drawing.array(sampler.filtered(ops.convert_to_tensor(logits, "float32")))
        for row, own in zip(logits, found.astype("float64"), strict=True):
            weights = np.exp(own - own.max())
            # Numbers below the smallest normal number may be zeros, which are all equal.
            scale = np.float32(temperature).astype("float64")
            expected = [reference(row, scale, top_k, top_p, min_p, smallest) for smallest in (0, TINY)]
            assert min(np.abs(weights / weights.sum() - one).max() for one in expected) < 2e-6


def test_log_probabilities_are_those_of_float64():
    for seed in range(20):
        logits = rows(seed)
        logits[1] = -np.inf
        shifted = logits[0] - logits[0].max()
        found = drawing.array(log_probabilities(ops.convert_to_tensor(logits, "float32")))
        np.testing.assert_allclose(found[0], shifted - np.log(np.exp(shifted).sum()), rtol=1e-5, atol=1e-6)
        assert np.isneginf(found[1]).all()


class Added:
    """A processor that adds a row of numbers."""

    def __init__(self, *numbers):
        self.numbers = np.resize(numbers, VOCABULARY).astype("float32")

    def __call__(self, logits, history):
        return logits + ops.convert_to_tensor(self.numbers)


EXTREME = {
    "invited": [generation.FrequencyPenalty(-3e38), generation.PresencePenalty(-3e38)],
    "penalized": [generation.FrequencyPenalty(3e38), generation.PresencePenalty(3e38),
                  generation.RepetitionPenalty(3e38)],
    "repeated": [generation.RepetitionPenalty(TINY)],
    "large": [Added(3e38, -3e38), Added(3e38, -3e38)],
    "infinite": [Added(np.inf, 0, -np.inf)],
    "nothing": [Added(-np.inf)],
    "no end": [generation.MinimumLength(3)],
    "forced and forbidden": [generation.ForcedTokens({0: 3, 1: 4}), generation.ForbiddenTokens([3, 4])],
    "all at once": [generation.NoRepeatNgrams(1), generation.MinimumLength(4), generation.ForcedTokens({1: 4}),
                    generation.FrequencyPenalty(-3e38), generation.RepetitionPenalty(3e38),
                    generation.ForbiddenTokens([3, [4, 4]])],
}  # fmt: skip
SAMPLERS = [generation.Sampling(TINY), generation.Sampling(3e38, top_p=1e-38), generation.Beam(2),
            generation.Contrastive(2, 1.0)]  # fmt: skip
# All processors with one sampler, and all samplers with two lists.
PAIRS = [*itertools.product(["greedy"], EXTREME), *itertools.product(SAMPLERS, ("invited", "nothing"))]


@drawing.not_on_jax
@pytest.mark.drawn(6)
@pytest.mark.parametrize("sampler, name", PAIRS, ids=str)
def test_no_score_is_nan(sampler, name):
    stops = list(range(VOCABULARY)) if name == "no end" else None
    found = built("decoder_generator").generate(
        PROMPTS, 4, sampler, stops, seed=1, processors=EXTREME[name], return_scores=True, padded=False
    )
    assert not np.isnan(found.scores).any() and not (found.scores == np.inf).any()
    assert not any(np.isnan(row).any() for row in found.log_probs)
    if name in ("invited", "penalized", "repeated", "large", "infinite"):
        assert all(len(row) == len(prompt) + 4 for row, prompt in zip(found.ids, PROMPTS, strict=True))


@pytest.mark.long
@pytest.mark.drawn(4)
@pytest.mark.parametrize("penalty", [-1e30, -10, 10, 1e30])
@pytest.mark.parametrize("early_stopping", [False, "never"])
def test_beams_of_an_extreme_length_penalty_return_tokens(penalty, early_stopping):
    sampler = generation.Beam(3, penalty, early_stopping)
    found = built("decoder_generator").generate(PROMPTS, 20, sampler, 3, return_scores=True, padded=False)
    assert np.isfinite(found.scores).all()
    for row, prompt, log_probs, score in zip(found.ids, PROMPTS, found.log_probs, found.scores, strict=True):
        length = len(row) - len(prompt)
        assert length > 0
        if abs(penalty) == 10:
            np.testing.assert_allclose(score, np.sum(log_probs, dtype="float64") / float(length) ** penalty, rtol=1e-4)


def test_forbidding_the_whole_vocabulary_raises_an_error():
    halves = [generation.ForbiddenTokens(range(6)), generation.ForbiddenTokens(range(5, VOCABULARY))]
    for processors in (halves, [generation.ForbiddenTokens(range(VOCABULARY))]):
        refused(lambda: generate(PROMPTS, processors=processors), ["`ids`", "ForbiddenTokens", "11"])


@pytest.mark.parametrize("arguments, words", [
    (dict(sampler=lambda logits, seed: None), ["`sampler`", "integers", "None"]),
    (dict(sampler=lambda logits, seed: ops.max(logits, axis=-1)), ["`sampler`", "integers"]),
    (dict(sampler=lambda logits, seed: ops.argmax(logits)), ["`sampler`", "(rows,)"]),
    (dict(sampler=lambda logits, seed: ops.argmax(logits, axis=-1)[:1]), ["`sampler`"]),
    (dict(processors=[lambda logits, history: None]), ["`processors`", "None"]),
    (dict(processors=[lambda logits, history: logits[:, :3]]), ["`processors`", "11"]),
    (dict(stop_ids=[[1], [2, 3]]), ["`stop_ids`"]),
    (dict(max_new_tokens=10**30), ["`max_new_tokens`", "2**31"]),
    (dict(sampler=generation.Beam(10**30)), ["`num_beams`", "2**31"]),
])  # fmt: skip
def test_bad_arguments_raise_errors(arguments, words):
    refused(lambda: generate([[1, 2], [3]], **arguments), words)


def test_a_model_without_a_graph_raises_an_error():
    class Own(keras.Model):
        pass

    for build in (txf.models.prefill_model, txf.models.step_model):
        for model in (3, None, "model", {}, object(), Own(), keras.Sequential([keras.layers.Dense(2)])):
            refused(lambda: build(model), ["`model`", "decoder_generator", "received"])
    refused(lambda: txf.models.step_model(built("decoder_generator"), width=10**30), ["`width`", "2**31"])


@pytest.mark.parametrize("sampler", ["greedy", generation.Beam(2)], ids=str)
def test_a_weight_that_is_not_finite_is_refused_by_its_path(sampler):
    model = txf.models.decoder_generator(VOCABULARY, 1, 8, 2)
    kernel = next(weight for weight in model.weights if weight.path.endswith("query/kernel"))
    kernel.assign(np.full(kernel.shape, np.nan))
    words = ["must be finite; received NaN or infinity in 1 of them", "the first is decoder_0/attention/query/kernel"]
    refused(lambda: model.generate(PROMPTS, 4, sampler), words)


def test_logits_of_nan_raise_an_error():
    refused(lambda: generate(PROMPTS, processors=[Added(np.nan)]), ["The logits must be numbers; received NaN"])


@pytest.mark.drawn(2)
@pytest.mark.parametrize("options", [{}, {"position": "relative", "window": 3}])
def test_models_of_another_floatx_generate(bfloat16, options):
    """On JAX Keras makes floats of Python integers then."""
    model = txf.models.decoder_generator(VOCABULARY, 1, 8, 2, **options)
    assert model.generate([[3, 1], [2]], 3, "beam").shape == (2, 5)
