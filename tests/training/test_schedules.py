"""Learning rates against their formulas, and as a part of a saved model that continues training."""

import math

import drawing
import keras
import numpy as np
import pytest

import keras_txf as txf


def inverse_square_root(step, dim, warmup, scale=1.0):
    step += 1  # the paper's first step is 1
    return scale * dim**-0.5 * min(step**-0.5, step * warmup**-1.5)


@pytest.mark.parametrize("dim, warmup, scale", [(512, 4000, 1.0), (8, 10, 0.5)])
def test_inverse_square_root_is_the_papers(dim, warmup, scale):
    schedule = txf.training.InverseSquareRoot(dim, warmup, scale)
    for step in (0, 1, 2, warmup - 1, warmup, warmup + 1, 10 * warmup):
        for as_integer in (step, np.int64(step), keras.ops.convert_to_tensor(step)):
            assert float(schedule(as_integer)) == pytest.approx(inverse_square_root(step, dim, warmup, scale), rel=1e-5)
    before, peak, after = (float(schedule(warmup + step)) for step in (-2, -1, 0))
    assert before < peak > after  # the paper's step `warmup`
    assert peak == pytest.approx(scale / math.sqrt(dim * warmup), rel=1e-5)


def test_cooldown_ends_in_nothing():
    schedule = txf.training.InverseSquareRoot(8, 10, 0.5, total_steps=50, cooldown_steps=20)
    for step in (0, 9, 29, 30, 31, 40, 49, 50, 1000):
        line = min(max((50 - step) / 20, 0), 1)
        assert float(schedule(step)) == pytest.approx(line * inverse_square_root(step, 8, 10, 0.5), rel=1e-5)
    whole = txf.training.InverseSquareRoot(8, 10, total_steps=20, cooldown_steps=20)  # the warm-up's part of it too
    assert float(whole(4)) == pytest.approx(0.8 * inverse_square_root(4, 8, 10), rel=1e-5)


@pytest.mark.parametrize("final", [0.0, 0.1, 0.5])
def test_cosine_is_its_formula(final):
    schedule = txf.training.warmup_cosine(0.5, 4, 24, final)
    for step in (0, 1, 2, 3, 4, 5, 14, 23, 24, 25, 1000):
        share = min(max(step - 4, 0) / 20, 1)
        expected = 0.5 * step / 4 if step < 4 else final + (0.5 - final) * (1 + math.cos(math.pi * share)) / 2
        assert float(schedule(step)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("item, call", [
    (txf.training.InverseSquareRoot(8, 10, 0.5), lambda item: item(3)),
    (txf.training.InverseSquareRoot(8, 10, 0.5, 50, 20), lambda item: item(40)),
    (txf.training.warmup_cosine(0.5, 4, 24, 0.1), lambda item: item(9)),
    (txf.training.TokenCrossEntropy(2, 0.1, name="mine"), lambda item: item(IDS[:, 1:], LOGITS)),
    (txf.training.TokenAccuracy(2, name="mine"), lambda item: item(IDS[:, 1:], LOGITS)),
    (txf.training.Perplexity(2, name="mine"), lambda item: item(IDS[:, 1:], LOGITS)),
], ids=lambda x: type(x).__name__)  # fmt: skip
def test_configuration_brings_everything_back(item, call):
    keras_round = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(item))
    for other in (type(item).from_config(item.get_config()), keras_round):
        assert type(other) is type(item)
        assert other.get_config() == item.get_config()
        assert getattr(other, "name", None) == getattr(item, "name", None)
        if hasattr(item, "reset_state"):
            item.reset_state()
        assert float(call(other)) == pytest.approx(float(call(item)))


IDS = np.array([[1, 5, 2, 6, 2], [1, 3, 3, 7, 2], [1, 4, 2, 0, 0], [1, 6, 5, 7, 2]], "int32")
LOGITS = drawing.normal(4, 4, 8)


def test_fit_reports_means_over_tokens():
    """Keras weighs what a batch reports by its rows; perplexity and accuracy weigh by tokens."""
    model = txf.models.decoder_generator(8, 1, 8, 2)
    metrics = [txf.training.Perplexity(), txf.training.TokenAccuracy()]
    model.compile(loss=txf.training.TokenCrossEntropy(), metrics=metrics, run_eagerly=True)
    x, y = txf.training.shift_labels(IDS)
    results = model.evaluate(x, y, batch_size=3, verbose=0, return_dict=True)
    logits = drawing.array(model(x))
    whole = txf.training.TokenCrossEntropy()
    assert results["perplexity"] == pytest.approx(math.exp(float(whole(y, logits))), rel=1e-4)
    assert results["token_accuracy"] == pytest.approx((logits.argmax(-1) == y)[y != 0].mean(), rel=1e-5)
