"""Losses and metrics of models with a large vocabulary: without whole logits they equal those with whole logits.

Legend: B batch, T length, V vocabulary.
"""

import gc

import drawing
import keras
import numpy as np
import pytest
from keras import ops

import keras_txf as txf
from keras_txf.backend import tensors
from keras_txf.ops import chunked_logits, logit_factors

V = 11
SIZES = dict(num_layers=1, dim=8, num_heads=2, dropout=0.0)
IDS = np.random.default_rng(0).integers(1, V, (5, 7)).astype("int32")
IDS[1, 4:] = 0
X, Y = IDS[:, :-1], IDS[:, 1:]
BACKEND = keras.backend.backend()


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Chunks of three tokens, from the smallest vocabulary on."""
    monkeypatch.setattr(logit_factors, "LARGE", 1)
    monkeypatch.setattr(chunked_logits, "CHUNK_SIZE", 3 * V)


@pytest.fixture
def chunked(monkeypatch):
    """Counts the losses that are computed in chunks."""
    from keras_txf.training import contrastive, losses

    calls, original = [], losses.weighted_cross_entropy
    for module in (losses, contrastive):
        monkeypatch.setattr(module, "weighted_cross_entropy", lambda *args: calls.append(args) or original(*args))
    return calls


def plainly(monkeypatch):
    monkeypatch.setattr(logit_factors, "LARGE", 10**9)


def generator(**options):
    return drawing.randomize(txf.models.decoder_generator(V, **{**SIZES, **options}))


def frozen():
    model = generator()
    model.get_layer("embedding").trainable = False
    return model


def with_lora():
    model = generator(tie_embeddings=False)
    model.get_layer("logits").enable_lora(2)
    return drawing.randomize(model)


ADJUSTED = dict(logit_adjustment=txf.layers.LogitAdjustment(0.3, use_bias=True, soft_cap=2.0))
CAPPED = dict(logit_adjustment=txf.layers.LogitAdjustment(soft_cap=2.0))
MODELS = {
    "tied": generator,
    "adjusted": lambda: generator(**ADJUSTED),
    "untied": lambda: generator(tie_embeddings=False),
    "untied, adjusted": lambda: generator(tie_embeddings=False, **CAPPED),
    "narrow table": lambda: generator(embedding=txf.layers.PositionalEmbedding(V, 8, token_dim=4)),
    "frozen table": frozen,
    "LoRA on the head": with_lora,
    "cloned": lambda: drawing.randomize(keras.models.clone_model(generator(tie_embeddings=False))),
    "half precision": lambda: generator(dtype="mixed_bfloat16", **ADJUSTED),
    "masked language model": lambda: drawing.randomize(txf.models.masked_language_model(V, **SIZES)),
    "encoder and decoder": lambda: drawing.randomize(txf.models.encoder_decoder(V, V, **SIZES)),
}


def history(model, x=X, accumulated=None, **options):
    loss = txf.training.TokenCrossEntropy(label_smoothing=0.1, class_weight={3: 2.0})
    metrics = [txf.training.TokenAccuracy(), txf.training.Perplexity()]
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=accumulated)
    model.compile(optimizer, loss, metrics=metrics, **options)
    weights = np.random.default_rng(1).random(Y.shape).astype("float32")
    return model.fit(x, Y, sample_weight=weights, batch_size=3, epochs=2, shuffle=False, verbose=0).history


# The side of whole logits computes the same without compiling; of an encoder and decoder it rounds otherwise then.
EAGERLY = {"run_eagerly": True, "jit_compile": False} if BACKEND == "tensorflow" else {}
CASES = [(name, {}) for name in MODELS if name not in ("half precision", "encoder and decoder")] + [
    ("half precision", {"tolerance": 2e-2}),  # rounds as whole logits do
    ("encoder and decoder", {"x": {"source_ids": X, "target_ids": X}, "plain": {}}),
    ("tied", {"accumulated": 2, "plain": {}}),
    ("adjusted", {"plain": {}, "run_eagerly": True}),
    ("adjusted", {"plain": {}, "jit_compile": True}),
]
long = pytest.mark.long


@pytest.mark.parametrize("name, options", [CASES[0], *(pytest.param(*case, marks=long) for case in CASES[1:])])
def test_fit_gives_the_same_on_both_sides(name, options, monkeypatch, chunked):
    if BACKEND == "torch" and "jit_compile" in options:
        pytest.skip("PyTorch compiles with another compiler")
    options = {"plain": EAGERLY, "tolerance": 1e-5, **options}
    plain, tolerance = options.pop("plain"), options.pop("tolerance")
    model, other = MODELS[name](), MODELS[name]()
    found = history(model, **options)
    assert chunked
    chunked.clear()
    plainly(monkeypatch)
    expected = history(other, **{**options, **plain})
    assert not chunked
    assert found.keys() == expected.keys()
    for key in expected:
        np.testing.assert_allclose(found[key], expected[key], rtol=tolerance)
    for weight, wanted in zip(model.weights, other.weights):
        drawing.assert_same(weight, wanted, tolerance)
    if name == "tied":
        keras.backend.clear_session()
        gc.collect()
        assert not tensors._NOTES  # notes die with their tensors


@pytest.mark.drawn(4)
@pytest.mark.parametrize(("pad_id", "eagerly"), [(0, True), pytest.param(-100, False, marks=long)])
def test_two_draws_of_dropout_give_the_same(pad_id, eagerly, monkeypatch, chunked):
    x, y = np.concatenate([X[:3], X[:3]]), np.concatenate([Y[:3], Y[:3]])
    y = np.where(y == 0, pad_id, y)
    loss = txf.training.RDrop(pad_id, label_smoothing=0.1, class_weight={3: 2.0})

    def make():
        keras.utils.set_random_seed(7)  # of the model's dropout
        return generator(dropout=0.3, **ADJUSTED)

    def fit(model):
        model.compile(keras.optimizers.SGD(0.1), loss, run_eagerly=eagerly)
        weights = np.tile([1.0, 0.5, 2.0], 2)
        fitted = model.fit(x, y, sample_weight=weights, batch_size=6, epochs=2, shuffle=False, verbose=0)
        return fitted.history["loss"], [drawing.array(weight) for weight in model.weights]

    losses, found = fit(make())
    assert chunked
    chunked.clear()
    plainly(monkeypatch)
    expected_losses, expected = fit(make())
    assert not chunked
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    for weight, wanted in zip(found, expected):
        drawing.assert_same(weight, wanted, 1e-5)


def test_draws_of_other_targets_are_refused_and_in_a_graph_no_number(chunked):
    model = generator()
    x, y = np.concatenate([X[:2], X[:2]]), np.concatenate([Y[:2], Y[:2]])
    y[3, 1] += 1
    with pytest.raises(ValueError, match="`y_true` must hold each example twice"):
        txf.training.RDrop()(y, model(x))
    model.compile(loss=txf.training.RDrop())
    if BACKEND != "torch":  # which has no graph
        assert np.isnan(model.evaluate(x, y, verbose=0)) and chunked


@pytest.mark.parametrize("cls", [txf.training.TokenCrossEntropy, txf.training.RDrop])
def test_a_class_with_a_call_of_its_own_gets_whole_logits(cls, chunked):
    class Squared(cls):
        def call(self, y_true, y_pred):
            return ops.square(super().call(y_true, y_pred))

    logits, y = generator()(np.concatenate([X[:2], X[:2]])), np.concatenate([Y[:2], Y[:2]])
    drawing.assert_same(Squared()(y, logits), Squared()(y, drawing.array(logits)))
    assert not chunked


@long
def test_a_quantized_table_has_whole_logits(chunked):
    model = generator()
    model.quantize("int8")
    model.compile(loss=txf.training.TokenCrossEntropy())
    assert np.isfinite(model.evaluate(X, Y, verbose=0)) and not chunked


@pytest.mark.drawn(4)
@pytest.mark.parametrize("in_chunks", [False, True])
def test_accumulated_steps_weigh_tokens_as_one_large_batch_does(in_chunks, monkeypatch, chunked):
    if not in_chunks:
        plainly(monkeypatch)

    def train(batch_size, tokens_per_batch, steps=None):
        model = generator()
        loss = txf.training.TokenCrossEntropy(tokens_per_batch=tokens_per_batch)
        model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=steps), loss)
        history = model.fit(X[:4], Y[:4], batch_size=batch_size, shuffle=False, verbose=0).history
        return [*history["loss"], *model.get_weights()]

    large = train(4, None)
    for found, expected in zip(train(2, np.count_nonzero(Y[:4]) / 2, 2), large, strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    assert bool(chunked) == in_chunks


def test_evaluate_and_batches(monkeypatch, chunked):
    def evaluate(model, **options):
        model.compile("sgd", txf.training.TokenCrossEntropy(), metrics=[txf.training.TokenAccuracy()], **options)
        return *model.evaluate(X, Y, verbose=0), *model.test_on_batch(X, Y)

    model = generator()
    found = evaluate(model)
    assert chunked
    plainly(monkeypatch)
    np.testing.assert_allclose(found, evaluate(model, run_eagerly=BACKEND == "tensorflow"), rtol=1e-5)


def test_only_the_very_tensor_counts(chunked):
    logits, loss = generator()(X), txf.training.TokenCrossEntropy()
    assert logit_factors.logit_factors(logits) is not None
    drawing.assert_same(loss(Y, logits), loss(Y, drawing.array(logits)))
    assert len(chunked) == 1
    for changed in (logits * 2, logits[:, :-1], ops.reshape(logits, (-1, V))):
        assert logit_factors.logit_factors(changed) is None
    drawing.assert_same(loss(Y, logits * 2), loss(Y, 2 * drawing.array(logits)))
    assert len(chunked) == 1


@pytest.mark.skipif(BACKEND != "torch", reason="tensors of the others never change")
def test_a_change_in_place_is_not_ignored(chunked):
    import torch

    with torch.no_grad():
        logits = generator()(X)
        logits.mul_(2)
    loss = txf.training.TokenCrossEntropy()
    assert float(loss(Y, logits)) == pytest.approx(float(loss(Y, drawing.array(logits))), rel=1e-5)
    assert not chunked


@pytest.mark.skipif(BACKEND != "torch", reason="the others have no such mode")
@pytest.mark.parametrize("name", ["adjusted", "untied"])
def test_logits_without_a_gradient_give_none_to_the_table(name, chunked):
    import torch

    model, loss = MODELS[name](), txf.training.TokenCrossEntropy()
    with torch.no_grad():
        logits = model(X)
    found = loss(Y, logits)
    assert chunked and not found.requires_grad
    assert float(found) == pytest.approx(float(loss(Y, drawing.array(logits))), rel=1e-5)
    assert loss(Y, model(X)).requires_grad
    with torch.no_grad():
        logits = model(X)
        model.set_weights([0 * value for value in model.get_weights()])  # a change of the table is still seen
    assert float(loss(Y, logits)) == pytest.approx(float(loss(Y, drawing.array(logits))), rel=1e-5)


def test_a_small_vocabulary_notes_nothing(monkeypatch):
    monkeypatch.undo()
    assert logit_factors.LARGE > V
    assert logit_factors.logit_factors(generator()(X)) is None


def test_a_note_is_of_one_tensor_though_another_has_its_id(monkeypatch):
    class Slots:
        __slots__ = ("__weakref__",)

    first, other = Slots(), Slots()
    tensors.set_note(first, "note")
    assert tensors.find_note(first) == "note" and tensors.find_note(other) is None
    monkeypatch.setitem(tensors._NOTES, id(other), tensors._NOTES[id(first)])
    assert tensors.find_note(other) is None
    monkeypatch.undo()
    del first
    gc.collect()
    assert not tensors._NOTES
