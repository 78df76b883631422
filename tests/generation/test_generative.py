"""Models wired by hand generate the tokens of a loop that reads all tokens again, or an error names the layer."""

import drawing
import keras
import numpy as np
import pytest
from keras import ops
from naive import NEW, PROMPTS, VOCABULARY, ids_input, logits_of, naive
from user_layers import Bottleneck, DifferentialAttention, SquaredReLU

import keras_txf as txf
from keras_txf.generation import Beam, Contrastive, Sampling

SOURCE = np.array([[5, 6, 7, 9], [3, 2, 8, 1]], "int32")
FEATURES = np.random.default_rng(0).normal(size=(2, 3, 6)).astype("float32")
layers = txf.layers


def between_blocks():
    """Layers of the user's between blocks."""
    ids = ids_input()
    x = layers.PositionalEmbedding(VOCABULARY, 8, pad_id=None)(ids)
    for i in range(2):
        x = layers.DecoderBlock(2, intermediate_dim=12, name=f"block_{i}")(x)
        x = keras.layers.Dense(8, activation="tanh", name=f"between_{i}")(x)
        x = x * 1.5 + 0.1
    return keras.Model(ids, keras.layers.Dense(VOCABULARY, name="mine")(x)), {}


def bare_attention():
    """Attention layers outside of any block, one of them used twice."""
    ids = ids_input()
    x = layers.PositionalEmbedding(VOCABULARY, 8, pad_id=None)(ids)
    attention = layers.MultiHeadSelfAttention(2, causal=True, position="rotary", name="attention")
    for i in range(2):
        x = keras.layers.Add()([x, attention(keras.layers.LayerNormalization(name=f"norm_{i}")(x))])
    x = layers.EncoderBlock(2, causal=True, window=3)(x)
    return keras.Model(ids, keras.layers.Dense(VOCABULARY)(x)), {}


def depths_of_an_encoder():
    """Decoder blocks that attend to different depths of an encoder, which is a model within the model."""
    encoder = txf.models.encoder(VOCABULARY, num_layers=2, dim=8, num_heads=2, return_hidden_states=True)
    source, target = ids_input("source_ids"), ids_input("target_ids")
    depths = encoder(source)
    x = layers.PositionalEmbedding(VOCABULARY, 8, pad_id=None)(target)
    for i in range(2):
        x = layers.DecoderBlock(2, intermediate_dim=12, cross_attention=True, name=f"block_{i}")(
            x, depths[f"hidden_states_{i + 1}"]
        )
    logits = keras.layers.Dense(VOCABULARY)(x)
    return keras.Model({"source_ids": source, "target_ids": target}, logits), {"source_ids": SOURCE}


def attention_of_keras():
    """Keras' own attention to a source with a Keras mask, which that layer removes from its inputs."""
    source, target = ids_input("source_ids"), ids_input("target_ids")
    context, x = (keras.layers.Embedding(VOCABULARY, 8, mask_zero=True)(ids) for ids in (source, target))
    for _ in range(2):
        x = keras.layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
    x = keras.layers.Add()([x, keras.layers.MultiHeadAttention(2, 4)(x, context)])
    logits = keras.layers.Dense(VOCABULARY)(x)
    padded = SOURCE * np.array([[1, 1, 1, 1], [1, 1, 0, 0]], "int32")
    model = keras.Model({"source_ids": source, "target_ids": target}, logits, name="of_keras")
    return model, {"source_ids": padded}


def two_contexts():
    """Projected features of an image as context, and a second encoder of another length."""
    ids, source = ids_input(), ids_input("source_ids")
    features = keras.Input((None, 6), name="features")
    encoder = txf.models.encoder(VOCABULARY, num_layers=1, dim=8, num_heads=2)
    x = layers.PositionalEmbedding(VOCABULARY, 8, pad_id=None)(ids)
    x = layers.DecoderBlock(2, cross_attention=True, name="sees")(x, keras.layers.Dense(8)(features))
    x = x + layers.CrossAttention(2, name="reads")(x, encoder(source))
    x = x + ops.mean(features, axis=1, keepdims=True)[..., :1]
    inputs = {"token_ids": ids, "features": features, "source_ids": source}
    return keras.Model(inputs, keras.layers.Dense(VOCABULARY)(x)), {"features": FEATURES, "source_ids": SOURCE}


def keras_embedding():
    """A Keras embedding, an attention of the user's, and logits under a name of a dict."""
    ids = ids_input("words")
    x = keras.layers.Embedding(VOCABULARY, 8)(ids)
    x = x + DifferentialAttention(2)(x)
    x = x + SquaredReLU(6)(x)
    x = layers.DecoderBlock(attention=DifferentialAttention(2), feed_forward=Bottleneck(3, 8))(x)
    outputs = {"logits": keras.layers.Dense(VOCABULARY)(x), "pooled": keras.layers.GlobalAveragePooling1D()(x)}
    return keras.Model(ids, outputs), {}


def two_encoders():
    """Encoders whose layers have the same names, with padding: their outputs side by side, and one read first."""
    ids = ids_input()
    sources = {name: ids_input(name) for name in ("left_ids", "right_ids")}
    depths = [txf.models.encoder(VOCABULARY, 2, 8, 2, name=f"encode_{x}")(ids) for x, ids in sources.items()]
    x = layers.PositionalEmbedding(VOCABULARY, 8, pad_id=None)(ids)
    x = layers.DecoderBlock(2, cross_attention=True)(x, depths[0])
    x = layers.DecoderBlock(2, cross_attention=True)(x, keras.layers.Concatenate(axis=1)(depths))
    others = {"left_ids": np.array([[5, 6, 7, 0], [3, 0, 0, 0]]), "right_ids": np.array([[9, 2], [8, 0]])}
    return keras.Model({"token_ids": ids, **sources}, keras.layers.Dense(VOCABULARY)(x)), others


def ensemble():
    """The mean of two language models whose layers have the same names, with tied tables and a mask each."""
    ids = ids_input()
    sizes = dict(
        vocab_size=VOCABULARY,
        num_layers=1,
        dim=8,
        num_heads=2,
        logit_adjustment=txf.layers.LogitAdjustment(use_bias=True),
    )
    members = [txf.models.decoder_generator(**sizes, norm=norm, name=f"of_{norm}") for norm in ("layer", "rms")]
    return keras.Model(ids, keras.layers.Average()([member(ids) for member in members]), name="ensemble"), {}


@keras.saving.register_keras_serializable(package="tests")
class Hidden(keras.layers.Layer):
    """Gives vectors a mask that hides the token 7."""

    supports_masking, position_wise = True, True

    def call(self, inputs):
        return inputs[0] * 1.0

    def compute_mask(self, inputs, previous_mask=None):
        return inputs[1] != 7


def earlier_layer():
    """Attention to the output of an earlier layer, alone and in a block (YOCO), with a mask that both read."""
    ids = ids_input()
    x = layers.PositionalEmbedding(VOCABULARY, 8, pad_id=None)(ids)
    early, x = Hidden()([layers.DecoderBlock(2)(x), ids]), keras.layers.Dense(8)(x)
    x = x + layers.CrossAttention(2, causal=True)(x, early)
    x = layers.DecoderBlock(2, cross_attention=layers.CrossAttention(2, causal=True), window=3)(x, early)
    return keras.Model(ids, keras.layers.Dense(VOCABULARY)(x)), {}


def given_positions():
    """Positions that the graph counts: every second token at an embedding, the tokens 7 in attention."""
    ids = ids_input()
    halves = (ops.cumsum(ops.ones_like(ids), axis=1) - 1) // 2
    x = layers.PositionalEmbedding(VOCABULARY, 8, "learned", max_length=9, pad_id=None)(ids, positions=halves)
    sevens = ops.cumsum(ops.equal(ids, 7), axis=-1)
    x = layers.DecoderBlock(2, position="rotary", window=3)(x, positions=sevens)
    return keras.Model(ids, keras.layers.Dense(VOCABULARY)(x)), {}


@keras.saving.register_keras_serializable(package="tests")
class Doubled(layers.MultiHeadSelfAttention):
    """A subclass that passes the arguments of its call on, and does not name `cache`."""

    def call(self, inputs, **kwargs):
        return 2 * super().call(inputs, **kwargs)


def subclass_of_ours():
    """An attention whose `call` takes `**kwargs`, alone and in a block."""
    ids = ids_input()
    x = layers.PositionalEmbedding(VOCABULARY, 8, pad_id=None)(ids)
    x = x + Doubled(2, causal=True, position="rotary")(x)
    x = layers.DecoderBlock(attention=Doubled(2, causal=True, window=3))(x)
    return keras.Model(ids, keras.layers.Dense(VOCABULARY)(x)), {}


WIRED = [
    between_blocks, bare_attention, depths_of_an_encoder, attention_of_keras, two_contexts, keras_embedding,
    two_encoders, ensemble, subclass_of_ours, earlier_layer, given_positions,
]  # fmt: skip


def make(wire):
    model, others = wire()
    return txf.models.generative(drawing.randomize(model, seed=5)), others


def start(model, others):
    """The prompts, and how `generate` is called on them."""
    if "target_ids" in getattr(model.input, "keys", dict)():
        return [[1], [1]], lambda *args, **kwargs: model.generate(others["source_ids"], *args, **kwargs)
    return PROMPTS, lambda *args, **kwargs: model.generate(PROMPTS, *args, inputs=others or None, **kwargs)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("wire", WIRED)
def test_greedy_tokens_are_those_of_the_naive_loop(wire):
    model, others = make(wire)
    prompts, generate = start(model, others)
    np.testing.assert_array_equal(generate(NEW)[:, -NEW:], naive(model, prompts, others))


@pytest.mark.slow
@pytest.mark.parametrize("wire", WIRED)
def test_streams_and_scores_of_a_model_from_a_file_are_those_of_the_model(tmp_path, wire):
    model, others = make(wire)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    prompts, generate = start(again, others)
    columns = list(generate(NEW, stream=True))
    np.testing.assert_array_equal(np.stack(columns, axis=1), naive(model, prompts, others))
    for sampler in (Sampling(0.9), Beam(3), Contrastive(3)):
        result = generate(NEW, sampler, seed=3, return_scores=True)
        new = result.ids[:, -NEW:]
        for count in range(NEW):
            logits = logits_of(model, np.concatenate([prompts, new[:, :count]], axis=1), others)
            if model.name in ("ensemble", "of_keras") and not isinstance(sampler, Beam):
                logits[:, 0] = -np.inf
            expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            chosen = np.take_along_axis(expected, new[:, count : count + 1], axis=1)[:, 0]
            drawing.assert_same(result.log_probs[:, count], chosen, 1e-3)


@pytest.mark.drawn(3)
def test_prompts_of_unequal_lengths_are_padded_on_the_left():
    model, _ = make(bare_attention)
    prompts = [[5, 3, 8, 1], [7]]
    alone = [model.generate([prompt], NEW, padded=False)[0] for prompt in prompts]
    assert model.generate(prompts, NEW, padded=False) == alone


@pytest.mark.slow
def test_a_decoder_generates_from_a_depth_of_the_encoder():
    encoder = txf.models.encoder(VOCABULARY, 2, 8, 2, return_hidden_states=True)
    decoder = drawing.randomize(txf.models.decoder(VOCABULARY, 2, 8, 2, context_mask=True), seed=2)
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], bool)
    depth = encoder(SOURCE * mask)["hidden_states_1"]
    inputs = {"context": drawing.array(depth), "context_mask": mask}
    tokens = decoder.generate([[1], [1]], NEW, inputs=inputs)
    np.testing.assert_array_equal(tokens[:, 1:], naive(decoder, [[1], [1]], inputs))
    with pytest.raises(ValueError, match="`inputs` must have no Keras mask"):
        txf.models.decoder(VOCABULARY, 2, 8, 2).generate([[1], [1]], 2, inputs={"context": depth})


@pytest.mark.parametrize("softmax", [
    lambda x: keras.layers.Dense(VOCABULARY, "softmax")(x), lambda x: ops.softmax(x), keras.layers.Softmax(),
    lambda x: keras.layers.Activation("softmax", dtype="float32")(x),
    lambda x: keras.layers.TimeDistributed(keras.layers.Dense(VOCABULARY, "softmax"))(x),
    lambda x: ops.cast(keras.layers.Dense(VOCABULARY, activation=lambda y: ops.softmax(y))(x), "float32"),
    lambda x: keras.layers.Average()([keras.layers.Dense(VOCABULARY, "softmax")(x) for _ in range(2)]),
    lambda x: keras.layers.Dense(VOCABULARY, "sigmoid")(x),
    lambda x: keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(VOCABULARY, "softmax")])(x),
])  # fmt: skip
def test_a_model_of_probabilities_is_refused(softmax):
    ids = ids_input()
    x = layers.DecoderBlock(2)(layers.PositionalEmbedding(VOCABULARY, 8, pad_id=None)(ids))
    model = keras.Model(ids, softmax(x))
    for wrong in (model, keras.Model(ids, model(ids)), keras.Model([ids], [model(ids)])):
        with pytest.raises(ValueError, match="`model` must return logits, .* it returns probabilities"):
            txf.models.generative(wrong)


def test_logarithms_of_probabilities_are_logits():
    ids = ids_input()
    x = layers.DecoderBlock(2)(layers.PositionalEmbedding(VOCABULARY, 8, pad_id=None)(ids))
    logits = keras.layers.Dense(VOCABULARY)(x)
    models = [txf.models.generative(keras.Model(ids, end(logits))) for end in (lambda x: x, ops.log_softmax)]
    found = [model.generate([[1, 2, 3]], NEW, return_scores=True) for model in models]
    np.testing.assert_array_equal(found[0].ids, found[1].ids)
    np.testing.assert_allclose(found[0].log_probs, found[1].log_probs, atol=1e-5)


def test_layers_that_do_not_reach_the_logits_may_mix_positions():
    ids = ids_input()
    x = layers.DecoderBlock(2)(layers.PositionalEmbedding(VOCABULARY, 8, pad_id=None)(ids))
    outputs = {"logits": keras.layers.Dense(VOCABULARY)(x), "summary": keras.layers.LSTM(8)(x)}
    model = txf.models.generative(keras.Model(ids, outputs))
    assert model.generate([[5, 6]], 3).shape == (1, 5) and set(model(np.array([[5, 6]]))) == set(outputs)


def test_models_that_cannot_decode_raise_errors():
    ids, other = ids_input("first"), ids_input("second")
    x = layers.PositionalEmbedding(VOCABULARY, 8)(ids)
    vectors = keras.Input((None, 8), name="vectors")
    attention = layers.MultiHeadSelfAttention(2, causal=True, position="alibi", name="biased")
    biased = keras.Model(ids, keras.layers.Dense(VOCABULARY)(attention(x, positions=ids)))
    placed = layers.PositionalEmbedding(VOCABULARY, 8, name="e")(ids, positions=ops.cast(vectors[..., 0], "int32"))
    placed = keras.Model([ids, vectors], keras.layers.Dense(VOCABULARY)(placed))
    new = keras.Model(ids, keras.layers.Dense(VOCABULARY)(layers.CrossAttention(2, name="looks")(x, x)))
    constant = layers.DecoderBlock(2, cross_attention=layers.CrossAttention(2, causal=True), name="aligned")(x, vectors)
    constant = keras.Model([ids, vectors], keras.layers.Dense(VOCABULARY)(constant))
    pair = keras.Model([ids, other], keras.layers.Dense(VOCABULARY)(x + keras.layers.Embedding(VOCABULARY, 8)(other)))
    keep = keras.Input((None,), dtype="bool", name="keep")
    masked = layers.DecoderBlock(2, name="masked")(x, mask=keep)
    of_keras = keras.layers.MultiHeadAttention(2, 4, name="of_keras")(x, x, query_mask=keep, use_causal_mask=True)
    joined = keras.layers.Add(name="joined")([x, vectors])
    masked, of_keras, joined = (
        keras.Model([ids, x], keras.layers.Dense(VOCABULARY)(y))
        for x, y in ((keep, masked), (keep, of_keras), (vectors, joined))
    )
    rows = [
        (txf.models.encoder_classifier(VOCABULARY, 3, 1, 8, 2), "`model` must return logits"),
        (txf.models.encoder(VOCABULARY, 1, 8, 2), "layer 'encoder_0' has causal=False"),
        (txf.models.encoder_decoder(VOCABULARY, VOCABULARY, 1, 8, 2, packed=True), "packed=False"),
        (new, "'looks' attends to a context made of the new tokens, which needs `CrossAttention\\(causal=True\\)`"),
        (constant, "context of 'aligned', which has causal=True, of the new tokens"),
        (biased, "'biased' .*: `positions` goes with `cache` only if `position` rotates queries and keys"),
        (placed, "`model` must compute the `positions` of 'e' from the new tokens"),
        (masked, "`model` must compute the `mask` of 'masked' from the new tokens"),
        (of_keras, "`model` must not pass `query_mask` on to 'of_keras'"),
        (joined, "its layer 'joined' \\(Add\\) cannot be called on one token at a time"),
        (pair, "`model` must have one input of token ids.*: int32 \\(None, None\\)'"),
        ("a name", "`model` must be a functional keras.Model, .* received 'a name'"),
    ]
    for build in (txf.models.generative, txf.models.prefill_model, txf.models.step_model):
        for model, message in rows if build is txf.models.generative else rows[:3]:
            with pytest.raises(ValueError, match=message):
                build(model)


def two_inputs(source_name, target_name):
    other, ids = ids_input(source_name), ids_input(target_name)
    x = layers.PositionalEmbedding(VOCABULARY, 8)(ids)
    x = layers.DecoderBlock(2, cross_attention=True)(x, keras.layers.Embedding(VOCABULARY, 8)(other))
    return other, ids, keras.layers.Dense(VOCABULARY)(x)


@drawing.not_on_jax
@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
def test_ids_are_found_by_keys_and_by_tokens():
    """Not by the names of the tensors: here these are the names of the other input."""
    other, ids, logits = two_inputs("target_ids", "source_ids")
    model = txf.models.generative(keras.Model({"source_ids": other, "target_ids": ids}, logits))
    expected = model.generate([[5, 6, 7]], NEW, start_id=1)
    named = txf.models.generative(keras.Model({"first": other, "second": ids}, logits), tokens="second")
    np.testing.assert_array_equal(named.generate([[5, 6, 7]], NEW, start_id=1), expected)


@drawing.not_on_jax
@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
def test_source_and_target_of_any_name_are_found_by_the_length_of_the_logits(tmp_path):
    english, spanish, logits = two_inputs("english", "spanish")
    spanish_first = keras.Model([spanish, english], logits)
    ids, new = np.full((1, 1), 1), []
    for _ in range(NEW):
        new.append(drawing.array(spanish_first([ids, np.array([[5, 6, 7]])]))[:, -1].argmax(-1))
        ids = np.concatenate([ids, new[-1][:, None]], axis=1)
    for case, inputs in enumerate([[english, spanish], [spanish, english], {"b": spanish, "a": english}]):
        file = tmp_path / f"{case}.keras"
        txf.models.generative(keras.Model(inputs, logits)).save(file)
        found = keras.saving.load_model(file).generate([[5, 6, 7]], NEW, start_id=1)
        np.testing.assert_array_equal(found[0], np.concatenate(new))


@pytest.mark.drawn(2)
@pytest.mark.parametrize("names, lengths", [
    (("token_ids", "answer"), (None, None)), (("target_ids", "a"), (None, None)), (("b", "a"), (3, None)),
    (("b", "a"), (None, 3 + NEW)),
])  # fmt: skip
def test_names_and_fixed_lengths_do_not_decide_what_the_target_is(names, lengths):
    source, target = (keras.Input((n,), dtype="int32", name=name) for name, n in zip(names, lengths))
    context = layers.EncoderBlock(2)(layers.PositionalEmbedding(VOCABULARY, 8)(source))
    x = layers.PositionalEmbedding(VOCABULARY, 8, pad_id=None)(target)
    x = keras.layers.Dense(VOCABULARY)(layers.DecoderBlock(2, cross_attention=True)(x, context))
    model = drawing.randomize(keras.Model([source, target], x), seed=4)
    ids = np.full((1, 1), 1)
    for _ in range(NEW):
        padded = np.pad(ids, ((0, 0), (0, (lengths[1] or ids.shape[1]) - ids.shape[1])))
        logits = drawing.array(model([np.array([[5, 6, 7]]), padded]))[:, ids.shape[1] - 1]
        ids = np.concatenate([ids, logits.argmax(-1)[:, None]], axis=1)
    np.testing.assert_array_equal(txf.models.generative(model).generate([[5, 6, 7]], NEW, start_id=1), ids[:, 1:])
    if lengths[0]:
        with pytest.raises(ValueError, match="`source_ids` must have at most the model's 3 tokens; received 4"):
            txf.models.generative(model).generate([[5, 6, 7, 8]], NEW, start_id=1)


@drawing.not_on_jax
def test_a_sequential_model_of_keras_own_layers_generates():
    make = keras.layers
    recurrent = [make.GRU(8, return_sequences=True), make.Conv1D(8, 3, padding="causal", dilation_rate=2)]
    for first in [], [ids_input()]:  # not built, and built but never called
        model = keras.Sequential([*first, make.Embedding(VOCABULARY, 8), *recurrent, make.Dense(VOCABULARY)])
        found = txf.models.generative(model).generate(PROMPTS, NEW)
        np.testing.assert_array_equal(found[:, -NEW:], naive(model, PROMPTS, {}))


def test_other_inputs_are_named():
    model, others = make(two_contexts)
    for inputs in (None, {"features": FEATURES}, {**others, "more": FEATURES}, [FEATURES]):
        with pytest.raises(ValueError, match="`inputs` must be"):
            model.generate(PROMPTS, 2, inputs=inputs)
    with pytest.raises(ValueError, match="one row for each of the 1 prompts"):
        model.generate(PROMPTS[:1], 2, inputs=others)
