"""Preferences: log-probabilities against NumPy in float64, losses against PyTorch, and training of a policy."""

import drawing
import keras
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from refusals import refused

import keras_txf as txf
from keras_txf.training import PreferenceAccuracy, PreferenceLoss, preference_model

V = 20
IDS = np.array([[[3, 4, 5, 7], [3, 6, 0, 0]], [[9, 9, 4, 0], [9, 9, 5, 6]], [[8, 1, 2, 0], [8, 1, 3, 0]]], "int32")
MASK = np.array([[[0, 1, 1, 1], [0, 1, 0, 0]], [[0, 0, 1, 0], [0, 0, 1, 1]], [[0, 0, 1, 0], [0, 0, 1, 0]]], "bool")
DATA = {"token_ids": IDS, "answer_mask": MASK}


def keras_policy():
    """A policy of Keras' own layers, whose outputs have a mask."""
    layers = keras.layers
    model = keras.Sequential([layers.Input((None,), dtype="int32"), layers.Embedding(V, 8, mask_zero=True),
                              layers.LSTM(8, return_sequences=True), layers.Dense(V)])  # fmt: skip
    return drawing.randomize(model, seed=4)


def make_policy(**options):
    return drawing.randomize(txf.models.decoder_generator(V, 1, 16, 2, dropout=0.0, **options), seed=3)


def summed(policy, ids, mask):
    """The sum of the log-probabilities of the answer in a row, read alone without padding, and its tokens."""
    length = int(np.flatnonzero(mask)[-1]) + 1
    logits = drawing.array(policy(ids[None, :length]))[0].astype("float64")
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    places = np.flatnonzero(mask[:length])
    return sum(log_probs[place - 1, ids[place]] for place in places), len(places)


@pytest.mark.parametrize("policy", [make_policy, lambda: make_policy(position="rotary", pad_id=None), keras_policy])
def test_log_probabilities_are_sums_over_the_answers(policy):
    policy = policy()
    found = preference_model(policy).predict(DATA, verbose=0)
    expected = [[summed(policy, *row) for row in zip(*pair)] for pair in zip(IDS, MASK)]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    wider = {name: np.pad(x, ((0, 0), (0, 0), (0, 3))) for name, x in DATA.items()}
    np.testing.assert_allclose(preference_model(policy).predict(wider, verbose=0), found, rtol=1e-5)


def test_an_answer_that_nothing_predicts_is_nan():
    """The last pair has an answer without tokens, and one whose only token is the first of its row."""
    mask = MASK.copy()
    mask[2] = [[0, 0, 0, 0], [1, 0, 0, 0]]
    found = preference_model(make_policy()).predict({**DATA, "answer_mask": mask}, verbose=0)
    assert np.isnan(found[2]).all() and np.isfinite(found[:2]).all()


def draw(seed, scale):
    random = np.random.default_rng(seed)
    counts = random.integers(1, 9, (7, 2))
    sums = -random.exponential(scale, (2, 7, 2)) * counts
    return [np.stack([one, counts], axis=-1).astype("float32") for one in sums]


def expected_loss(kind, beta, policy, reference):
    """The loss of each pair in float64, by the formulas of TRL's DPOTrainer and ORPOTrainer."""
    p, counts, r = (torch.tensor(x).double() for x in (policy[..., 0], policy[..., 1], reference[..., 0]))
    ratios = p - r
    if kind == "dpo":
        return -F.logsigmoid(beta * (ratios[:, 0] - ratios[:, 1]))
    if kind == "ipo":
        means = ratios / counts
        return (means[:, 0] - means[:, 1] - 1 / (2 * beta)) ** 2
    means = p / counts
    odds = means - torch.log(1 - torch.exp(means))
    return -means[:, 0] - beta * F.logsigmoid(odds[:, 0] - odds[:, 1])


@pytest.mark.parametrize("kind", ["dpo", "ipo", "orpo"])
@pytest.mark.parametrize("scale", [1e-2, 1.0, 30.0])
def test_losses_are_the_formulas_of_the_papers(kind, scale):
    policy, reference = draw(5, scale)
    expected = expected_loss(kind, 0.3, policy, reference).numpy()
    loss, weights = PreferenceLoss(kind, beta=0.3), np.arange(1.0, 8.0)
    np.testing.assert_allclose(drawing.array(loss(reference, policy)), expected.mean(), rtol=1e-5)
    found = drawing.array(loss(reference, policy, sample_weight=weights))
    np.testing.assert_allclose(found, (expected * weights).mean(), rtol=1e-5)
    np.testing.assert_allclose(drawing.array(loss(reference[..., 0], policy)), expected.mean(), rtol=1e-5)
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert again.get_config() == loss.get_config() == {"kind": kind, "beta": 0.3, "name": "preference_loss"}


def test_the_accuracy_is_the_share_of_preferred_answers():
    policy, reference = draw(6, 1.0)
    ratios = policy[..., 0] - reference[..., 0]
    metric = PreferenceAccuracy()
    for rows in (slice(0, 3), slice(3, 7)):
        metric.update_state(reference[rows], policy[rows])
    assert float(metric.result()) == pytest.approx((ratios[:, 0] > ratios[:, 1]).mean())
    metric.update_state(np.array([[np.nan, 0.0]]), policy[:1])
    assert np.isnan(float(metric.result()))


@pytest.mark.long
@pytest.mark.drawn(3)
@pytest.mark.parametrize("kind", ["dpo", "ipo", "orpo"])
def test_a_policy_learns_preferences_with_an_adapter_whose_base_is_the_reference(kind):
    policy = make_policy()
    base = [drawing.array(weight) for weight in policy.weights]
    txf.training.add_adapter(policy, rank=2)
    pairs = preference_model(policy)
    reference = pairs.predict(DATA, verbose=0)
    np.testing.assert_allclose(reference, preference_model(make_policy()).predict(DATA, verbose=0), rtol=1e-5)
    pairs.compile(keras.optimizers.Adam(0.03), PreferenceLoss(kind), metrics=[PreferenceAccuracy()])
    history = pairs.fit(DATA, reference, epochs=25, verbose=0).history
    assert history["loss"][-1] < 0.9 * history["loss"][0] and history["preference_accuracy"][-1] == 1
    txf.training.use_adapter(pairs, None)
    np.testing.assert_allclose(pairs.predict(DATA, verbose=0), reference, rtol=1e-5)
    kept = [w for w in policy.weights if "adapter" not in w.path and "lora" not in w.path]
    for weight, before in zip(kept, base, strict=True):
        np.testing.assert_array_equal(drawing.array(weight), before)


@pytest.mark.slow
def test_a_model_of_pairs_comes_back_from_a_file(tmp_path):
    pairs = preference_model(make_policy())
    pairs.compile("sgd", PreferenceLoss("ipo"), metrics=[PreferenceAccuracy()])
    pairs.fit(DATA, np.zeros((3, 2)), verbose=0)
    pairs.save(tmp_path / "pairs.keras")
    again = keras.saving.load_model(tmp_path / "pairs.keras")
    np.testing.assert_allclose(again.predict(DATA, verbose=0), pairs.predict(DATA, verbose=0), rtol=1e-6)


def test_other_models_and_values_raise_value_errors():
    refused(lambda: preference_model(3), ["`policy` must be a functional model", "3"])
    seq2seq = txf.models.encoder_decoder(V, V, 1, 8, 2)
    refused(lambda: preference_model(seq2seq), ["`policy` must read token ids alone", "source_ids"])
    classifier = txf.models.encoder_classifier(V, 3, 1, 8, 2)
    refused(lambda: preference_model(classifier), ["`policy` must return logits"])
    encoder = txf.models.encoder(V, 1, 8, 2)
    refused(lambda: preference_model(encoder), ["`policy` must return logits of the 20 tokens", "8"])
    deferred = keras.Sequential([keras.layers.Embedding(V, 8), keras.layers.Dense(V)])
    deferred(np.ones((1, 3), "int32"))  # Keras makes an input of floats
    refused(lambda: preference_model(deferred), ["`policy` must read token ids alone", "float32"])
    shorter = {**DATA, "answer_mask": MASK[..., :3]}
    refused(lambda: preference_model(make_policy())(shorter), ["`answer_mask`", "4", "3"])
    refused(lambda: PreferenceLoss()(np.zeros((1, 2)), np.zeros((3, 2, 2))), ["`y_true`", "3 pairs", "1"])
    refused(lambda: PreferenceLoss("ppo"), ["`kind`", "'ppo'"])
    refused(lambda: PreferenceLoss(beta=0.0), ["`beta`", "0.0"])
    for y_true, y_pred in ((np.zeros((2, 3)), np.zeros((2, 2, 2))), (np.zeros((2, 2)), np.zeros((2, 2)))):
        refused(lambda: PreferenceLoss()(y_true, y_pred), ["`y_pred` must be the output (B, 2, 2)", str(y_true.shape)])
