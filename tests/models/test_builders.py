"""The builders: sizes, names, options, and how their models go together."""

import inspect

import drawing
import keras
import numpy as np
import pytest
from block_options import BLOCK_OPTIONS
from cases import assert_same, numpy

import keras_txf as txf

IDS = np.array([[5, 6, 7, 9, 0, 0], [3, 2, 1, 4, 8, 10]], "int32")
TARGET_IDS = np.array([[1, 12, 3, 0], [1, 5, 6, 7]], "int32")
PAIR = {"source_ids": IDS, "target_ids": TARGET_IDS}

# Every builder with 2 layers of dim 12 and 3 heads, and what goes in.
BUILDERS = {
    "encoder": (lambda **options: txf.models.encoder(11, 2, 12, 3, **options), IDS),
    "encoder_classifier": (lambda **options: txf.models.encoder_classifier(11, 4, 2, 12, 3, **options), IDS),
    "decoder_generator": (lambda **options: txf.models.decoder_generator(11, 2, 12, 3, **options), IDS),
    "decoder": (lambda **options: txf.models.decoder(13, 2, 12, 3, context_dim=10, **options),
                {"target_ids": TARGET_IDS, "context": np.ones((2, 6, 10), "float32")}),
    "encoder_decoder": (lambda **options: txf.models.encoder_decoder(11, 13, 2, 12, 3, **options), PAIR),
}  # fmt: skip


def layers_of(model, kind):
    return [layer for layer in model.layers if isinstance(layer, kind)]


def blocks_of(model):
    return layers_of(model, (txf.layers.EncoderBlock, txf.layers.DecoderBlock))


def outputs_of(model, inputs):
    """The outputs by name, as NumPy."""
    return {name: numpy(output)[0] for name, output in model(inputs).items()}


@drawing.not_on_jax
def test_base_model_has_the_papers_size():
    vocab, dim, inner = 37000, 512, 2048
    attention, norm = 4 * (dim * dim + dim), 2 * dim
    feed_forward = dim * inner + inner + inner * dim + dim
    layer = attention + norm + feed_forward + norm + attention + norm + attention + norm + feed_forward + norm
    assert vocab * dim + 6 * layer == 63_082_496  # the paper rounds, and counts no biases in the attention: 65 million
    # One of six layers, for the others are alike, and a smaller vocabulary.
    assert txf.models.encoder_decoder(100, 100, 1, dim, 8).count_params() == 100 * dim + layer


@drawing.not_on_jax
@pytest.mark.parametrize("options, block, outside", [
    # Of each block, and outside the blocks: dim 12, heads of 4, 11 tokens, 2 layers.
    ({}, 4 * (12 * 12 + 12) + (12 * 48 + 48) + (48 * 12 + 12) + 2 * 24, 11 * 12),
    ({"use_bias": False}, 4 * 12 * 12 + 2 * 12 * 48 + 2 * 12, 11 * 12),
    ({"num_key_value_heads": 1, "use_bias": False}, (2 * 12 + 2 * 4) * 12 + 2 * 12 * 48 + 2 * 12, 11 * 12),
    ({"head_dim": 6, "use_bias": False}, 4 * 12 * 18 + 2 * 12 * 48 + 2 * 12, 11 * 12),
    ({"gated": True, "intermediate_dim": 14, "use_bias": False}, 4 * 12 * 12 + 3 * 12 * 14 + 2 * 12, 11 * 12),
    ({"norm_placement": "pre", "norm": "rms", "use_bias": False}, 4 * 12 * 12 + 2 * 12 * 48 + 24, 11 * 12 + 12),
    ({"norm_placement": "sandwich", "use_bias": False}, 4 * 12 * 12 + 2 * 12 * 48 + 4 * 12, 11 * 12 + 12),
    ({"norm_placement": "res_post", "use_bias": False}, 4 * 12 * 12 + 2 * 12 * 48 + 2 * 12, 11 * 12 + 12),
    ({"norm_placement": "pre", "residual": "parallel_one_norm", "use_bias": False}, 4 * 12 * 12 + 2 * 12 * 48 + 12,
     11 * 12 + 12),
    ({"position": "relative", "use_bias": False}, 4 * 12 * 12 + 2 * 12 * 48 + 2 * 12, 11 * 12 + 32 * 3),
    ({"position_encoding": "learned", "max_length": 9, "use_bias": False}, 4 * 144 + 2 * 576 + 24, 11 * 12 + 9 * 12),
    ({"tie_embeddings": False, "use_bias": False}, 4 * 12 * 12 + 2 * 12 * 48 + 2 * 12, 2 * 11 * 12),
])  # fmt: skip
def test_the_number_of_parameters_is_the_sum_of_the_layers(options, block, outside):
    assert txf.models.decoder_generator(11, 2, 12, 3, **options).count_params() == 2 * block + outside


def test_a_generator_may_have_a_head(uncompiled):
    options = dict(head="silu", logit_adjustment=txf.layers.LogitAdjustment(0.5))
    options["norm"] = keras.layers.LayerNormalization(epsilon=0.1, center=False)
    model = drawing.randomize(txf.models.decoder_generator(11, 1, 12, 3, norm_placement="pre", **options))
    ids = np.array([[5, 6, 7, 2]])
    hidden = drawing.array(keras.Model(model.input, model.get_layer("decoder_norm").output)(ids)).astype("float64")
    head, norm = model.get_layer("head"), model.get_layer("head_norm")
    assert norm.center is False
    x = hidden @ drawing.array(head.kernel) + drawing.array(head.bias)
    x = x / (1 + np.exp(-x))
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.1) * drawing.array(norm.gamma)
    logits = 0.5 * x @ drawing.array(model.get_layer("embedding").token.embeddings).T
    np.testing.assert_allclose(drawing.array(model(ids)), logits, atol=1e-4)
    answer = model.generate(ids, max_new_tokens=2, stop_ids=())
    for length in (4, 5):
        logits = drawing.array(model(answer[:, :length]))[0, -1]
        assert answer[0, length] == 1 + logits[1:].argmax()  # 0 is padding
    with pytest.raises(ValueError, match="`head` must return the width of the embedding, 12"):
        txf.models.decoder_generator(11, 1, 12, 3, head=keras.layers.Dense(8))


def test_both_sides_may_have_different_widths(uncompiled):
    options = dict(share_embeddings=False, encoder_options={"dim": 8, "num_heads": 2})
    model = drawing.randomize(txf.models.encoder_decoder(11, 13, 1, 12, 3, **options))
    assert model.get_layer("encoder_0").attention.query.units == 8
    assert model.get_layer("decoder_0").cross_attention_layer.key.kernel.shape == (8, 12)
    answers = model.generate([[5, 6, 7]], max_new_tokens=3, start_id=1, stop_ids=())
    target = np.concatenate([[[1]], answers], axis=1)
    logits = drawing.array(model({"source_ids": np.array([[5, 6, 7]]), "target_ids": target}))
    np.testing.assert_array_equal(1 + logits[0, :3, 1:].argmax(-1), answers[0])
    decoder = txf.models.encoder_decoder(11, 13, 1, 8, 2, decoder_options={"dim": 12, "num_heads": 3})
    assert decoder.get_layer("target_embedding").dim == 12 and decoder.get_layer("source_embedding").dim == 8
    with pytest.raises(ValueError, match="`share_embeddings` needs the same `dim` on both sides"):
        txf.models.encoder_decoder(11, 11, 1, 12, 3, decoder_options={"dim": 8, "num_heads": 2})
    with pytest.raises(ValueError, match="`dim` must be a positive integer"):
        txf.models.encoder_decoder(11, 13, 1, 12, 3, decoder_options={"dim": "8"})


@drawing.not_on_jax
def test_one_model_may_contain_two_models_of_one_builder():
    """Keras raises ValueError for layers of one name."""
    towers, inputs = [txf.models.encoder(11, 1, 8, 2) for _ in range(2)], keras.Input((None,), dtype="int32")
    model, ids = keras.Model(inputs, keras.layers.Average()([tower(inputs) for tower in towers])), np.array([[3, 5]])
    assert_same(numpy(model(ids)), [np.mean([numpy(tower(ids))[0] for tower in towers], axis=0)], 1e-5)
    assert txf.models.encoder(11, 1, 8, 2, name="mine").name == "mine"


def test_deeper_blocks_and_heads_are_named_by_number():
    model = txf.models.encoder_decoder(13, 13, 1, 12, 3, num_decoder_layers=2, tie_embeddings=False)
    names = {layer.name for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)}
    assert names == {"embedding", "encoder_dropout", "decoder_dropout", "encoder_0", "decoder_0", "decoder_1", "logits"}

    images = [{layer.name for layer in IMAGE_BUILDERS["image_classifier"]().layers[1:]} for _ in range(2)]
    assert images[0] == images[1]


# These do not go with the others: see "apart" among the contracts, and layers/test_stored_positions.py.
APART = {"attention", "feed_forward"}
OF_EMBEDDING = {"combine", "position_dim", "token_dim", "dropout", "embeddings_initializer", "scale"}  # alone
ONE_SIDED = {"causal": True}  # what encoders alone can choose
EMBEDDING_OPTIONS = {
    "position_encoding": "learned", "max_length": 9, "pad_id": 2, "token_types": 3,
}  # fmt: skip


IMAGE_OPTIONS = {
    "position_encoding": "learned", "interpolate_positions": True, "patch_bias": False,
    "embeddings_initializer": "zeros",
}  # fmt: skip
IMAGE_BUILDERS = {
    "image_encoder": lambda **options: txf.models.image_encoder((6, 8), (2, 4), 2, 12, 3, **options),
    "image_classifier": lambda **options: txf.models.image_classifier((6, 8), (2, 4), 5, 2, 12, 3, **options),
}


@drawing.not_on_jax
@pytest.mark.parametrize("name", [*BUILDERS, *IMAGE_BUILDERS])
def test_every_option_reaches_every_builder(name):
    build = IMAGE_BUILDERS.get(name) or BUILDERS[name][0]
    options, embedding_options = dict(BLOCK_OPTIONS), dict(EMBEDDING_OPTIONS)
    if name not in ("decoder_generator", "decoder", "encoder_decoder"):
        options.update(ONE_SIDED)
    else:
        del embedding_options["token_types"]
    if name in IMAGE_BUILDERS:
        embedding_options, more = IMAGE_OPTIONS, {"dtype": "mixed_bfloat16"}
    else:
        more = {"scale_embedding": False, **({} if "causal" in options else {"tie_embeddings": False})}
    model = build(**options, **embedding_options, **more)
    blocks = blocks_of(model)
    embeddings = layers_of(model, (txf.layers.PositionalEmbedding, txf.layers.PatchEmbedding))
    assert len(blocks) == (4 if name == "encoder_decoder" else 2) and embeddings
    for i, block in enumerate(blocks):
        parameters = inspect.signature(type(block)).parameters
        given = {"num_heads", "causal", "cross_attention", "kwargs", *APART}
        assert parameters.keys() - given == BLOCK_OPTIONS.keys()
        for option, value in options.items():
            value = value[i % 2] if isinstance(value, tuple) else value
            assert value != parameters[option].default, option
            assert plain(getattr(block, option)) == value, option
    for embedding in embeddings:
        if name not in IMAGE_BUILDERS:
            parameters = inspect.signature(type(embedding)).parameters
            assert parameters.keys() - {"vocab_size", "dim", "kwargs", *OF_EMBEDDING} == EMBEDDING_OPTIONS.keys()
            assert embedding.scale is False
        for option, value in embedding_options.items():
            assert plain(getattr(embedding, {"patch_bias": "use_bias"}.get(option, option))) == value, option
    if name in IMAGE_BUILDERS:
        policies = {layer.dtype_policy.name for layer in model.layers}
        assert policies == {"mixed_bfloat16", keras.config.dtype_policy().name}


def plain(value):
    """An initializer by its name."""
    names = {keras.initializers.HeNormal: "he_normal", keras.initializers.Zeros: "zeros"}
    return names.get(type(value), value)


@drawing.not_on_jax
def test_lists_hold_one_value_for_each_block():
    model = txf.models.decoder_generator(
        11, 3, 12, 6, window=[2, None, 4], num_key_value_heads=(1, 2, 3), position=["rotary", None, "alibi"]
    )
    blocks = blocks_of(model)
    assert [block.window for block in blocks] == [2, None, 4]
    assert [block.num_key_value_heads for block in blocks] == [1, 2, 3]
    assert [block.position for block in blocks] == ["rotary", None, "alibi"]
    with pytest.raises(ValueError, match="`window` must be one value or one for each.*received 2 values"):
        txf.models.decoder_generator(11, 3, 12, 6, window=[2, 4])


@drawing.not_on_jax
def test_defaults_follow_the_values_of_lists():
    build, _ = BUILDERS["encoder"]
    for placements, has_final_norm in ((["post", "pre"], True), (["pre", "post"], False)):
        model = build(norm_placement=placements, position=[None, None])
        assert ("encoder_norm" in [layer.name for layer in model.layers]) == has_final_norm
        assert model.get_layer("embedding").position_encoding == "sinusoidal"
    for causal in (True, False):
        model = build(causal=[causal, causal], position="relative")
        assert model.get_layer("encoder_0").position.bidirectional is not causal


@pytest.mark.long
@drawing.not_on_jax
def test_a_deep_stack_with_the_norms_of_the_paper_warns_unless_it_is_asked_for():
    """Warnings are errors here: what does not stand in `pytest.warns` must not warn."""
    builders = txf.models.decoder_generator, txf.models.encoder_decoder, txf.models.encoder_classifier
    for build, sizes in zip(builders, [(11,), (11, 11), (11, 3)]):
        with pytest.warns(UserWarning, match="7 blocks of the .*coder learn slowly.*norm_placement='pre'") as found:
            model = build(*sizes, 7, 8, 2)
        assert {each.filename for each in found if "learn slowly" in str(each.message)} == {__file__}
        assert keras.models.clone_model(model).count_params() == model.count_params()
        build(*sizes, 6, 8, 2)
        for placement in ("post", "pre", ["post"] * 7):
            build(*sizes, 7, 8, 2, norm_placement=placement)


def test_each_block_has_its_own_activation_with_weights(tmp_path):
    build, inputs = BUILDERS["encoder"]
    model = drawing.randomize(build(activation=keras.layers.PReLU(shared_axes=[1])))
    assert [weight.shape for weight in model.weights if "alpha" in weight.path] == [(1, 48)] * 2
    model.save(tmp_path / "model.keras")
    assert_same(numpy(keras.saving.load_model(tmp_path / "model.keras")(inputs)), numpy(model(inputs)))


def test_all_initializers_of_keras_are_accepted():
    for initializer in (None, lambda shape, dtype: keras.ops.zeros(shape, dtype)):
        model = txf.models.encoder(11, 1, 12, 3, kernel_initializer=initializer)
        kernel = numpy(model.get_layer("encoder_0").attention.query.kernel)[0]
        assert kernel.any() == (initializer is None)


def test_float16_predicts_in_a_compiled_function():
    model = txf.models.encoder(11, 1, 12, 3, dtype="mixed_float16")
    assert np.isfinite(model.predict(IDS, verbose=0)).all()


def test_stochastic_depth_grows_with_depth():
    residual = txf.layers.Residual(stochastic_depth=0.3)
    blocks = blocks_of(txf.models.encoder(11, 3, 12, 3, residual=residual))
    np.testing.assert_allclose([block.residual.stochastic_depth for block in blocks], [0.1, 0.2, 0.3])
    blocks = blocks_of(txf.models.encoder(11, 2, 12, 3, residual=[residual, "sequential"]))
    assert [block.stochastic_depth_layer.rate for block in blocks] == [0.3, 0.0]


def test_the_two_sides_have_their_own_options():
    model = txf.models.encoder_decoder(
        11, 13, 1, 12, 3, dropout=0.2, encoder_options={"window": 3}, decoder_options={"dropout": 0.4, "pad_id": None}
    )
    encoder, decoder = blocks_of(model)
    assert (encoder.window, encoder.dropout) == (3, 0.2)
    assert (decoder.window, decoder.dropout) == (None, 0.4)
    assert model.get_layer("source_embedding").pad_id == 0
    assert model.get_layer("target_embedding").pad_id is None


@pytest.mark.parametrize("placement, final_norm", [("post", None), ("pre", None), ("post", True)])
def test_hidden_states_equal_the_outputs_of_the_blocks(placement, final_norm):
    options = dict(norm_placement=placement, final_norm=final_norm, return_hidden_states=True)
    model = txf.models.encoder(11, 2, 12, 3, **options)
    x = model.get_layer("embedding")(IDS)
    expected = [x, *(x := model.get_layer(f"encoder_{i}")(x) for i in range(2))]
    if placement == "pre" or final_norm:
        expected[-1] = model.get_layer("encoder_norm")(expected[-1])
    outputs = outputs_of(model, IDS)
    assert outputs.keys() == {"output", "hidden_states_0", "hidden_states_1", "hidden_states_2"}
    assert_same([outputs[f"hidden_states_{i}"] for i in range(3)], numpy(expected), tolerance=1e-6)
    np.testing.assert_array_equal(outputs["output"], outputs["hidden_states_2"])


@pytest.mark.slow
def test_a_decoder_attends_to_any_depth_of_an_encoder(tmp_path):
    encoder = txf.models.encoder(11, 2, 10, 2, return_hidden_states=True)
    decoder = txf.models.decoder(13, 2, 12, 3, context_dim=10)
    first, second = (
        numpy(decoder({"target_ids": TARGET_IDS, "context": encoder(IDS)[f"hidden_states_{i}"]})) for i in (1, 2)
    )
    assert drawing.difference(first, second) > 1e-3
    # Cut at that depth, so that no block is left without a gradient.
    cut = keras.Model(encoder.input, encoder.output["hidden_states_1"], name="cut")
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in PAIR}
    outputs = decoder({"target_ids": inputs["target_ids"], "context": cut(inputs["source_ids"])})
    model = keras.Model(inputs, outputs)
    assert_same(numpy(model(PAIR)), first, tolerance=1e-6)
    model.save(tmp_path / "model.keras")
    assert_same(numpy(keras.saving.load_model(tmp_path / "model.keras")(PAIR)), numpy(model(PAIR)))
    before = model.get_weights()
    model.compile("sgd", txf.training.TokenCrossEntropy(), run_eagerly=True)
    model.fit(PAIR, TARGET_IDS, verbose=0)
    for weight, old, new in zip(model.weights, before, model.get_weights()):
        # Softmax does not see a bias of the keys: its gradient is zero.
        assert weight.path.endswith("key/bias") or not weight.trainable or (new != old).any(), weight.path


def test_a_context_mask_is_the_mask_that_keras_would_have_passed():
    encoder = txf.models.encoder(11, 1, 12, 3)
    implicit, explicit = (txf.models.decoder(13, 1, 12, 3, context_mask=explicit) for explicit in (False, True))
    explicit.set_weights(implicit.get_weights())
    context = encoder(IDS)
    array = keras.ops.convert_to_numpy(context)  # which has lost its mask
    expected = numpy(implicit({"target_ids": TARGET_IDS, "context": context}))
    actual = explicit({"target_ids": TARGET_IDS, "context": array, "context_mask": IDS != 0})
    assert_same(numpy(actual), expected, tolerance=1e-6)
    assert drawing.difference(implicit({"target_ids": TARGET_IDS, "context": array}), expected[0]) > 1e-3


def test_embeddings_are_shared_and_tied_as_in_the_paper():
    shared = txf.models.encoder_decoder(13, 13, 1, 12, 3, return_hidden_states=True)
    (embedding,) = layers_of(shared, txf.layers.PositionalEmbedding)
    outputs = outputs_of(shared, PAIR)
    table = numpy(embedding.token.embeddings)[0]
    np.testing.assert_allclose(outputs["logits"], outputs["decoder_hidden_states_1"] @ table.T, atol=1e-4)
    apart = txf.models.encoder_decoder(13, 13, 1, 12, 3, share_embeddings=False)
    assert len(layers_of(apart, txf.layers.PositionalEmbedding)) == 2
    assert apart.count_params() == shared.count_params() + 13 * 12
    untied = txf.models.encoder_decoder(11, 13, 1, 12, 3, tie_embeddings=False)
    assert untied.get_layer("logits").kernel.shape == (12, 13)
    with pytest.raises(ValueError, match="`share_embeddings` needs vocabularies of one size"):
        txf.models.encoder_decoder(11, 13, 1, 12, 3, share_embeddings=True)


PACKED_IDS = np.array([[5, 6, 7, 9, 4, 3, 2]], "int32")
SEGMENTS = np.array([[1, 1, 1, 1, 2, 2, 2]], "int32")
PLACES = np.array([[0, 1, 2, 3, 0, 1, 2]], "int32")


@pytest.mark.drawn(6)
@pytest.mark.parametrize("position", [None, "rotary"])
@pytest.mark.parametrize("name", ["encoder", "decoder_generator", "encoder_decoder"])
def test_packed_sequences_attend_only_to_themselves(name, position):
    build, _ = BUILDERS[name]
    plain, packed = build(position=position), build(position=position, packed=True)
    packed.set_weights(plain.get_weights())
    sides = ["source_", "target_"] if name == "encoder_decoder" else [""]
    inputs = {}
    for side in sides:
        ids = f"{side}ids" if side else "token_ids"
        inputs |= {ids: PACKED_IDS, f"{side}segment_ids": SEGMENTS, f"{side}positions": PLACES}
    (together,) = numpy(packed(inputs))
    for part in (slice(0, 4), slice(4, 7)):
        alone = PACKED_IDS[:, part]
        feed = {"source_ids": alone, "target_ids": alone} if len(sides) == 2 else alone
        np.testing.assert_allclose(together[:, part], numpy(plain(feed))[0], atol=1e-5)


def test_sizes_may_be_integers_of_numpy(uncompiled):
    numbers = np.array([11, 3, 1, 8, 2])
    vocab_size, num_classes, *sizes = numbers
    assert txf.models.encoder_classifier(vocab_size, num_classes, *sizes)(np.array([[5, 3]])).shape == (1, 3)
    model = txf.models.decoder_generator(vocab_size, *sizes, tie_embeddings=False)
    rows = [model.generate([[5, 3]], 4, "sampling", seed=seed).tolist() for seed in (numbers[1], 3)]
    assert rows[0] == rows[1]
    with pytest.raises(ValueError, match="`seed` must be an integer; received 'three'"):
        model.generate([[5, 3]], 4, "sampling", seed="three")


@pytest.mark.parametrize("start_id, position_encoding", [(None, "sinusoidal"), (2, "learned")])
def test_padding_before_a_start_token_that_is_not_padding_changes_nothing(start_id, position_encoding):
    options = dict(start_id=start_id, position_encoding=position_encoding, max_length=9)
    model = txf.models.encoder_decoder(20, 20, 1, 8, 2, **options)
    source, target = np.array([[5, 6, 7]]), np.array([[2, 8, 9]])
    (logits,) = numpy(model({"source_ids": source, "target_ids": target}))
    (padded,) = numpy(model({"source_ids": source, "target_ids": np.pad(target, ((0, 0), (2, 0)))}))
    np.testing.assert_allclose(padded[:, 2:], logits, atol=1e-5)


@pytest.mark.parametrize("global_policy", [False, True])
def test_float16_scales_the_loss_whoever_sets_it(global_policy, tmp_path):
    policy, loss = keras.config.dtype_policy(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    try:
        keras.config.set_dtype_policy("mixed_float16" if global_policy else policy)
        model = txf.models.encoder_classifier(11, 3, 1, 8, 2, dtype=None if global_policy else "mixed_float16")
        model.compile("sgd", loss, auto_scale_loss=False)
        assert isinstance(model.optimizer, keras.optimizers.SGD)
        model.compile("sgd", loss)
        assert isinstance(model.optimizer.inner_optimizer, keras.optimizers.SGD)
        model.optimizer.build(model.trainable_variables)
        model.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras").optimizer
        assert isinstance(again.inner_optimizer, keras.optimizers.SGD)  # scaled once
    finally:
        keras.config.set_dtype_policy(policy)
