"""What the public layers are called on: nested lists work as arrays, what is no tensor is refused by its name."""

import inspect

import keras
import numpy as np
import pytest
from cases import assert_same, numpy
from refusals import IDS, IMAGES, refused

import keras_txf as txf

layers = txf.layers
X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")
CONTEXT = np.random.default_rng(2).normal(size=(2, 3, 6)).astype("float32")
HEADS = np.random.default_rng(1).normal(size=(2, 5, 2, 4)).astype("float32")
MASK = [[True, True, True, False, False], [True] * 5]
PLACES, SEGMENTS = [[0, 1, 2, 3, 4], [0, 1, 0, 1, 2]], [[1, 1, 2, 2, 2], [1, 1, 1, 1, 1]]
SQUARE = np.tril(np.ones((5, 5), "bool")).tolist()
PACKED = {"inputs": X, "mask": MASK, "attention_mask": SQUARE, "segment_ids": SEGMENTS, "positions": PLACES}
CROSS = {
    "context": CONTEXT,
    "context_mask": [[True, False, True], [True] * 3],
    "context_segment_ids": [[1, 2, 2], [1, 1, 3]],
}
# Of each public layer: what makes it, and its arguments as lists.
CALLS = {
    "MultiHeadSelfAttention": (dict(num_heads=2, position="rotary"), PACKED),
    "LatentAttention": (dict(num_heads=2, kv_lora_rank=6, qk_nope_head_dim=4, qk_rope_head_dim=2), PACKED),
    "CrossAttention": (dict(num_heads=2),
                       {"inputs": X, **CROSS, "attention_mask": [[True, True, False]] * 5, "segment_ids": SEGMENTS}),
    "EncoderBlock": (dict(num_heads=2, position="alibi"), PACKED),
    "DecoderBlock": (dict(num_heads=2, position="relative", cross_attention=True),
                     {**PACKED, **CROSS, "context_attention_mask": [[True, True, False]] * 5}),
    "FeedForward": ({}, {"inputs": X}),
    "MixtureOfExperts": (dict(num_experts=3), {"inputs": X}),
    "Pooling": ({}, {"inputs": X, "mask": MASK}),
    "AttentionPooling": (dict(num_heads=2), {"inputs": X, "mask": MASK}),
    "PositionalEmbedding": (dict(vocab_size=11, dim=8, token_types=3),
                            {"inputs": IDS, "positions": PLACES, "token_type_ids": SEGMENTS}),
    "FeatureEmbedding": (dict(dim=8), {"inputs": X, "mask": MASK}),
    "AudioEmbedding": (dict(dim=8), {"inputs": X, "mask": MASK}),
    "LogMelSpectrogram": (dict(num_mel_bins=3, frame_length=4, hop_length=2), {"inputs": X[0]}),
    "PatchEmbedding": (dict(patch_size=2, dim=8, image_size=(6, 8)), {"inputs": IMAGES}),
    "RecurrentDecoder": (dict(dim=4, attention="additive"),
                         {"inputs": X, "states": X[:, 0], "context": CONTEXT, "inputs_mask": MASK,
                          "context_mask": CROSS["context_mask"]}),
    "Rotary": ({}, {"x": HEADS, "positions": PLACES}),
    "Convolution": ({}, {"inputs": X, "mask": MASK}),
    "DisentangledPositions": (dict(dim=3), {"query_positions": PLACES, "key_positions": PLACES}),
    "AxialRotary": ({"grid": 2}, {"x": HEADS, "positions": PLACES}),
    "ALiBi": (dict(num_heads=2), {"query_positions": PLACES, "key_positions": PLACES}),
    "RelativeBias": (dict(num_heads=2), {"query_positions": PLACES, "key_positions": PLACES}),
}  # fmt: skip
BAD = {
    "ragged": [[1], [2, 3]], "text": "text", "texts": [["a"]], "dict": {"a": 1}, "number": 3, "object": object(),
    "class": np.ndarray, "nothing": [None], "huge": [[2**31]], "huge array": np.array([[2**40]]),
    "array of texts": np.array([["a"]]), "complex": np.zeros((2, 5), "complex64"),
}  # fmt: skip


def as_lists(arguments):
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in arguments.items()}


def as_arrays(arguments):
    return {name: np.array(value) for name, value in arguments.items()}


@pytest.mark.parametrize("name", CALLS)
def test_lists_are_arrays(name):
    options, arguments = CALLS[name]
    layer = getattr(layers, name)(**options)
    expected = numpy(layer(**as_arrays(arguments)))
    assert_same(numpy(layer(**as_lists(arguments))), expected, 1e-6)
    first, *others = as_lists(arguments).values()
    assert_same(numpy(layer(first, **dict(zip(list(arguments)[1:], others)))), expected, 1e-6)
    changed = {n: v for n, v in as_arrays(arguments).items() if n not in ("mask", "context_mask")}
    if changed.keys() != arguments.keys() and name != "Pooling":
        assert max(np.abs(a - b).max() for a, b in zip(numpy(layer(**changed)), expected)) > 1e-4  # the lists count


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_tensor_is_refused_by_its_name(name):
    options, arguments = CALLS[name]
    working, (first, *others) = as_arrays(arguments), arguments
    for built in (False, True):
        layer = getattr(layers, name)(**options)
        if built:
            layer(**working)
        for argument in arguments:
            for bad in BAD.values():
                refused(lambda: layer(**{**working, argument: bad}), [f"`{argument}`"])
        refused(lambda: layer(*[None, *(working[other] for other in others[:1])]), [f"`{first}`", "None"])
    for switch in {"return_attention_scores", "reverse", "training"} & set(inspect.signature(layer.call).parameters):
        for bad in ("yes", [1], 2, {}):
            refused(lambda: layer(**working, **{switch: bad}), [f"`{switch}`", "True or False"])


@pytest.mark.parametrize("name", ["MultiHeadSelfAttention", "CrossAttention", "Pooling", "AttentionPooling"])
def test_masks_are_bool_or_zeros_and_ones(name):
    """A mask of floats, or of other integers, may be meant to be added, where zero is what is seen."""
    options, arguments = CALLS[name]
    layer, working = getattr(layers, name)(**options), as_arrays(arguments)
    expected = numpy(layer(**working))
    for argument in {"mask", "context_mask", "attention_mask"} & set(arguments):
        mask = working[argument]
        for bad, words in ((mask.astype("float32"), ["bool", "float32"]), (np.where(mask, 0, -10000), ["-10000"])):
            refused(lambda: layer(**{**working, argument: bad}), [f"`{argument}`", *words])
        assert_same(numpy(layer(**{**working, argument: mask.astype("int32")})), expected)


IDS_REFUSED = {
    "fractions": (np.array([[1.5, 2]], "float32"), ["`inputs`", "integers", "fractions"]),
    "nan": (np.array([[np.nan, 2]], "float32"), ["`inputs`", "integers", "fractions"]),
    "bool": (np.array([[True, False]]), ["`inputs`", "integers", "bool"]),
    "beyond 32 bits": (np.array([[2**32 + 3, 2]]), ["`inputs`", "32 bits"]),
    "beyond the vocabulary": (np.array([[3.0, 11.0]]), ["`inputs`", "from 0 to 10"]),
}


@pytest.mark.parametrize("ids, words", IDS_REFUSED.values(), ids=IDS_REFUSED)
def test_ids_are_whole_numbers(ids, words):
    refused(lambda: layers.PositionalEmbedding(11, 8)(ids), words)
    if "beyond the" not in words[-1] and ids.max() != 11:
        refused(lambda: layers.PositionalEmbedding(None, 8)(ids), words)


def test_whole_floats_are_ids_where_their_type_tells_each():
    layer = layers.PositionalEmbedding(1000, 8)
    ids = np.array([[5, 900, 0]])
    assert_same(numpy(layer(ids.astype("float32"))), numpy(layer(ids)))
    for dtype, limit in (("float16", 2048), ("bfloat16", 256)):
        symbol = keras.Input((3,), dtype=dtype)
        refused(lambda: layers.PositionalEmbedding(limit + 1, 8)(symbol), ["`inputs`", dtype, str(limit)])
        layers.PositionalEmbedding(limit, 8)(symbol)
    model = keras.Sequential([keras.Input((3,)), layer])  # of float32, Keras' default
    assert_same([model.predict(ids, verbose=0)], numpy(layer(ids)), 1e-6)


def test_a_subclass_may_take_what_it_likes():
    class Pair(layers.FeedForward):
        def call(self, inputs, factors, note):
            return super().call(inputs) * factors["a"] * len(note)

    layer = Pair()
    once = layer(X, factors={"a": 1.0}, note="x")
    assert_same(numpy(layer(X, factors={"a": 2.0}, note="xyz")), [6 * numpy(once)[0]], 1e-5)


def test_the_table_knows_every_public_layer():
    assert set(CALLS) == set(layers.__all__) - {"KVCache"}  # no layer
