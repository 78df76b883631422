"""TokenCrossEntropy, TokenAccuracy and Perplexity against NumPy in float64.

Legend: B batch, T length, V vocabulary.
"""

import json
import math

import drawing
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from refusals import refused

import keras_txf as txf

B, T, V = 3, 5, 7
TARGETS = np.array([[3, 1, 6, 2, 4], [5, 2, 0, 0, 0], [1, 0, 0, 0, 0]])
LOGITS = 3 * drawing.normal(B, T, V)
SEQUENCE_WEIGHTS = np.array([0.5, 2.0, 0.0])
TOKEN_WEIGHTS = np.random.default_rng(2).random((B, T))


def token_losses(targets=TARGETS, logits=LOGITS, smoothing=0.0):
    """-sum over V of the smoothed target times log softmax, (B, T)."""
    logits = logits.astype("float64")
    logarithms = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    wanted = (1 - smoothing) * np.eye(V)[targets] + smoothing / V
    return -(wanted * logarithms).sum(-1)


def weights(pad_id=0, sample_weight=None, targets=TARGETS):
    real = np.ones(targets.shape) if pad_id is None else (targets != pad_id).astype(float)
    if sample_weight is not None:
        real = real * (sample_weight[:, None] if sample_weight.ndim == 1 else sample_weight)
    return real


CLASS_WEIGHT = {1: 9.0, 3: 0.0, 6: 0.25}
CLASS_WEIGHTS = np.vectorize(lambda target: CLASS_WEIGHT.get(target, 1.0))(TARGETS)
every_weight = pytest.mark.parametrize("sample_weight", [None, SEQUENCE_WEIGHTS, TOKEN_WEIGHTS],
                                       ids=["none", "(B,)", "(B, T)"])  # fmt: skip


@every_weight
@pytest.mark.parametrize("pad_id", [0, 2, None])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("class_weight", [None, CLASS_WEIGHT], ids=["", "classes"])
def test_value_and_gradient_are_those_of_numpy(class_weight, smoothing, pad_id, sample_weight):
    """Each token weighs as much as its class; the gradient is softmax minus target."""
    loss = txf.training.TokenCrossEntropy(pad_id, smoothing, class_weight=class_weight)
    loss = keras.losses.deserialize(json.loads(json.dumps(keras.losses.serialize(loss))))
    assert loss.class_weight == class_weight
    real = weights(pad_id, sample_weight) * (CLASS_WEIGHTS if class_weight else 1)
    expected = (token_losses(smoothing=smoothing) * real).sum() / real.sum()
    assert float(loss(TARGETS, LOGITS, sample_weight)) == pytest.approx(expected, rel=1e-5)
    slope = drawing.gradient(lambda logits: loss(TARGETS, logits, sample_weight), LOGITS)
    softmax = np.exp(LOGITS.astype("float64"))
    smoothed = (1 - smoothing) * np.eye(V)[TARGETS] + smoothing / V
    apart = softmax / softmax.sum(-1, keepdims=True) - smoothed
    np.testing.assert_allclose(slope, apart * real[..., None] / real.sum(), atol=1e-6)


def tagger(loss, **options):
    """A model of one kernel, whose logits for these rows of ids are that kernel's rows."""
    model = keras.Sequential([keras.Input((T,), dtype="int32"), keras.layers.Embedding(V, V)])
    model.compile(keras.optimizers.SGD(0.0), loss, **options)
    model.set_weights([3 * drawing.normal(V, V)])
    return model


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return TARGETS, TARGETS


WITH_CLASS_WEIGHT = {
    "arrays": lambda model, **options: model.fit(TARGETS, TARGETS, verbose=0, **options),
    "a data set": lambda model, **options: model.fit(
        tf.data.Dataset.from_tensors((TARGETS, TARGETS)), shuffle=False, verbose=0, **options
    ),
    "batches": lambda model, **options: model.fit(Rows(), verbose=0, **options),
    "one batch": lambda model, **options: model.train_on_batch(TARGETS, TARGETS, **options),
}
KERAS_LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.mark.parametrize("train, loss, metrics", [
    *[(train, txf.training.TokenCrossEntropy(), []) for train in WITH_CLASS_WEIGHT],
    ("arrays", txf.training.TokenCrossEntropy(class_weight={2: 9.0}), []),
    ("arrays", KERAS_LOSS, [txf.training.TokenAccuracy()]),
])  # fmt: skip
def test_class_weights_of_fit_raise_an_error(train, loss, metrics):
    words = r"`class_weight` of `fit` must be left out .* TokenCrossEntropy\(class_weight=\.\.\.\)"
    with pytest.raises(ValueError, match=words):
        WITH_CLASS_WEIGHT[train](tagger(loss, weighted_metrics=metrics), class_weight={2: 9.0})


def test_fit_weighs_tokens_and_rows():
    def fit(model, targets, **options):
        return model.fit(targets, targets, batch_size=len(targets), verbose=0, **options).history["loss"][0]

    model = tagger(txf.training.TokenCrossEntropy(class_weight=CLASS_WEIGHT))
    losses = token_losses(logits=model.get_weights()[0][TARGETS])
    real = weights(sample_weight=SEQUENCE_WEIGHTS) * CLASS_WEIGHTS
    found = fit(model, TARGETS, sample_weight=SEQUENCE_WEIGHTS)
    assert found == pytest.approx((losses * real).sum() / real.sum(), rel=1e-5)

    model = keras.Sequential([keras.Input((), dtype="int32"), keras.layers.Embedding(V, V)])
    model.compile(keras.optimizers.SGD(0.0), txf.training.TokenCrossEntropy())
    targets = TARGETS[0]
    losses, real = token_losses(targets, model.get_weights()[0][targets]), np.where(targets == 2, 9.0, 1.0)
    found = fit(model, targets, class_weight={2: 9.0})  # of one target a row Keras' own weights are right
    assert found == pytest.approx((losses * real).sum() / real.sum(), rel=1e-5)


LOSSES = [txf.training.TokenCrossEntropy, txf.training.RDrop]
METRICS = [txf.training.TokenAccuracy, txf.training.Perplexity]


@pytest.mark.parametrize("value, words", [
    ({}, ["dict"]), ([1.0, 9.0], ["dict", "[1.0, 9.0]"]), ({1: -1.0}, ["0 or more", "-1.0"]),
    ({1: float("nan")}, ["finite", "nan"]), ({"1": 2.0}, ["token id", "'1'"]), ({-1: 2.0}, ["token id", "-1"]),
    ({0: 2.0}, ["`pad_id`", "{0: 2.0}"]), ({1: "2"}, ["finite", "'2'"]),
])  # fmt: skip
@pytest.mark.parametrize("loss", LOSSES)
def test_bad_class_weights(loss, value, words):
    refused(lambda: loss(class_weight=value), ["`class_weight`", *words])


def test_a_class_weight_beyond_the_logits():
    loss = txf.training.TokenCrossEntropy(class_weight={V: 2.0})
    refused(lambda: loss(TARGETS, LOGITS), ["`class_weight`", f"{V}", f"{{{V}: 2.0}}"])


@pytest.mark.parametrize("call", [*(cls() for cls in LOSSES), *(cls().update_state for cls in METRICS)])
@pytest.mark.parametrize("arguments, words", [
    ({"y_true": TARGETS.astype("float32")}, ["`y_true` must be integers", "float32"]),
    ({"y_true": TARGETS > 2}, ["`y_true` must be integers", "bool"]),
    ({"y_true": None}, ["`y_true`", "None"]),
    ({"y_true": [[1], [2, 3]]}, ["`y_true`", "[[1], [2, 3]]"]),
    ({"y_true": TARGETS[0]}, ["`y_true`", f"({T},)", f"({B}, {T}, {V})"]),
    ({"y_pred": None}, ["`y_pred`", "None"]),
    ({"y_pred": 3}, ["`y_pred`", "()"]),
    ({"sample_weight": "heavy"}, ["`sample_weight`"]),
    ({"sample_weight": 2.0}, ["`sample_weight`", f"({B}, {T})", "()"]),
    ({"sample_weight": np.ones((B, T, 2))}, ["`sample_weight`", f"({B}, {T}, 2)"]),
])  # fmt: skip
def test_bad_calls(call, arguments, words):
    refused(lambda: call(**{"y_true": TARGETS, "y_pred": LOGITS, **arguments}), words)


@pytest.mark.parametrize("scale", [1e-3, 100.0])
def test_sure_and_unsure_logits(scale):
    logits = scale * LOGITS  # probabilities of 1 less 1e-40, or all alike
    expected = np.average(token_losses(logits=logits - logits.max(-1, keepdims=True)), weights=weights())
    assert float(txf.training.TokenCrossEntropy()(TARGETS, logits)) == pytest.approx(expected, rel=1e-5)
    surest = logits.argmax(-1)
    expected = token_losses(surest, logits - logits.max(-1, keepdims=True)).mean()
    assert float(txf.training.TokenCrossEntropy(None)(surest, logits)) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_a_batch_of_padding_is_zero_with_a_finite_gradient():
    loss = txf.training.TokenCrossEntropy(label_smoothing=0.1)
    nothing = np.zeros((B, T), "int32")
    assert float(loss(nothing, LOGITS)) == 0.0
    assert not drawing.gradient(lambda logits: loss(nothing, logits), LOGITS).any()
    # Weights of zero leave as little.
    assert float(loss(TARGETS, LOGITS, np.zeros(B))) == 0.0


@pytest.mark.parametrize("pad_id", [0, None])
def test_a_batch_of_no_rows_is_zero(pad_id):
    targets, logits = np.zeros((0, T), "int32"), np.zeros((0, T, V), "float32")
    for loss in (txf.training.TokenCrossEntropy(pad_id, class_weight={1: 2.0}), txf.training.RDrop(pad_id, 0.1)):
        value = loss(targets, logits)
        assert tuple(value.shape) == () and float(value) == 0.0
        assert drawing.gradient(lambda logits: loss(targets, logits), logits).shape == logits.shape
    for metric in (txf.training.TokenAccuracy(pad_id), txf.training.Perplexity(pad_id)):
        metric.update_state(TARGETS, LOGITS)
        expected = float(metric.result())
        metric.update_state(targets, logits)
        assert float(metric.result()) == expected


def test_a_forbidden_padding_token_costs_nothing():
    forbidden = LOGITS.copy()
    forbidden[..., 0] = -np.inf
    far = LOGITS.copy()
    far[..., 0] = -1e4
    loss, perplexity = txf.training.TokenCrossEntropy(), txf.training.Perplexity()
    assert float(loss(TARGETS, forbidden)) == pytest.approx(float(loss(TARGETS, far)), rel=1e-6)
    slope = drawing.gradient(lambda logits: loss(TARGETS, logits), forbidden)
    np.testing.assert_allclose(slope, drawing.gradient(lambda logits: loss(TARGETS, logits), far), atol=1e-7)
    assert np.isfinite(float(perplexity(TARGETS, forbidden)))
    broken = np.where(weights()[..., None] == 0, np.nan, LOGITS)  # what stands at padding does not count
    assert float(loss(TARGETS, broken)) == pytest.approx(float(loss(TARGETS, LOGITS)), rel=1e-6)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the others take the gradient of what is computed")
def test_the_gradient_has_a_gradient():
    def twice(loss):
        logits = tf.constant(LOGITS, "float32")
        with tf.GradientTape() as outer:
            outer.watch(logits)
            with tf.GradientTape() as inner:
                inner.watch(logits)
                value = loss(logits)
            penalty = tf.reduce_sum(inner.gradient(value, logits) ** 2)
        return outer.gradient(penalty, logits)

    wanted = tf.one_hot(TARGETS, V) * 0.9 + 0.1 / V
    expected = twice(lambda logits: tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(wanted, logits)))
    ours = txf.training.TokenCrossEntropy(None, 0.1)
    for run in (twice, tf.function(twice)):
        np.testing.assert_allclose(run(lambda logits: ours(TARGETS, logits)), expected, atol=1e-7)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_logits_are_summed_in_float32(dtype):
    vocabulary = 4096  # more equal terms than bfloat16 or float16 can count
    logits = ops.ones((1, 3, vocabulary), dtype)
    for smoothing in (0.0, 0.1):
        loss = txf.training.TokenCrossEntropy(None, smoothing)(np.zeros((1, 3), "int32"), logits)
        assert keras.backend.standardize_dtype(loss.dtype) == "float32"
        assert float(loss) == pytest.approx(math.log(vocabulary), rel=1e-5)
    rounded = drawing.array(ops.cast(LOGITS, dtype))
    expected = np.average(token_losses(logits=rounded), weights=weights())
    found = txf.training.TokenCrossEntropy()(TARGETS, ops.cast(LOGITS, dtype))
    assert float(found) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("target", [-1, V])
def test_a_target_outside_the_vocabulary_never_counts_as_another(target):
    targets = TARGETS.copy()
    targets[1, 1] = target
    loss = txf.training.TokenCrossEntropy()
    ids = f"ids from 0 to {V - 1}, or pad_id=0; received ids from {target} to {target}"
    with pytest.raises(ValueError, match=f"`y_true` must hold {ids}"):
        loss(targets, LOGITS)
    if keras.backend.backend() == "jax":
        import jax

        assert math.isnan(float(jax.jit(loss)(targets, LOGITS)))
    if keras.backend.backend() == "tensorflow":  # in a graph no value can be seen
        with pytest.raises(tf.errors.InvalidArgumentError, match=str(V)):
            tf.function(loss)(targets, LOGITS)


def test_any_rank_of_targets():
    loss = txf.training.TokenCrossEntropy()
    assert float(loss(TARGETS[0], LOGITS[0])) == pytest.approx(token_losses()[0].mean(), rel=1e-5)
    assert float(loss(TARGETS[None], LOGITS[None])) == pytest.approx(float(loss(TARGETS, LOGITS)), rel=1e-6)


@every_weight
@pytest.mark.parametrize("pad_id", [0, -100, None])
def test_metrics_weigh_tokens_alike_over_batches_of_other_lengths(pad_id, sample_weight):
    draw = np.random.default_rng(0)
    ids = [draw.integers(0, V, (B, length)) for length in (3, 9, 27)]
    logits = [3 * draw.normal(size=(*batch.shape, V)).astype("float32") for batch in ids]
    given = [draw.random(batch.shape) if np.ndim(sample_weight) == 2 else sample_weight for batch in ids]
    counted = [weights(None if pad_id is None else 0, one, batch) for batch, one in zip(ids, given)]
    batches = [np.where(batch == 0, pad_id or 0, batch) for batch in ids]
    real = np.concatenate([batch.ravel() for batch in counted])
    hits = np.concatenate([(x.argmax(-1) == batch).ravel() for x, batch in zip(logits, ids)])
    losses = np.concatenate([token_losses(*pair).ravel() for pair in zip(ids, logits)])
    expected = (hits * real).sum() / real.sum(), math.exp((losses * real).sum() / real.sum())
    for cls, value in zip(METRICS, expected):
        metric = cls(pad_id=pad_id)
        metric.update_state(batches[0], logits[1][:, :3])  # a reset forgets this state
        metric.reset_state()
        for arguments in zip(batches, logits, given):
            metric.update_state(*arguments)
        assert float(metric.result()) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16"])
def test_metrics_count_in_float32_under_every_policy(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        metric = txf.training.TokenAccuracy()
    finally:
        keras.config.set_dtype_policy(before)
    targets, hit = np.ones((1, 100), "int32"), np.tile(np.eye(V, dtype="float32")[1], (1, 100, 1))
    for step in range(6):  # bfloat16 cannot count beyond 256
        metric.update_state(targets, hit if step else np.roll(hit, 1, axis=-1))
    assert float(metric.result()) == pytest.approx(5 / 6, rel=1e-5)
