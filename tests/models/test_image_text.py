"""image_text_generator: what it generates against its own full passes, its masks, and its errors."""

import functools

import drawing
import keras
import numpy as np
import pytest
from refusals import refused

import keras_txf as txf

PATCHES = 5  # 2 times 2 patches and the class token
PLACE = 7
HYBRID = {"attention": [txf.layers.GatedDeltaNet(2, 3), None], "norm_placement": "pre", "position": "rotary"}
ROTARY = {"position": "rotary", "norm_placement": "pre", "window": 3}


def encoder(**options):
    return txf.models.image_encoder(8, 4, 1, 6, 2, channels=1, name="image_encoder", **options)


def make(placeholder_id, bidirectional=None, **options):
    decoder = txf.models.decoder_generator(23, 2, 12, 2, **options)
    return drawing.randomize(
        txf.models.image_text_generator(encoder(), decoder, placeholder_id, bidirectional=bidirectional)
    )


def example(placeholder_id, bidirectional):
    """Prompts, one of them without an image if there are placeholders, and the other inputs."""
    image = [PLACE] * PATCHES
    prompts = [[5, 6, 8], [9]] if placeholder_id is None else [[5, *image, 3, *image, 6], [9, 8]]
    shape = (2, 8, 8, 1) if placeholder_id is None else (2, 3, 8, 8, 1)
    inputs = {"images": drawing.normal(*shape)}
    if bidirectional == "prefix":
        inputs["prefix_length"] = np.array([2, 1] if placeholder_id is None else [8, 2], "int32")
    return prompts, inputs


@drawing.not_on_jax
@pytest.mark.parametrize("sampler", ["greedy", pytest.param(txf.generation.Beam(3), marks=pytest.mark.slow)])
@pytest.mark.parametrize("placeholder_id, bidirectional, options", [
    (None, "images", {}), (PLACE, None, {}), (PLACE, "images", ROTARY),
    *[pytest.param(*case, marks=pytest.mark.slow) for case in
      ((PLACE, None, HYBRID), (None, None, HYBRID), (None, None, ROTARY), (None, "prefix", ROTARY),
       (PLACE, "prefix", {}))],
])  # fmt: skip
def test_log_probs_are_those_of_full_passes(uncompiled, placeholder_id, bidirectional, options, sampler):
    model = make(placeholder_id, bidirectional, **options)
    prompts, inputs = example(placeholder_id, bidirectional)
    found = model.generate(prompts, 4, sampler, inputs=inputs, return_scores=True)
    if bidirectional == "prefix":  # by default the prompt
        shorter, inputs = found, {**inputs, "prefix_length": np.array([*map(len, prompts)], "int32")}
        found = model.generate(prompts, 4, sampler, inputs={"images": inputs["images"]}, return_scores=True)
        assert drawing.difference(found.log_probs, shorter.log_probs) > 1e-3
    for row, prompt in enumerate(prompts):
        ids = found.ids[row, : len(prompt) + 4]
        own = {name: value[row : row + 1] for name, value in inputs.items()}
        logits = drawing.array(model({"token_ids": ids[None, :-1], **own}))[0, len(prompt) - 1 :]
        if sampler == "greedy":  # which never selects them
            logits[:, [0] if placeholder_id is None else [0, PLACE]] = -np.inf
        expected = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        np.testing.assert_allclose(found.log_probs[row], expected[range(4), ids[len(prompt) :]], atol=1e-4)


@drawing.not_on_jax
@pytest.mark.parametrize("placeholder_id, bidirectional", [(PLACE, "images"), (None, "prefix")])
def test_a_next_turn_continues_the_state(uncompiled, placeholder_id, bidirectional):
    model = make(placeholder_id, bidirectional)
    prompts, inputs = example(placeholder_id, bidirectional)
    first = model.generate(prompts, 2, inputs=inputs, return_state=True)
    turns = [[4, 5], [6]]
    found = model.generate(turns, 3, state=first.state, return_scores=True)
    for row, (prompt, turn) in enumerate(zip(prompts, turns)):
        before = [*first.ids[row, : len(prompt) + 2], *turn]
        ids = [*before, *found.ids[row, len(turn) : len(turn) + 3]]
        own = {name: value[row : row + 1] for name, value in inputs.items()}
        logits = drawing.array(model({"token_ids": np.array([ids[:-1]]), **own}))[0, len(before) - 1 :]
        logits[:, [0] if placeholder_id is None else [0, PLACE]] = -np.inf
        expected = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        np.testing.assert_allclose(found.log_probs[row], expected[range(3), ids[len(before) :]], atol=1e-4)


@drawing.not_on_jax
@pytest.mark.parametrize("placeholder_id", [None, PLACE])
def test_which_tokens_see_an_image_and_each_other(placeholder_id):
    prompts, inputs = example(placeholder_id, None)
    ids, changed = np.array([prompts[0]]), np.array([prompts[0]])
    column = 1 if placeholder_id is None else 6  # between two images
    changed[0, column] = 4
    images, seen = inputs["images"][:1], {}
    for bidirectional in (None, "images", "prefix"):
        model = make(placeholder_id, bidirectional)
        more = {"prefix_length": np.array([column + 1])} if bidirectional == "prefix" else {}
        logits = [drawing.array(model({"token_ids": x, "images": images, **more}))[0] for x in (ids, changed)]
        seen[bidirectional] = np.abs(logits[0] - logits[1]).max(axis=-1) > 1e-6
        without = model({"token_ids": ids, "images": np.zeros_like(images), **more})
        assert drawing.difference(logits[0][-1], without[0, -1]) > 1e-3
    assert seen[None].tolist() == (np.arange(ids.shape[1]) >= column).tolist()
    assert seen["prefix"][0] and not seen["images"][0]


def test_the_vectors_of_an_image_see_each_other():
    """With "images" the last patch changes what the first placeholder computes; without, it does not."""
    ids = np.array([[PLACE] * PATCHES + [5]])
    for bidirectional, expected in ((None, False), ("images", True)):
        decoder = txf.models.decoder_generator(23, 1, 6, 2)
        vectors = keras.Input((PATCHES, 6))
        model = txf.models.image_text_generator(
            keras.Model(vectors, vectors * 1.0), decoder, PLACE, None, bidirectional
        )
        drawing.randomize(model)
        one, other = np.zeros((1, 1, PATCHES, 6), "float32"), np.zeros((1, 1, PATCHES, 6), "float32")
        other[0, 0, -1] = 1.0
        logits = [drawing.array(model({"token_ids": ids, "images": x})) for x in (one, other)]
        assert (np.abs(logits[0] - logits[1])[0, 0].max() > 1e-4) == expected


def test_padding_keeps_its_mask_and_changes_nothing():
    for placeholder_id in (None, PLACE):
        model = make(placeholder_id, "images")
        prompts, inputs = example(placeholder_id, None)
        ids = np.zeros((2, len(prompts[0])), "int32")
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)] = prompt
        logits = model({"token_ids": ids, **inputs})
        assert drawing.array(logits._keras_mask).astype(bool).tolist() == (ids != 0).tolist()
        alone = model({"token_ids": np.array([prompts[1]]), "images": inputs["images"][1:]})
        np.testing.assert_allclose(drawing.array(logits)[1, : len(prompts[1])], drawing.array(alone)[0], atol=1e-5)


@drawing.not_on_jax
@pytest.mark.parametrize("placeholder_id, bidirectional, options", [
    (None, "prefix", ROTARY), (PLACE, "prefix", ROTARY), (None, None, HYBRID), (None, "images", {"position": "alibi"}),
])  # fmt: skip
def test_padding_before_the_tokens_changes_nothing(placeholder_id, bidirectional, options):
    model = make(placeholder_id, bidirectional, **options)
    prompts, inputs = example(placeholder_id, bidirectional)
    ids = np.zeros((2, len(prompts[0]) + 2), "int32")
    for row, prompt in enumerate(prompts):
        ids[row, -len(prompt) :] = prompt
    logits = model({"token_ids": ids, **inputs})
    assert drawing.array(logits._keras_mask).astype(bool).tolist() == (ids != 0).tolist()
    for row, prompt in enumerate(prompts):
        alone = model({"token_ids": np.array([prompt]), **{key: x[row : row + 1] for key, x in inputs.items()}})
        drawing.assert_same(drawing.array(logits)[row, -len(prompt) :], alone[0], 1e-5)


def padded_by_hand(*masks):
    """A decoder whose padding is known from comparisons in its graph alone."""
    ids, x = keras.Input((None,), dtype="int32", name="token_ids"), keras.layers.Embedding(23, 12)
    mask = functools.reduce(keras.ops.logical_and, [of_ids(ids) for of_ids in masks])
    x = txf.layers.DecoderBlock(2, position="rotary")(x(ids), mask=mask)
    return txf.models.generative(keras.Model(ids, keras.layers.Dense(23)(x)))


@drawing.not_on_jax
@pytest.mark.parametrize("mask", [
    lambda ids: keras.ops.not_equal(ids, np.int32(4)), lambda ids: keras.ops.not_equal(4, ids),
    lambda ids: keras.ops.not_equal(ids, np.array([4])),
])  # fmt: skip
@pytest.mark.parametrize("placeholder_id", [None, PLACE])
def test_padding_that_a_comparison_finds(mask, placeholder_id):
    model = txf.models.image_text_generator(encoder(), padded_by_hand(mask), placeholder_id, bidirectional="prefix")
    drawing.randomize(model)
    prompts, inputs = example(placeholder_id, "prefix")
    inputs = {name: value[:1] for name, value in inputs.items()}
    alone, padded = (model({"token_ids": np.array([[4] * n + prompts[0]]), **inputs}) for n in (0, 3))
    drawing.assert_same(drawing.array(padded)[:, 3:], alone, 1e-5)


def test_unknown_padding_raises_an_error():
    four, more = (lambda ids: keras.ops.not_equal(ids, 4)), (lambda ids: keras.ops.greater(ids, 3))
    build = txf.models.image_text_generator
    for place, kind in ((None, None), (PLACE, "prefix")):
        refused(lambda: build(encoder(), padded_by_hand(more), place, bidirectional=kind), ["not_equal(ids, pad_id)"])
        two = padded_by_hand(four, lambda ids: keras.ops.not_equal(ids, 3))
        refused(lambda: build(encoder(), two, place, bidirectional=kind), ["`decoder`", "one padding token", "[4, 3]"])
        half = padded_by_hand(lambda ids: keras.ops.not_equal(ids, 4.5))
        refused(lambda: build(encoder(), half, place, bidirectional=kind), ["`decoder`", "an integer", "[4.5]"])
        inner = keras.Input((None,), dtype="int32")
        inside = padded_by_hand(keras.Model(inner, keras.ops.not_equal(inner, 4)))
        refused(lambda: build(encoder(), inside, place, bidirectional=kind), ["`decoder`", "a model within it"])
    build(encoder(), padded_by_hand(more), PLACE, bidirectional="images")
    model, (prompts, inputs) = make(None, "prefix"), example(None, "prefix")
    rows = {"token_ids": np.array([prompts[0]] * 2), "images": inputs["images"], "prefix_length": np.array([1, 2, 3])}
    refused(lambda: model(rows), ["`prefix_length` must go with the shape (2,)", "(3,)"])


@pytest.mark.slow
@pytest.mark.parametrize("placeholder_id", [None, PLACE])
def test_it_learns_to_name_an_image_with_a_frozen_encoder(placeholder_id, tmp_path):
    keras.utils.set_random_seed(0)
    images = np.linspace(-2, 2, 4, dtype="float32")[:, None, None, None] * drawing.normal(1, 8, 8, 1)
    kinds = np.arange(64) % 4
    images, prompt = (images, [1]) if placeholder_id is None else (images[:, None], [PLACE] * PATCHES + [1])
    ids = np.array([[*prompt, 10 + kind, 2] for kind in kinds])
    frozen = drawing.randomize(encoder())
    before = frozen.get_weights()
    decoder = txf.models.decoder_generator(23, 2, 12, 2, norm_placement="pre", dropout=0.0)
    model = txf.models.image_text_generator(frozen, decoder, placeholder_id, bidirectional="images")
    frozen.trainable = False
    inputs, targets = txf.training.shift_labels(ids)
    answers = np.tile(np.arange(ids.shape[1] - 1) >= len(prompt) - 1, (64, 1)).astype("float32")
    model.compile(keras.optimizers.Adam(0.01), txf.training.TokenCrossEntropy())
    given = {"token_ids": inputs, "images": images[kinds]}
    model.fit(given, targets, sample_weight=answers, batch_size=16, epochs=30, verbose=0)
    found = model.generate([prompt] * 4, 2, inputs={"images": images})
    assert found[:, -2:].tolist() == [[10 + kind, 2] for kind in range(4)]
    for one, other in zip(before, frozen.get_weights()):
        np.testing.assert_array_equal(one, other)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.generate([prompt] * 4, 2, inputs={"images": images}), found)
    txf.training.add_adapter(again, "later", rank=2)
    loss = again.evaluate(given, targets, sample_weight=answers, verbose=0)
    again.compile(keras.optimizers.SGD(0.01), txf.training.TokenCrossEntropy())
    again.fit(given, targets, sample_weight=answers, batch_size=16, epochs=5, verbose=0)
    assert again.evaluate(given, targets, sample_weight=answers, verbose=0) < loss


def test_bad_arguments_raise_an_error(uncompiled):
    build, decoder = txf.models.image_text_generator, txf.models.decoder_generator(23, 1, 12, 2)
    refused(lambda: build(encoder(), encoder()), ["`decoder`"])
    classifier = txf.models.image_classifier(8, 4, 3, 1, 6, 2, channels=1)
    refused(lambda: build(classifier, decoder), ["`image_encoder`", "(batch, vectors, width)"])
    refused(lambda: build(encoder(), decoder, 0), ["`placeholder_id`", "padding", "0"])
    refused(lambda: build(encoder(), decoder, 23), ["`placeholder_id`", "23"])
    refused(lambda: build(encoder(), decoder, projection=keras.layers.Dense(5)), ["`projection`", "12", "5"])
    refused(lambda: build(encoder(), decoder, projection=["mlp"]), ["`projection`", "mlp"])
    refused(lambda: txf.checkpoints.save(build(encoder(), decoder), "x", family="llava"), ["`family`", "'llava'"])
    refused(lambda: build(encoder(), decoder, bidirectional="all"), ["`bidirectional`", "all", "images"])
    packed = txf.models.decoder_generator(23, 1, 12, 2, packed=True)
    refused(lambda: build(encoder(), packed), ["`decoder`", "segment_ids", "`placeholder_id`"])
    mixer = txf.models.decoder_generator(23, 1, 12, attention=txf.layers.ShortConvolution())
    refused(lambda: build(encoder(), mixer, bidirectional="images"), ["`bidirectional_mask`"])
    unsized = txf.models.image_encoder(None, 4, 1, 6, 2, position_encoding=None)
    refused(lambda: build(unsized, decoder), ["`image_encoder`", "known number", "(None, None, 6)"])
    ids = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(23, 12)(ids)
    wired = keras.Model(ids, keras.layers.Dense(23)(keras.layers.MultiHeadAttention(2, 6)(x, x, use_causal_mask=True)))
    refused(lambda: build(encoder(), wired, PLACE, bidirectional="images"), ["`bidirectional`", "MultiHeadAttention"])
    assert (
        build(encoder(), wired, PLACE).generate([[5]], 2, inputs={"images": np.zeros((1, 1, 8, 8, 1), "float32")}).any()
    )
    model, inputs = build(encoder(), decoder, PLACE), {"images": np.zeros((1, 2, 8, 8, 1), "float32")}
    refused(lambda: model.generate([[5, PLACE, 6]], 2, inputs=inputs), ["`group_size`, 5", "received 1 in row 0"])
    refused(lambda: model.generate([[PLACE] * 15], 2, inputs=inputs), ["at most 10", "received 15 in row 0"])
    with pytest.raises(ValueError, match="`inputs`.*images"):
        model.generate([[5]], 2)


def wires():
    """Functions from embedded tokens to logits, as many as the width of a token, of which one alone is a Dense."""
    blocks, dense = [txf.layers.DecoderBlock(2, name=f"block_{i}") for i in range(2)], keras.layers.Dense(12)
    other = keras.layers.EinsumDense("btd,dv->btv", (None, 12))
    return {
        "the block after a Dense": lambda x: blocks[1](dense(blocks[0](x))),
        "a Dense that is called before": lambda x: dense(blocks[1](dense(blocks[0](x)))),
        "another layer": lambda x: other(blocks[0](x)),
        "a sum": lambda x: dense(blocks[0](x)) + other(blocks[0](x)),
    }


@pytest.mark.drawn(3)
@drawing.not_on_jax
@pytest.mark.filterwarnings("ignore:.*does not support masking:UserWarning")
@pytest.mark.parametrize("name", wires())
@pytest.mark.parametrize("pad_id", [0, None])
def test_the_logits_are_cut_behind_all_layers_that_read_the_image(name, pad_id):
    wire, ids, image = wires()[name], keras.Input((None,), dtype="int32", name="token_ids"), keras.Input((4, 12))
    embedding, vectors = txf.layers.PositionalEmbedding(12, 12, pad_id=pad_id), keras.Input((None, 12))
    decoder = txf.models.generative(keras.Model(ids, wire(embedding(ids))))
    encoder = keras.Model(image, 1.0 * image)
    model = txf.models.image_text_generator(encoder, decoder, projection=[keras.layers.Identity()])
    images, prompt = drawing.normal(1, 4, 12), np.array([[5, 6, 8]])
    whole = keras.Model(vectors, wire(vectors))
    joined = np.concatenate([images, drawing.array(embedding(prompt))], axis=1)
    drawing.assert_same(model({"token_ids": prompt, "images": images}), drawing.array(whole(joined))[:, 4:], 1e-5)
    found = model.generate(prompt, 3, inputs={"images": images})
    logits = drawing.array(model({"token_ids": found[:, :-1], "images": images}))[0, 2:]
    assert found[0, 3:].tolist() == (logits[:, 1:].argmax(-1) + 1 if pad_id == 0 else logits.argmax(-1)).tolist()


@pytest.mark.long
@drawing.not_on_jax
def test_the_prefix_has_the_start_tokens():
    model, image = make(None, "prefix", **ROTARY), {"images": drawing.normal(2, 8, 8, 1)}
    prompts, options = [[5, 6, 8], [9]], {"inputs": image, "return_scores": True}
    whole = model.generate([[4, *prompt] for prompt in prompts], 2, **options)
    drawing.assert_same(model.generate(prompts, 2, start_id=4, **options).log_probs, whole.log_probs, 1e-5)
    alone = model.generate([[4], [4]], 2, **options)
    drawing.assert_same(model.generate(None, 2, start_id=4, **options).log_probs, alone.log_probs, 1e-5)


def test_decoders_that_cannot_be_joined_raise_an_error():
    decoder = txf.models.decoder_generator(23, 1, 12, 2)
    joined = txf.models.image_text_generator(encoder(), decoder, PLACE)
    refused(lambda: txf.models.image_text_generator(encoder(), joined, PLACE), ["`decoder`", "'images'"])
    ids, embedding = keras.Input((None,), dtype="int32"), txf.layers.PositionalEmbedding(23, 12)
    x = txf.layers.DecoderBlock(2)(embedding(ids) + embedding(ids))
    twice = txf.models.generative(keras.Model(ids, keras.layers.Dense(23)(x)))
    for placeholder_id in (None, PLACE):
        refused(lambda: txf.models.image_text_generator(encoder(), twice, placeholder_id), ["`decoder`", "once"])
