"""Forecasts of models of float vectors equal repeated full passes, or an error names the fault."""

import drawing
import keras
import numpy as np
import pytest
from keras import ops

import keras_txf as txf

F, D, STEPS = 3, 8, 5
L, X = keras.layers, txf.layers
RANDOM = np.random.default_rng(0)
SERIES = [RANDOM.normal(size=(length, F)).astype("float32") for length in (6, 1, 4)]
CONTEXT = RANDOM.normal(size=(3, 2, D)).astype("float32")
KINDS = {
    "positions": lambda x: X.EncoderBlock(2, causal=True)(X.FeatureEmbedding(D)(x)),
    "learned": lambda x: X.DecoderBlock(2)(X.FeatureEmbedding(D, "learned", max_length=10)(x)),
    "no positions": lambda x: X.DecoderBlock(2, position="alibi")(X.FeatureEmbedding(D, None)(x)),
    "window": lambda x: X.DecoderBlock(2, position="rotary", window=3)(L.Dense(D)(x)),
    "convolution": lambda x: L.Conv1D(D, 3, padding="causal", dilation_rate=2)(L.Conv1D(D, 2, padding="causal")(x)),
    "lstm": lambda x: L.Concatenate()([x, L.LSTM(D, return_sequences=True)(L.Masking()(x))]),
    "gru": lambda x: L.TimeDistributed(L.Dense(D, "tanh"))(L.GRU(D, return_sequences=True)(x)),
    "keras attention": lambda x: L.MultiHeadAttention(2, 4)(*[L.Dense(D)(x)] * 2, use_causal_mask=True),
    "short convolution": lambda x: X.DecoderBlock(attention=X.ShortConvolution(3))(L.Normalization()(L.Dense(D)(x))),
}  # fmt: skip


def build(kind, outputs=F, seed=1):
    series = keras.Input((None, F), name="series")
    model = keras.Model(series, L.Dense(outputs)(KINDS[kind](series)))
    return drawing.randomize(model, seed=seed)


@keras.saving.register_keras_serializable(package="tests")
def draw(outputs, seed):
    mean, scale = ops.split(outputs, 2, axis=1)
    return mean + ops.exp(0.3 * scale) * keras.random.normal(ops.shape(mean), seed=seed)


def naive(model, series, given=lambda row: {}, follow=lambda outputs, row, step: outputs):
    """The outputs of a full pass for each vector and each series: (B, STEPS, G)."""
    found = np.zeros((len(series), STEPS, model.output.shape[-1]), "float32")
    for row, values in enumerate(series):
        x = values[None]
        for step in range(STEPS):
            found[row, step] = drawing.array(model({"series": x, **given(row)} if given(row) else x))[0, -1]
            x = np.concatenate([x, follow(found[row, step], row, step)[None, None]], axis=1)
    return found


@pytest.mark.drawn(4)
@pytest.mark.parametrize("kind", KINDS)
def test_forecasts_are_those_of_the_full_pass(kind):
    model = txf.models.forecaster(build(kind))
    expected = naive(model, SERIES)
    drawing.assert_same(model.forecast(SERIES, STEPS), expected, 1e-4)
    drawing.assert_same(np.stack([*model.forecast(SERIES[:1], STEPS, stream=True)], 1), expected[:1], 1e-4)


@pytest.mark.slow
def test_prefill_and_step_models_read_vectors():
    model = txf.models.forecaster(build("window"))
    prefill, step, inputs = txf.models.prefill_model(model), txf.models.step_model(model), {"series": SERIES[0][None]}
    for last in range(6, 6 + STEPS):
        inputs = {name: ops.convert_to_tensor(x) for name, x in inputs.items()}
        mask = ops.convert_to_tensor(np.arange(12)[None] < last)
        known = prefill({**inputs, "attention_mask": mask}) if last == 6 else step({**inputs, "attention_mask": mask})
        inputs = {**inputs, **known, "series": known["logits"][:, None], "cache_position": np.array([last])}
        inputs.pop("logits")
    drawing.assert_same(inputs["series"][:, 0], naive(model, SERIES[:1])[:, -1], 1e-4)


@pytest.mark.slow
def test_compiled_loops_forecast_the_same_and_serve_other_lengths(compiled):
    model = txf.models.forecaster(build("window"))
    expected = naive(model, SERIES)
    drawing.assert_same(model.forecast(SERIES, STEPS), expected, 1e-4)
    drawing.assert_same(model.forecast(SERIES, 3), expected[:, :3], 1e-4)
    drawing.assert_same(model.forecast(SERIES, 40)[:, :STEPS], expected, 1e-4)


def test_a_context_and_known_future_features():
    series, context = keras.Input((None, F), name="series"), keras.Input((2, D), name="context")
    x = X.DecoderBlock(2, cross_attention=True)(X.FeatureEmbedding(D)(series), context)
    model = keras.Model({"series": series, "context": context}, L.Dense(2)(x))
    model = txf.models.forecaster(
        drawing.randomize(model, seed=2), lambda outputs: 2 * outputs[:, :1], series="series", future_features=2
    )
    future = RANDOM.normal(size=(3, STEPS, 2)).astype("float32")
    expected = naive(
        model, SERIES, lambda row: {"context": CONTEXT[row : row + 1]},
        lambda outputs, row, step: np.append(2 * outputs[:1], future[row, step]),
    )  # fmt: skip
    found = model.forecast(SERIES, STEPS, future=future, inputs={"context": CONTEXT})
    drawing.assert_same(found, 2 * expected[..., :1], 1e-4)
    for options, words in ({"future": future}, "`inputs` must be"), ({}, r"`future` .* \(3, 5, 2\)"):
        with pytest.raises(ValueError, match=words):
            model.forecast(SERIES, STEPS, **options)


@pytest.mark.long
def test_draws_follow_the_seed_and_come_back_from_a_file(tmp_path):
    model = txf.models.forecaster(build("gru", 2 * F), draw)
    found = model.forecast(SERIES, STEPS, seed=3, num_return_sequences=4)
    assert found.shape == (3, 4, STEPS, F) and found[:, :, 0].std(axis=1).min() > 0.1
    assert abs(found - model.forecast(SERIES, STEPS, seed=4, num_return_sequences=4)).max() > 0.1
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    drawing.assert_same(again.forecast(SERIES, STEPS, seed=3, num_return_sequences=4), found, 1e-4)
    streamed = np.stack([*again.forecast(SERIES, STEPS, seed=3, num_return_sequences=4, stream=True)], axis=2)
    drawing.assert_same(streamed, found, 1e-4)
    unsaved = txf.models.forecaster(build("gru"), lambda outputs: outputs)
    with pytest.raises(ValueError, match="`feedback` must be registered by .*register_keras_serializable"):
        unsaved.save(tmp_path / "model.keras")


def both_ways(x):
    return L.Bidirectional(L.GRU(4, return_sequences=True))(x)


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    "options, words",
    [
        ({"outputs": 2}, "`feedback` must compute the next 3 .* 2 outputs"),
        ({"outputs": 2, "feedback": lambda outputs: outputs}, r"\(batch, 3\); received shape \(3, 2\)"),
        ({"feedback": lambda outputs, more: outputs}, "`feedback` .* without other arguments"),
        ({"feedback": L.Dense(3)}, "`feedback` .* without weights"),
        ({"future_features": 3}, "`future_features`"),
        ({"series": "context"}, "`series` must be one of"),
        ({"kind": both_ways}, "layer 'bidirectional.*mixes the positions"),
        ({"kind": X.EncoderBlock(1)}, "causal=False"),
        ({"kind": L.GRU(3)}, r"`model` must return floats .* received outputs of shape \(None, 3\)"),
    ],
)  # fmt: skip
def test_models_and_feedback_that_do_not_fit_raise_errors(options, words):
    series = keras.Input((None, F), name="series")
    x = options.pop("kind", L.Identity())(series)
    model = keras.Model(series, x if len(x.shape) == 2 else L.Dense(options.pop("outputs", F))(x))
    with pytest.raises(ValueError, match=words):
        txf.models.forecaster(model, **options)


def test_bad_calls_raise_errors():
    model = txf.models.forecaster(build("learned"))
    rows = [
        ({"series": SERIES[0]}, "`series` must be floats of shape"),
        ({"series": [SERIES[0][:, :2]]}, r"`series` .* received float32 of shape \(6, 2\) in row 0"),
        ({"series": np.ones((1, 4, F), "int32")}, "`series` .* received int32"),
        ({"series": [SERIES[0], SERIES[1][:0]]}, "at least one vector"),
        ({"series": [SERIES[0], SERIES[2] * [[1], [np.nan], [1], [1]]]}, "NaN or infinity in row 1, position 1"),
        ({"steps": 6}, "max_length=10 positions; received 6 steps after a series of 6"),
        ({"num_return_sequences": 2}, "`num_return_sequences` must be 1"),
    ]
    for options, words in rows:
        with pytest.raises(ValueError, match=words):
            model.forecast(**{"series": SERIES, "steps": 2, **options})
    with pytest.raises(ValueError, match="`tokens` .* `txf.models.forecaster`"):
        txf.models.generative(model, tokens="series")
    with pytest.raises(ValueError, match="clone of a model has lost"):
        keras.models.clone_model(model).forecast(SERIES, 2)
    with pytest.raises(ValueError, match="Sequential without a graph"):
        txf.models.forecaster(keras.Sequential([L.Dense(F)]))
    txf.models.forecaster(keras.Sequential([keras.Input((None, F)), L.Dense(F)]))
    grows = txf.models.forecaster(build("lstm"), lambda outputs: 1e30 * outputs)
    with pytest.raises(ValueError, match="finite; received NaN or infinity at step 2"):
        grows.forecast(SERIES, STEPS)
