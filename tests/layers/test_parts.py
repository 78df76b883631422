"""User layers as a block's attention, position, feed-forward and norm: training, copies, errors."""

import drawing
import keras
import numpy as np
import pytest
from user_layers import Bottleneck, Center, DifferentialAttention, LogDistance, SquaredReLU, UnitLength

import keras_txf as txf

X, IDS = drawing.normal(2, 5, 8), np.array([[5, 3, 8, 1, 0, 0], [7, 2, 4, 9, 6, 10]], "int32")
PARTS = {
    "attention": lambda: {"attention": DifferentialAttention(2)},
    "feed_forward": lambda: {"feed_forward": SquaredReLU(6)},
    "without build": lambda: {"feed_forward": Bottleneck(3, 8)},
    "sequential": lambda: {"feed_forward": keras.Sequential([keras.layers.Dense(6, "relu"), keras.layers.Dense(8)])},
    "norm": lambda: {"norm": Center()},
    "ours": lambda: {"attention": causal(position="alibi"), "norm": "rms"},
    "all": lambda: {"attention": DifferentialAttention(2), "feed_forward": SquaredReLU(6), "norm": Center(),
                    "norm_placement": "sandwich"},
}  # fmt: skip


def causal(num_heads=4, **options):
    return txf.layers.MultiHeadSelfAttention(num_heads, causal=True, **options)


def heads(parts):
    return {} if "attention" in parts else {"num_heads": 2}


def generator(name):
    parts = PARTS[name]()
    model = txf.models.decoder_generator(11, num_layers=2, dim=8, **heads(parts), **parts)
    return drawing.randomize(model, seed=3)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("block", [txf.layers.EncoderBlock, txf.layers.DecoderBlock])
def test_a_block_uses_the_layer_itself(block, name):
    parts = PARTS[name]()
    layer = block(**heads(parts), **parts)
    assert layer(X).shape == X.shape
    assert all(getattr(layer, part) is parts[part] for part in ("attention", "feed_forward") if part in parts)


@pytest.mark.long
@pytest.mark.parametrize("name", PARTS)
def test_blocks_have_separate_weights_that_files_keep(name, tmp_path):
    model = generator(name)
    paths = [weight.path for weight in model.weights]
    assert len(set(paths)) == len(paths)
    first, second = ([w for w in model.weights if w.path.startswith(f"decoder_{i}/")] for i in range(2))
    assert [w.path.partition("/")[2] for w in first] == [w.path.partition("/")[2] for w in second] and first
    known = {f"{part}{norm}" for part in ("attention", "feed_forward") for norm in ("", "_norm", "_post_norm")}
    assert {w.path.split("/")[1] for w in first} <= known
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    drawing.assert_same(again(IDS), model(IDS))
    if name != "sequential":  # Keras does not restore the paths of a Sequential
        assert [weight.path for weight in again.weights] == paths


def test_copies_of_a_seeded_layer_have_different_initial_weights():
    attention = causal(2, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
    models = [txf.models.decoder_generator(11, num_layers=2, dim=8, attention=attention) for _ in range(2)]
    blocks = [[model.get_layer(f"decoder_{i}") for i in range(2)] for model in models]
    kernels = np.array([[drawing.array(block.attention.query.kernel) for block in pair] for pair in blocks])
    assert np.abs(kernels[0, 0] - kernels[0, 1]).max() > 0.1
    np.testing.assert_array_equal(kernels[0], kernels[1])


def test_a_position_layer_is_shared_trained_saved_and_decodes(tmp_path, uncompiled):
    """Keras builds this one at its first call: the model has its weights nevertheless."""
    parts = {"num_heads": 2, "pad_id": None, "position": LogDistance(2, name="log_distance")}
    model = drawing.randomize(txf.models.decoder_generator(11, num_layers=2, dim=8, **parts), seed=3)
    assert [w.path for w in model.weights if "factors" in w.path] == ["decoder_0/attention/log_distance/factors"]
    layers = [model.get_layer(f"decoder_{i}").attention.position_layer for i in range(2)]
    assert layers[0] is layers[1]
    found = IDS
    for _ in range(2):
        best = drawing.array(model(found))[:, -1].argmax(-1)
        found = np.concatenate([found, best[:, None].astype("int32")], axis=1)
    np.testing.assert_array_equal(model.generate(IDS, max_new_tokens=2), found)
    before = layers[0].get_weights()[0]
    model.compile("sgd", txf.training.TokenCrossEntropy(), run_eagerly=True)
    model.train_on_batch(IDS[:, :-1], IDS[:, 1:])
    assert np.abs(layers[0].get_weights()[0] - before).min() > 0
    model.save(tmp_path / "model.keras")
    drawing.assert_same(keras.saving.load_model(tmp_path / "model.keras")(IDS), model(IDS))


def test_a_list_gives_one_layer_to_a_block():
    """The other blocks have the defaults of the builder. Builders of images have other defaults than blocks."""
    part = SquaredReLU(6)
    model = txf.models.encoder(11, 3, 8, 2, feed_forward=[None, part, None], intermediate_dim=5)
    kinds = [type(model.get_layer(f"encoder_{i}").feed_forward).__name__ for i in range(3)]
    assert kinds == ["FeedForward", "SquaredReLU", "FeedForward"]
    assert model.get_layer("encoder_2").feed_forward.intermediate.units == 5
    model = txf.models.image_encoder(8, 4, 2, 8, 2, feed_forward=[part, None])
    assert model.get_layer("encoder_1").feed_forward.activation == "gelu"
    with pytest.raises(ValueError, match="`activation` does not go with a layer as `feed_forward`"):
        txf.models.image_encoder(8, 4, 2, 8, 2, feed_forward=[part, SquaredReLU(7)], activation="tanh")


def test_a_norm_without_masking_keeps_the_mask(tmp_path):
    """The mask reaches the cross-attention, and comes back from files. Keras' warning would be an error here."""
    options = {"norm": UnitLength(), "norm_placement": "pre", "embedding_norm": True}
    pair = drawing.randomize(txf.models.encoder_decoder(11, 11, 1, 8, 2, **options), seed=4)
    pair.save(tmp_path / "pair.keras")
    target = np.array([[1, 4, 5]])
    for model in (pair, keras.saving.load_model(tmp_path / "pair.keras")):
        padded, alone = (model({"source_ids": ids, "target_ids": target}) for ids in (IDS[:1], IDS[:1, :4]))
        drawing.assert_same(padded, alone, 1e-4)
        assert {"encoder_norm", "encoder_embedding_norm", "decoder_norm"} <= {layer.name for layer in model.layers}


@pytest.mark.slow
def test_all_builders_take_parts():
    parts = {"feed_forward": SquaredReLU(6), "norm": Center()}
    sizes = dict(num_layers=1, dim=8, num_heads=2, **parts)
    models = txf.models
    for model in (
        models.encoder(11, **sizes), models.encoder_classifier(11, 3, **sizes), models.token_classifier(11, 3, **sizes),
        models.masked_language_model(11, **sizes), models.decoder(11, **sizes), models.decoder_generator(11, **sizes),
        models.encoder_decoder(11, 11, **sizes), models.image_encoder(6, 2, **sizes),
        models.image_classifier(6, 2, 3, **sizes),
    ):  # fmt: skip
        blocks = [layer for layer in model.layers if hasattr(layer, "feed_forward")]
        assert blocks and all(isinstance(block.feed_forward, SquaredReLU) for block in blocks)
    own = models.encoder_decoder(11, 11, 1, 8, 2, decoder_options={"attention": DifferentialAttention(2)})
    assert isinstance(own.get_layer("decoder_0").attention, DifferentialAttention)
    assert own.generate([[5, 6]], 3).shape == (1, 3)


LAYERS = {"attention": DifferentialAttention, "feed_forward": SquaredReLU, "norm": lambda _: Center()}
REPLACED = [
    ("attention", "num_heads", 2), ("attention", "window", 3), ("attention", "position", "rotary"),
    ("attention", "head_dim", 4), ("feed_forward", "intermediate_dim", 5), ("feed_forward", "gated", True),
    ("feed_forward", "activation", "gelu"), ("norm", "norm_epsilon", 0.5),
]  # fmt: skip


@pytest.mark.parametrize("part, option, value", REPLACED)
def test_an_option_that_a_layer_replaces_raises_value_error(part, option, value):
    for block in (txf.layers.EncoderBlock, txf.layers.DecoderBlock):
        options = {**heads(part), part: LAYERS[part](2), option: value}
        with pytest.raises(ValueError, match=f"`{option}` does not go with a layer as `{part}`"):
            block(**options)


encoder, decoder, pair = txf.layers.EncoderBlock, txf.layers.DecoderBlock, txf.models.encoder_decoder
two_sides = {"encoder_options": {"num_heads": 2}, "decoder_options": {"attention": DifferentialAttention(2)}}


@pytest.mark.parametrize("make, words", [
    (lambda: encoder(2, attention="mine"), "`attention` must be"),
    (lambda: encoder(2, feed_forward="mine"), "`feed_forward` must be"),
    (lambda: encoder(2, norm=3), "`norm` must be"),
    (lambda: encoder(), "`num_heads` must be given"),
    (lambda: decoder(attention=txf.layers.MultiHeadSelfAttention(2)), "`attention` must have causal=True"),
    (lambda: pair(11, 11, 1, 8, 2, attention=[causal()]), "`attention` must be given for one side"),
    (lambda: pair(11, 11, 1, 8, **two_sides), "`num_heads` must be given, unless .* as `cross_attention`"),
    (lambda: encoder(attention=DifferentialAttention(2))(X, segment_ids=np.zeros((2, 5), "int32")),
     "`segment_ids` must be an argument of the `call` of the layer"),
    (lambda: encoder(2, feed_forward=keras.layers.Dense(5))(X), "`feed_forward` must return the width .* 8; .* 5"),
    (lambda: encoder(2, feed_forward=keras.layers.Dense(1))(X), "which returns 1"),
    (lambda: encoder(attention=keras.layers.Dense(5))(X), "`attention` must return the width of the block, 8"),
    (lambda: encoder(2, feed_forward=keras.layers.LSTM(8))(X), "`feed_forward` must return a vector for each token"),
    (lambda: encoder(attention=keras.layers.MultiHeadAttention(2, 4))(X), "is called on 1 tensor; .*'query', 'value'"),
])  # fmt: skip
def test_a_layer_that_does_not_fit_raises_value_error(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def not_registered(x):
    return x * x


class WithoutConfig(keras.layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.units = units


@pytest.mark.parametrize("layer, words", [
    (keras.Sequential([keras.layers.Dense(8, not_registered)]), ["Sequential", "Could not locate function 'not_regis"]),
    (WithoutConfig(8), ["WithoutConfig 'without_config'", "unexpected keyword argument 'trainable'"]),
])  # fmt: skip
def test_a_layer_that_cannot_be_copied_raises_value_error(layer, words):
    with pytest.raises(ValueError) as error:
        txf.models.encoder(11, num_layers=2, dim=8, num_heads=2, feed_forward=layer)
    words = ["`feed_forward`", "from_config(get_config())", "register_keras_serializable", *words]
    assert all(word in str(error.value) for word in words) and "\n" not in str(error.value), str(error.value)


def test_a_decoder_block_takes_a_layer_as_cross_attention(tmp_path):
    cross = txf.layers.CrossAttention(4, qk_norm=True)
    block = txf.layers.DecoderBlock(2, cross_attention=cross, name="block")
    assert block.cross_attention_layer is cross and block.cross_attention is True
    x, context = keras.Input((None, 8)), keras.Input((None, 6))
    model = keras.Model([x, context], block(x, context))
    arrays = [np.random.default_rng(i).normal(size=(2, 3 + i, 8 - 2 * i)).astype("float32") for i in range(2)]
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    drawing.assert_same(again(arrays), drawing.array(model(arrays)))
    assert again.get_layer("block").cross_attention_layer.qk_norm and len(again.weights) == len(model.weights)


def test_cross_attention_of_a_builder_applies_to_its_decoder(tmp_path, uncompiled):
    options = {"cross_attention": [txf.layers.CrossAttention(4, qk_norm=True), None]}
    model = txf.models.encoder_decoder(11, 11, 2, 8, 2, start_id=1, decoder_options=options)
    drawing.randomize(model, seed=3).save(tmp_path / "model.keras")
    again, source = keras.saving.load_model(tmp_path / "model.keras"), np.array([[5, 6, 7], [3, 2, 0]])
    assert [again.get_layer(f"decoder_{i}").cross_attention_layer.num_heads for i in range(2)] == [4, 2]
    ids = again.generate(source, 4)
    logits = drawing.array(model({"source_ids": source, "target_ids": np.insert(ids, 0, 1, axis=1)[:, :4]}))
    assert (logits[..., 1:].argmax(-1) + 1 == ids[:, :4]).all()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("outer, inner", [("mixed_bfloat16", "float32"), ("float32", "mixed_bfloat16")])
@pytest.mark.parametrize("make", [DifferentialAttention, causal], ids=["theirs", "ours"])
def test_an_attention_of_another_dtype_than_its_block_decodes(outer, inner, make, uncompiled):
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    x = txf.layers.PositionalEmbedding(11, 8, dtype=outer)(ids)
    x = txf.layers.DecoderBlock(attention=make(2, dtype=inner), dtype=outer)(x)
    model = txf.models.generative(keras.Model(ids, keras.layers.Dense(11)(x)))
    assert model.generate([[5, 3], [7]], max_new_tokens=2).shape == (2, 4)


def test_copies_of_a_layer_have_the_dtype_of_the_builder():
    other = SquaredReLU(6, dtype="float16")
    parts = {"attention": DifferentialAttention(2), "feed_forward": other}
    block = txf.models.decoder_generator(11, 2, 8, **parts, dtype="mixed_bfloat16").get_layer("decoder_1")
    assert block.attention.dtype_policy.name == "mixed_bfloat16"
    assert block.feed_forward.dtype_policy.name == "float16"  # the layer's own, which is not Keras' default
    table = txf.layers.RelativeBias(2)  # shared and not copied
    txf.models.encoder(11, 2, 8, 2, position=table, dtype="bfloat16")
    assert table.embeddings.dtype == "bfloat16"
