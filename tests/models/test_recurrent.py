"""recurrent_encoder_decoder against PyTorch's LSTM and GRU, the papers' attention, and a naive loop of `generate`."""

import concurrent.futures
import itertools

import keras
import numpy as np
import pytest
from keras import ops

import keras_txf as txf
from keras_txf.layers.recurrent_attention import RecurrentAttention

SOURCES = np.array([[4, 8, 2, 10, 3, 0, 0], [0, 7, 6, 5, 9, 2, 1]])  # padding on either side
KINDS = list(itertools.product(("lstm", "gru"), (None, "additive", "multiplicative"), (False, True)))


def build(cell="lstm", attention=None, bidirectional=False, num_layers=2, seed=0, **options):
    """A model with weights so large that its answers vary."""
    model = txf.models.recurrent_encoder_decoder(
        11, 12, num_layers, 8, cell, attention, bidirectional, dropout=0.3, **options
    )
    random = np.random.default_rng(seed)
    for weight in model.trainable_variables:
        weight.assign(random.normal(size=weight.shape, scale=0.7))
    return model


def logits(model, sources, targets):
    return ops.convert_to_numpy(model({"source_ids": sources, "target_ids": targets}))


def log_softmax(x):
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


@pytest.mark.drawn(3)
@pytest.mark.parametrize("cell, attention, bidirectional, num_layers", [
    ("lstm", "additive", False, 1),
    *(pytest.param(*kind, 1 + kind[2], marks=pytest.mark.slow) for kind in KINDS),
    pytest.param("gru", "additive", False, 3, marks=pytest.mark.slow),
])  # fmt: skip
def test_generate_equals_the_naive_loop(cell, attention, bidirectional, num_layers, uncompiled):
    model = build(cell, attention, bidirectional, num_layers, tie_embeddings=cell == "lstm")
    ids = np.ones((2, 1), "int32")
    for _ in range(7):
        ids = np.append(ids, 1 + logits(model, SOURCES, ids)[:, -1:, 1:].argmax(axis=-1), axis=1)  # 0 is padding
    np.testing.assert_array_equal(model.generate(SOURCES, 7), ids[:, 1:])
    if attention == "additive":
        tokens = np.stack(list(model.generate(SOURCES, 7, stream=True)), axis=1)
        np.testing.assert_array_equal(tokens, ids[:, 1:])


@pytest.mark.drawn(3)
@pytest.mark.slow
@pytest.mark.parametrize("cell, attention", [("lstm", None), ("lstm", "additive"), ("gru", "multiplicative")])
def test_beams_equal_brute_force(cell, attention, uncompiled):
    """With as many beams as there are prefixes the best of all answers is found."""
    model = build(cell, attention, num_layers=1)
    answers = np.array(list(itertools.product(range(1, 12), repeat=2)))  # 0 is padding
    found = model.generate(
        SOURCES, 2, txf.generation.Beam(12, length_penalty=0.0), num_return_sequences=3, return_scores=True
    )
    for row, source in enumerate(SOURCES):
        inputs = np.insert(answers[:, :1], 0, 1, axis=1)
        log_probs = log_softmax(logits(model, np.repeat(source[None], len(answers), axis=0), inputs))
        totals = np.take_along_axis(log_probs, answers[..., None], axis=-1)[..., 0].sum(axis=1)
        best = np.argsort(-totals)[:3]
        np.testing.assert_array_equal(found.ids[row], answers[best])
        np.testing.assert_allclose(found.scores[row], totals[best], atol=1e-5)


@pytest.mark.drawn(3)
@pytest.mark.slow
@pytest.mark.parametrize("attention", [None, "additive", "multiplicative"])
def test_log_probabilities_of_longer_beams_and_draws_equal_the_models(attention, uncompiled):
    model = build("lstm", attention, True)
    # Padding is never chosen: draws are of the softmax without it, and a search leaves it out after the softmax.
    for sampler, of_padding in ((txf.generation.Beam(3), 0.0), (txf.generation.Sampling(), -np.inf)):
        found = model.generate(SOURCES, 6, sampler, num_return_sequences=2, return_scores=True, seed=1)
        for row, source in enumerate(SOURCES):
            inputs = np.insert(found.ids[row], 0, 1, axis=1)[:, :-1]
            expected = logits(model, np.repeat(source[None], 2, axis=0), inputs)
            expected = log_softmax(expected + np.where(np.arange(12) == 0, of_padding, 0.0))
            expected = np.take_along_axis(expected, found.ids[row][..., None], axis=-1)[..., 0]
            np.testing.assert_allclose(found.log_probs[row], expected, atol=2e-5)
    assert model.generate(SOURCES, 4, txf.generation.Contrastive()).shape == (2, 4)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(cell, x, states):
    """A step of Keras' LSTM in NumPy: x (B, width), states h and c (B, D)."""
    kernel, recurrent, bias = (np.float64(w) for w in cell)
    i, f, g, o = np.split(x @ kernel + states[0] @ recurrent + bias, 4, axis=-1)
    c = sigmoid(f) * states[1] + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


@pytest.mark.parametrize("kind", ["additive", "multiplicative"])
def test_attention_equals_the_papers(kind):
    """The decoder, step by step in float64: Bahdanau's v tanh(W s + U h) in the loop, Luong's h W h after it."""
    random = np.random.default_rng(3)
    x, states = random.normal(size=(2, 5, 6)), random.normal(size=(2, 16))
    context, mask = random.normal(size=(2, 7, 9)), np.arange(7) < np.array([[7], [4]])
    layer = txf.layers.RecurrentDecoder(8, 1, "lstm", kind)
    arrays = [array.astype("float32") for array in (x, states, context)]
    layer(*arrays)
    for weight in layer.trainable_variables:
        weight.assign(random.normal(size=weight.shape, scale=0.5))
    output, scores = layer(*arrays, context_mask=mask, return_attention_scores=True)

    weights = {weight.path.partition("/")[2]: np.float64(ops.convert_to_numpy(weight)) for weight in layer.weights}

    def kernel(name):
        return weights[f"cross_attention/{name}/kernel"]

    def attend(state):
        keys = context @ kernel("key")
        if kind == "additive":
            energies = (np.tanh((state @ kernel("query"))[:, None] + keys) @ kernel("score"))[..., 0]
        else:
            energies = np.einsum("bd,bsd->bs", state, keys)
        energies = np.exp(np.where(mask, energies, -np.inf))
        share = energies / energies.sum(axis=1, keepdims=True)
        return np.einsum("bs,bsd->bd", share, context), share

    cell = [value for path, value in weights.items() if path.startswith("layer_0")]
    h, c = np.split(states, 2, axis=-1)
    expected, shares = [], []
    for t in range(5):
        if kind == "additive":
            found, share = attend(h)
            h, c = lstm(cell, np.concatenate([x[:, t], found], axis=-1), (h, c))
        else:
            h, c = lstm(cell, x[:, t], (h, c))
            found, share = attend(h)
        both = np.concatenate([h, found], axis=-1)
        expected.append(np.tanh(both @ weights["readout/kernel"] + weights["readout/bias"]))
        shares.append(share)
    np.testing.assert_allclose(ops.convert_to_numpy(output), np.stack(expected, axis=1), atol=1e-5)
    np.testing.assert_allclose(ops.convert_to_numpy(scores)[:, 0], np.stack(shares, axis=1), atol=1e-5)


def test_a_source_that_is_all_padding_gives_finite_outputs():
    attention = RecurrentAttention("additive")
    query, context = np.ones((1, 2, 4), "float32"), np.ones((1, 3, 4), "float32")
    _, scores = attention(query, context, context, context_mask=np.zeros((1, 3), "bool"))
    np.testing.assert_allclose(ops.convert_to_numpy(scores), 1 / 3, atol=1e-6)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("cell, attention, bidirectional", KINDS)
def test_padding_changes_nothing(cell, attention, bidirectional):
    model = build(cell, attention, bidirectional)
    targets = np.array([[1, 5, 6], [1, 7, 2]])
    expected = logits(model, SOURCES, targets)
    np.testing.assert_allclose(logits(model, np.pad(SOURCES, ((0, 0), (2, 1))), targets), expected, atol=1e-5)
    padded = logits(model, SOURCES, np.pad(targets, ((0, 0), (2, 1))))
    np.testing.assert_allclose(padded[:, 2:5], expected, atol=1e-5)


@pytest.mark.parametrize("attention", ["additive", "multiplicative"])
def test_scores_are_those_of_a_model_built_to_return_them(attention):
    model, targets = build("gru", attention), np.array([[1, 5, 6], [1, 7, 0]])
    twin = build("gru", attention, return_attention_scores=True)
    expected = twin({"source_ids": SOURCES, "target_ids": targets})["decoder_cross_attention_scores_0"]
    found = txf.visualize.attention_scores(model, {"source_ids": SOURCES, "target_ids": targets})
    assert list(found) == ["decoder/cross_attention"]
    np.testing.assert_allclose(found["decoder/cross_attention"], ops.convert_to_numpy(expected), atol=1e-6)
    assert not found["decoder/cross_attention"][0, ..., 5:].any()
    padded = {"source_ids": SOURCES, "target_ids": np.pad(targets, ((0, 0), (2, 0)))}
    scores = txf.visualize.attention_scores(model, padded)["decoder/cross_attention"]
    np.testing.assert_allclose(scores[:, :, 2:], found["decoder/cross_attention"], atol=1e-5)


@pytest.mark.parametrize("options, message", [
    ({"cell": "rnn"}, "`cell` must be"), ({"attention": "dot"}, "`attention` must be"),
    ({"bidirectional": True, "dim": 9}, "`dim` must be even for `bidirectional`"),
    ({"share_embeddings": True}, "`share_embeddings` needs vocabularies of one size"),
    ({"return_attention_scores": True}, "`return_attention_scores` needs `attention`"),
    ({"dropout": 1.5}, "`dropout` must be"), ({"pad_id": 11.5}, "`pad_id` must be"),
])  # fmt: skip
def test_bad_options(options, message):
    arguments = {"source_vocab_size": 11, "target_vocab_size": 12, "num_layers": 1, "dim": 8, **options}
    with pytest.raises(ValueError, match=message):
        txf.models.recurrent_encoder_decoder(**arguments)


def test_bad_calls():
    for attention, shapes, message in (
        (None, [(2, 3, 6), (2, 15)], "`states` must be 16 wide, .* received shape \\(2, 15\\)"),
        (None, [(2, 3), (2, 16)], "`inputs` must have 3 axes; received shape \\(2, 3\\)"),
        (None, [(2, 3, 6), (2, 16), (2, 5, 4)], "`context` .* attention=None; received one of shape"),
        ("additive", [(2, 3, 6), (2, 16)], "`context` .* attention=additive; received None"),
    ):
        with pytest.raises(ValueError, match=message):
            txf.layers.RecurrentDecoder(8, attention=attention)(*(np.ones(shape, "float32") for shape in shapes))


def test_threads_do_not_read_each_others_source():
    model = build("gru", "additive", num_layers=1)
    sources = [np.array([[3 + i, 5, 2 + i]]) for i in range(3)]
    target = np.array([[1, 4, 6]])
    expected = [logits(model, source, target) for source in sources]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda i: logits(model, sources[i % 3], target), range(6)))
    for i, answer in enumerate(found):
        np.testing.assert_allclose(answer, expected[i % 3], atol=1e-5)


def test_bfloat16_and_sizes_of_numpy():
    model = txf.models.recurrent_encoder_decoder(
        11, 11, np.int64(1), np.int64(8), attention="multiplicative", dtype="bfloat16"
    )
    # A source of one token warns of nothing.
    assert logits(model, SOURCES[:, :1], np.array([[1], [1]])).shape == (2, 1, 11)


X, STATES, CONTEXT = np.zeros((2, 3, 5), "float32"), np.zeros((2, 8), "float32"), np.zeros((2, 4, 6), "float32")


@pytest.mark.parametrize("attention, arguments, words", [
    (None, {"context_mask": np.ones((2, 4), bool)}, "`context_mask` was passed"),
    (None, {"return_attention_scores": True}, "`return_attention_scores` needs `attention`"),
    ("additive", {"context": CONTEXT[:1]}, "`context` must have shape"),
    ("additive", {"context": CONTEXT, "inputs_mask": np.ones((2, 1), bool)}, "`inputs_mask` must have shape"),
    ("multiplicative", {"context": CONTEXT, "states": STATES[:1]}, "`states` must have shape"),
])  # fmt: skip
def test_arguments_of_other_shapes_raise_value_error(attention, arguments, words):
    layer = txf.layers.RecurrentDecoder(4, attention=attention)
    layer(X, STATES, *([] if attention is None else [CONTEXT]))
    arguments = {"inputs": X, "states": STATES, **arguments}
    with pytest.raises(ValueError, match=words):
        layer(**arguments)
    arrays = {name: value for name, value in arguments.items() if hasattr(value, "shape")}
    symbols = {name: keras.KerasTensor(value.shape, str(value.dtype)) for name, value in arrays.items()}
    with pytest.raises(ValueError, match=words):
        layer(**{**arguments, **symbols})
