"""Models wired by hand generate the tokens of a loop that reads all tokens again, or an error names the layer."""

import drawing
import keras
import numpy as np
import pytest
from keras import ops
from user_layers import Bottleneck, DifferentialAttention, SquaredReLU

import keras_txf as txf
from keras_txf.generation import Beam, Contrastive, Sampling

VOCABULARY, NEW = 11, 5
PROMPTS = [[5, 3, 8], [7, 2, 4]]
SOURCE = np.array([[5, 6, 7, 9], [3, 2, 8, 1]], "int32")
FEATURES = np.random.default_rng(0).normal(size=(2, 3, 6)).astype("float32")
layers = txf.layers


def ids_input(name="token_ids"):
    return keras.Input((None,), dtype="int32", name=name)


def between_blocks():
    """Layers of the user's between blocks."""
    ids = ids_input()
    x = layers.PositionalEmbedding(VOCABULARY, 8, pad_id=None)(ids)
    for i in range(2):
        x = layers.DecoderBlock(2, 12, name=f"block_{i}")(x)
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
        x = layers.DecoderBlock(2, 12, cross_attention=True, name=f"block_{i}")(x, depths[f"hidden_states_{i + 1}"])
    logits = keras.layers.Dense(VOCABULARY)(x)
    return keras.Model({"source_ids": source, "target_ids": target}, logits), {"source_ids": SOURCE}


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
    sizes = dict(vocab_size=VOCABULARY, num_layers=1, dim=8, num_heads=2, logit_bias=True)
    members = [txf.models.decoder_generator(**sizes, norm=norm, name=f"of_{norm}") for norm in ("layer", "rms")]
    return keras.Model(ids, keras.layers.Average()([member(ids) for member in members]), name="ensemble"), {}


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
    between_blocks, bare_attention, depths_of_an_encoder, two_contexts, keras_embedding, two_encoders, ensemble,
    subclass_of_ours,
]  # fmt: skip


def make(wire):
    model, others = wire()
    return txf.models.generative(drawing.randomize(model, seed=5)), others


def start(model, others):
    """The prompts, and how `generate` is called on them."""
    if "target_ids" in getattr(model.input, "keys", dict)():
        return [[1], [1]], lambda *args, **kwargs: model.generate(others["source_ids"], *args, **kwargs)
    return PROMPTS, lambda *args, **kwargs: model.generate(PROMPTS, *args, inputs=others or None, **kwargs)


def logits_of(model, ids, others):
    ids = np.array(ids, "int32")
    if isinstance(model.input, dict):
        ids = {("target_ids" if "target_ids" in model.input else "token_ids"): ids, **others}
    outputs = model(ids)
    return drawing.array(outputs["logits"] if isinstance(outputs, dict) else outputs)[:, -1]


def naive(model, prompts, others):
    ids = prompts
    for _ in range(NEW):
        logits = logits_of(model, ids, others)
        if model.name == "ensemble":
            logits[:, 0] = -np.inf  # padding is never chosen
        ids = np.concatenate([ids, logits.argmax(-1)[:, None]], axis=1)
    return ids[:, -NEW:]


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
            if model.name == "ensemble" and not isinstance(sampler, Beam):
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


class TwoTokens(keras.layers.Layer):
    """Mixes a token with the one before it: no attention that decodes."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, x):
        return x + ops.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]


class MeanOfContext(keras.layers.Layer):
    """An attention to a context that takes no cache."""

    def call(self, x, context):
        return x + ops.mean(context, axis=1, keepdims=True)


MIXING = {
    "mine": (lambda x: TwoTokens(name="mine")(x), "mine"),
    "average": (lambda x: x - ops.mean(x, axis=1, keepdims=True), "mean"),
    "sees all": (lambda x: layers.EncoderBlock(2, name="sees_all")(x), "sees_all"),
    "in a block": (lambda x: layers.DecoderBlock(2, feed_forward=TwoTokens(name="within"))(x), "within"),
}  # fmt: skip


@pytest.mark.parametrize("case", MIXING)
def test_a_layer_that_mixes_positions_is_an_error_that_names_it(case):
    mix, name = MIXING[case]
    ids = ids_input()
    x = layers.DecoderBlock(2)(layers.PositionalEmbedding(VOCABULARY, 8, pad_id=None)(ids))
    model = keras.Model(ids, keras.layers.Dense(VOCABULARY)(mix(x)))
    with pytest.raises(ValueError, match=f"layer .*'{name}"):
        txf.models.generative(model)


def test_a_block_whose_attention_takes_no_cache_is_named():
    model = txf.models.decoder_generator(VOCABULARY, 1, 8, attention=TwoTokens())
    with pytest.raises(ValueError, match="'decoder_0' .*: `cache` must be an argument of the `call` of .*'attention'"):
        model.generate([[5]], 2)
    context = keras.Input((None, 8), name="context")
    ids = ids_input()
    x = layers.PositionalEmbedding(VOCABULARY, 8)(ids)
    x = layers.DecoderBlock(2, cross_attention=MeanOfContext(), name="looks")(x, context)
    message = "'looks' .*MeanOfContext.* has no attribute 'project_context'; see `txf.layers.Cache`"
    with pytest.raises(ValueError, match=message):
        txf.models.generative(keras.Model([ids, context], keras.layers.Dense(VOCABULARY)(x)))


def test_what_does_not_reach_the_logits_may_mix():
    ids = ids_input()
    x = layers.DecoderBlock(2)(layers.PositionalEmbedding(VOCABULARY, 8, pad_id=None)(ids))
    outputs = {"logits": keras.layers.Dense(VOCABULARY)(x), "summary": keras.layers.LSTM(8)(x)}
    model = txf.models.generative(keras.Model(ids, outputs))
    assert model.generate([[5, 6]], 3).shape == (1, 5) and set(model(np.array([[5, 6]]))) == set(outputs)


def test_models_that_cannot_decode_are_refused():
    ids, other = ids_input("first"), ids_input("second")
    x = layers.PositionalEmbedding(VOCABULARY, 8)(ids)
    pair = keras.Model([ids, other], keras.layers.Dense(VOCABULARY)(x + keras.layers.Embedding(VOCABULARY, 8)(other)))
    rows = [
        (txf.models.encoder_classifier(VOCABULARY, 3, 1, 8, 2), "`model` must return logits"),
        (txf.models.encoder(VOCABULARY, 1, 8, 2), "layer 'encoder_0' has causal=False"),
        (txf.models.encoder_decoder(VOCABULARY, VOCABULARY, 1, 8, 2, packed=True), "packed=False"),
        (pair, "`model` must have one input of token ids"),
        ("a name", "`model` must be a functional keras.Model, .* received 'a name'"),
    ]
    for build in (txf.models.generative, txf.models.prefill_model, txf.models.step_model):
        for model, message in rows if build is txf.models.generative else rows[:3]:
            with pytest.raises(ValueError, match=message):
                build(model)


def test_other_inputs_are_named():
    model, others = make(two_contexts)
    for inputs in (None, {"features": FEATURES}, {**others, "more": FEATURES}, [FEATURES]):
        with pytest.raises(ValueError, match="`inputs` must be"):
            model.generate(PROMPTS, 2, inputs=inputs)
    with pytest.raises(ValueError, match="one row for each of the 1 prompts"):
        model.generate(PROMPTS[:1], 2, inputs=others)


def with_prefix(wire, position, length=3):
    """A model of 20 tokens that reads `length` vectors (B, length, 6) before the tokens."""
    ids, image = keras.Input((None,), dtype="int32", name="token_ids"), keras.Input((length, 6), name="image")
    x = txf.layers.PositionalEmbedding(20, 8, position_encoding=None if position else "sinusoidal", pad_id=None)(ids)
    x = wire["join"]([keras.layers.Dense(8)(image), x])
    for window in (None, 4):
        x = txf.layers.DecoderBlock(2, position=position, norm_placement="pre", window=window)(x)
    model = keras.Model({"token_ids": ids, "image": image}, keras.layers.Dense(20)(wire["cut"](x)))
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape) * 0.5)
    return model


PREFIXES = {
    "layers": {"join": lambda parts: keras.layers.Concatenate(axis=1)(parts),
               "cut": lambda x: keras.layers.Cropping1D((3, 0))(x)},
    "operations": {"join": lambda parts: ops.concatenate(parts, axis=1), "cut": lambda x: x[:, 3:]},
    "uncut": {"join": lambda parts: keras.layers.Concatenate(axis=1)(parts), "cut": lambda x: x},
}  # fmt: skip


@pytest.mark.slow
@drawing.not_on_jax
@pytest.mark.parametrize("wiring, position", [("layers", None), ("operations", "rotary"), ("uncut", "alibi")])
def test_a_prefix_of_vectors_is_read_before_the_tokens(tmp_path, wiring, position):
    model = with_prefix(PREFIXES[wiring], position)
    txf.models.generative(model).save(tmp_path / "model.keras")
    generator = keras.saving.load_model(tmp_path / "model.keras")
    image, prompts = np.random.default_rng(1).normal(size=(2, 3, 6)).astype("float32"), [[1, 2, 3, 4], [5]]
    found = generator.generate(prompts, 4, inputs={"image": image}, padded=False)
    for row, prompt in enumerate(prompts):
        ids = list(prompt)
        for _ in range(4):
            logits = model({"token_ids": np.array([ids]), "image": image[row : row + 1]})
            ids.append(int(drawing.array(logits)[0, -1].argmax()))
        assert found[row] == ids
    beam = {"sampler": Beam(2), "padded": False}
    together = generator.generate(prompts, 3, inputs={"image": image}, **beam)
    assert together[1:] == generator.generate(prompts[1:], 3, inputs={"image": image[1:]}, **beam)
    function, ids = generator.make_generate_function(4), np.array([[1, 2, 3, 4], [0, 0, 0, 5]])
    tokens, _, _ = function(ids, np.array([4, 1]), np.array([3, 0]), {"image": image})
    assert drawing.array(tokens).tolist() == [row[len(prompt) :] for row, prompt in zip(found, prompts)]
    alone = generator.generate(start_id=7, max_new_tokens=2, inputs={"image": image})
    np.testing.assert_array_equal(alone, generator.generate([[7], [7]], 2, inputs={"image": image}))


@drawing.not_on_jax
def test_processors_see_no_prefix():
    seen = []

    def look(logits, history):
        seen.append(history.tokens)
        return logits

    generator = txf.models.generative(with_prefix(PREFIXES["layers"], "rotary"))
    generator.generate([[1, 2]], 1, inputs={"image": np.zeros((1, 3, 6), "float32")}, processors=[look])
    tokens = drawing.array(seen[0])[0]
    assert sorted(tokens[tokens >= 0]) == [1, 2]


def test_a_prefix_of_unknown_length_is_refused():
    with pytest.raises(ValueError, match="length of the prefix"):
        txf.models.generative(with_prefix(PREFIXES["layers"], "rotary", length=None))


@drawing.not_on_jax
@pytest.mark.parametrize("is_cut", [True, False])
def test_a_prefix_may_be_before_some_blocks_alone(is_cut):
    ids, image = keras.Input((None,), dtype="int32", name="token_ids"), keras.Input((3, 8), name="image")
    x = txf.layers.PositionalEmbedding(20, 8, pad_id=None)(ids)
    first, second = txf.layers.DecoderBlock(2, name="first"), txf.layers.DecoderBlock(2, name="second")
    if is_cut:  # between the blocks, or joined there
        x = second(first(ops.concatenate([image, x], axis=1))[:, 3:])
    else:
        x = second(ops.concatenate([image, first(x)], axis=1))
    model = drawing.randomize(keras.Model({"token_ids": ids, "image": image}, keras.layers.Dense(20)(x)))
    vectors = np.random.default_rng(1).normal(size=(2, 3, 8)).astype("float32")
    found = txf.models.generative(model).generate(PROMPTS, NEW, inputs={"image": vectors})
    np.testing.assert_array_equal(found[:, -NEW:], naive(model, PROMPTS, {"image": vectors}))
