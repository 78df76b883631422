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
import torch
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


@pytest.mark.parametrize("sample_weight", [None, SEQUENCE_WEIGHTS, TOKEN_WEIGHTS], ids=["none", "(B,)", "(B, T)"])
@pytest.mark.parametrize("pad_id", [0, 2, None])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_equals_numpy(smoothing, pad_id, sample_weight):
    loss = txf.training.TokenCrossEntropy(pad_id, smoothing)
    real = weights(pad_id, sample_weight)
    expected = (token_losses(smoothing=smoothing) * real).sum() / real.sum()
    assert float(loss(TARGETS, LOGITS, sample_weight)) == pytest.approx(expected, rel=1e-5)


CLASS_WEIGHT = {1: 9.0, 3: 0.0, 6: 0.25}


@pytest.mark.parametrize("sample_weight", [None, SEQUENCE_WEIGHTS, TOKEN_WEIGHTS], ids=["none", "(B,)", "(B, T)"])
@pytest.mark.parametrize("pad_id", [0, None])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_each_token_weighs_as_much_as_its_class(smoothing, pad_id, sample_weight):
    loss = txf.training.TokenCrossEntropy(pad_id, smoothing, class_weight=CLASS_WEIGHT)
    real = weights(pad_id, sample_weight) * np.vectorize(lambda target: CLASS_WEIGHT.get(target, 1.0))(TARGETS)
    expected = (token_losses(smoothing=smoothing) * real).sum() / real.sum()
    assert float(loss(TARGETS, LOGITS, sample_weight)) == pytest.approx(expected, rel=1e-5)
    plain = txf.training.TokenCrossEntropy(pad_id, smoothing)
    assert float(loss(TARGETS, LOGITS, sample_weight)) != pytest.approx(
        float(plain(TARGETS, LOGITS, sample_weight)), rel=1e-2
    )
    again = keras.losses.deserialize(json.loads(json.dumps(keras.losses.serialize(loss))))
    assert again.class_weight == CLASS_WEIGHT and again.get_config() == loss.get_config()


def test_class_weights_are_those_of_pytorch():
    weight = torch.tensor([CLASS_WEIGHT.get(tag, 1.0) for tag in range(V)], dtype=torch.float64)
    logits = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    value = torch.nn.functional.cross_entropy(logits.transpose(1, 2), torch.tensor(TARGETS), weight, ignore_index=0)
    loss = txf.training.TokenCrossEntropy(class_weight=CLASS_WEIGHT)
    assert float(loss(TARGETS, LOGITS)) == pytest.approx(value.item(), rel=1e-5)
    slope = drawing.gradient(lambda logits: loss(TARGETS, logits), LOGITS)
    np.testing.assert_allclose(slope, torch.autograd.grad(value, logits)[0], atol=1e-6)


def tagger(loss, **options):
    """A model of one kernel, whose logits for these rows of ids are that kernel's rows."""
    model = keras.Sequential([keras.Input((T,), dtype="int32"), keras.layers.Embedding(V, V)])
    model.compile(keras.optimizers.SGD(0.0), loss, **options)
    model.set_weights([3 * drawing.normal(V, V)])
    return model


def test_fit_weighs_tokens_by_the_class_weights_of_the_loss():
    model = tagger(txf.training.TokenCrossEntropy(class_weight=CLASS_WEIGHT))
    losses = token_losses(logits=model.get_weights()[0][TARGETS])
    real = weights() * np.vectorize(lambda target: CLASS_WEIGHT.get(target, 1.0))(TARGETS)
    history = model.fit(TARGETS, TARGETS, batch_size=B, verbose=0).history
    assert history["loss"] == pytest.approx([(losses * real).sum() / real.sum()], rel=1e-5)


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return TARGETS, TARGETS


WITH_CLASS_WEIGHT = {
    "arrays": lambda model: model.fit(TARGETS, TARGETS, class_weight={2: 9.0}, shuffle=False, verbose=0),
    "a data set": lambda model: model.fit(
        tf.data.Dataset.from_tensors((TARGETS, TARGETS)), class_weight={2: 9.0}, shuffle=False, verbose=0
    ),
    "batches": lambda model: model.fit(Rows(), class_weight={2: 9.0}, shuffle=False, verbose=0),
    "one batch": lambda model: model.train_on_batch(TARGETS, TARGETS, class_weight={2: 9.0}),
}


@pytest.mark.parametrize("train", WITH_CLASS_WEIGHT.values(), ids=WITH_CLASS_WEIGHT)
def test_class_weights_of_fit_are_refused(train):
    for loss in (txf.training.TokenCrossEntropy(), txf.training.TokenCrossEntropy(class_weight={2: 9.0})):
        with pytest.raises(
            ValueError, match=r"`class_weight` of `fit` must be left out .* TokenCrossEntropy\(class_weight=\.\.\.\)"
        ):
            train(tagger(loss))
    keras_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metric = tagger(keras_loss, weighted_metrics=[txf.training.TokenAccuracy()])
    with pytest.raises(ValueError, match="`class_weight` of `fit` must be left out"):
        metric.fit(TARGETS, TARGETS, class_weight={2: 9.0}, verbose=0)


def test_class_weights_of_fit_for_one_target_a_row():
    model = keras.Sequential([keras.Input((), dtype="int32"), keras.layers.Embedding(V, V)])
    model.compile(keras.optimizers.SGD(0.0), txf.training.TokenCrossEntropy())
    targets = TARGETS[0]
    losses = token_losses(targets, model.get_weights()[0][targets])
    real = np.where(targets == 2, 9.0, 1.0)
    history = model.fit(targets, targets, batch_size=T, class_weight={2: 9.0}, verbose=0).history
    assert history["loss"] == pytest.approx([(losses * real).sum() / real.sum()], rel=1e-5)
    rows = tagger(txf.training.TokenCrossEntropy())  # weights of rows stay what they are
    expected = token_losses(logits=rows.get_weights()[0][TARGETS])
    real = weights(sample_weight=SEQUENCE_WEIGHTS)
    history = rows.fit(TARGETS, TARGETS, batch_size=B, sample_weight=SEQUENCE_WEIGHTS, verbose=0).history
    assert history["loss"] == pytest.approx([(expected * real).sum() / real.sum()], rel=1e-5)


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
    refused(
        lambda: txf.training.TokenCrossEntropy(class_weight={V: 2.0})(TARGETS, LOGITS),
        ["`class_weight`", f"{V}", f"{{{V}: 2.0}}"],
    )


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


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_equals_keras_where_nothing_is_padding(smoothing):
    ours = txf.training.TokenCrossEntropy(None, smoothing)(TARGETS, LOGITS)
    keras_loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing)
    theirs = keras_loss(np.eye(V, dtype="float32")[TARGETS], LOGITS)
    assert float(ours) == pytest.approx(float(theirs), rel=1e-5)


@pytest.mark.parametrize("scale", [1e-3, 100.0])
def test_sure_and_unsure_logits(scale):
    logits = scale * LOGITS  # probabilities of 1 less 1e-40, or all alike
    expected = np.average(token_losses(logits=logits - logits.max(-1, keepdims=True)), weights=weights())
    assert float(txf.training.TokenCrossEntropy()(TARGETS, logits)) == pytest.approx(expected, rel=1e-5)
    surest = logits.argmax(-1)
    expected = token_losses(surest, logits - logits.max(-1, keepdims=True)).mean()
    assert float(txf.training.TokenCrossEntropy(None)(surest, logits)) == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_a_long_sequence_weighs_as_much_as_it_has_tokens():
    loss = txf.training.TokenCrossEntropy()
    alone = [float(loss(TARGETS[row : row + 1], LOGITS[row : row + 1])) for row in range(B)]
    together = float(loss(TARGETS, LOGITS))
    assert together == pytest.approx(np.average(alone, weights=[5, 2, 1]), rel=1e-5)
    assert together != pytest.approx(np.mean(alone), rel=1e-3)


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


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_gradient_is_softmax_minus_target(smoothing):
    loss = txf.training.TokenCrossEntropy(label_smoothing=smoothing)
    slope = drawing.gradient(lambda logits: loss(TARGETS, logits), LOGITS)
    softmax = np.exp(LOGITS.astype("float64"))
    softmax /= softmax.sum(-1, keepdims=True)
    wanted = (1 - smoothing) * np.eye(V)[TARGETS] + smoothing / V
    expected = (softmax - wanted) * weights()[..., None] / weights().sum()
    np.testing.assert_allclose(slope, expected, atol=1e-6)


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
    real = weights()
    expected = (token_losses(logits=rounded) * real).sum() / real.sum()
    assert float(txf.training.TokenCrossEntropy()(TARGETS, ops.cast(LOGITS, dtype))) == pytest.approx(
        expected, rel=1e-5
    )


@pytest.mark.parametrize("target", [-1, V])
def test_a_target_outside_the_vocabulary_never_counts_as_another(target):
    targets = TARGETS.copy()
    targets[1, 1] = target
    loss = txf.training.TokenCrossEntropy()
    with pytest.raises(
        ValueError,
        match=f"`y_true` must hold ids from 0 to {V - 1}, or pad_id=0; received ids from {target} to {target}",
    ):
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


@pytest.mark.parametrize("sample_weight", [None, SEQUENCE_WEIGHTS, TOKEN_WEIGHTS], ids=["none", "(B,)", "(B, T)"])
@pytest.mark.parametrize("pad_id", [0, None])
def test_metrics_over_batches_equal_the_whole(pad_id, sample_weight):
    real = weights(pad_id, sample_weight)
    hits = LOGITS.argmax(-1) == TARGETS
    expected = {
        txf.training.TokenAccuracy: (hits * real).sum() / real.sum(),
        txf.training.Perplexity: math.exp((token_losses() * real).sum() / real.sum()),
    }
    for cls, value in expected.items():
        metric = cls(pad_id=pad_id)
        for rows in (slice(0, 1), slice(1, 3)):  # batches of unequal sizes
            part = None if sample_weight is None else sample_weight[rows]
            metric.update_state(TARGETS[rows], LOGITS[rows], part)
        assert float(metric.result()) == pytest.approx(value, rel=1e-5)
        metric.reset_state()
        metric.update_state(TARGETS[:1], LOGITS[:1])
        alone = cls(pad_id=pad_id)
        assert float(metric.result()) == pytest.approx(float(alone(TARGETS[:1], LOGITS[:1])), rel=1e-6)


@pytest.mark.parametrize("pad_id", [0, -100])
def test_metrics_weigh_tokens_alike_over_batches_of_other_lengths(pad_id):
    draw = np.random.default_rng(0)
    targets = [np.where((ids := draw.integers(0, V, (4, length))) == 0, pad_id, ids) for length in (3, 9, 27)]
    logits = [draw.normal(size=(*ids.shape, V)).astype("float32") for ids in targets]
    metrics = txf.training.TokenAccuracy(pad_id), txf.training.Perplexity(pad_id)
    for pair in zip(targets, logits):
        for metric in metrics:
            metric.update_state(*pair)
    ids, scores = np.concatenate([x.ravel() for x in targets]), np.concatenate([x.reshape(-1, V) for x in logits])
    ids, scores = ids[ids != pad_id], scores[ids != pad_id].astype("float64")
    losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(ids)), ids]
    assert float(metrics[0].result()) == pytest.approx((scores.argmax(1) == ids).mean(), rel=1e-5)
    assert float(metrics[1].result()) == pytest.approx(math.exp(losses.mean()), rel=1e-5)


def test_accuracy_counts_hits():
    logits = np.eye(V)[np.array([[3, 1, 0, 2, 4], [5, 1, 0, 0, 0], [1, 0, 0, 0, 0]])]
    assert float(txf.training.TokenAccuracy()(TARGETS, logits)) == pytest.approx(6 / 8)
    assert float(txf.training.TokenAccuracy(pad_id=None)(TARGETS, logits)) == pytest.approx(13 / 15)


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
