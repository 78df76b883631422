"""Checks of every public layer: lists as arrays, errors for arguments that are not tensors, and users' subclasses,
whose options are kept when they are saved or copied.
"""

import functools
import inspect
import json

import keras
import numpy as np
import pytest
from cases import assert_same, numpy
from keras.src.testing import TestCase
from refusals import IDS, refused

import keras_txf as txf

layers = txf.layers
RANDOM = np.random.default_rng(3)
X, CONTEXT, HEADS = (RANDOM.normal(size=shape).astype("float32") for shape in ((2, 5, 8), (2, 3, 6), (2, 5, 2, 8)))
MASK = np.array([[True, True, True, False, False], [True] * 5])
PLACES, SEGMENTS = np.array([[[0, 1, 2, 3, 4], [0, 1, 0, 1, 2]], [[1, 1, 2, 2, 2], [1, 1, 1, 1, 1]]], "int32")
TOKENS = {"inputs": X, "mask": MASK}
PACKED = {**TOKENS, "attention_mask": np.tril(np.ones((5, 5), "bool")), "segment_ids": SEGMENTS, "positions": PLACES}
CROSS = {
    "context": CONTEXT, "context_mask": np.array([[True, False, True], [True] * 3]),
    "context_segment_ids": np.array([[1, 2, 2], [1, 1, 3]], "int32"),
}  # fmt: skip
SOME = np.array([[True, True, False]] * 5)
DISTANCE = {"query_positions": PLACES, "key_positions": PLACES[:, :3]}
ROPE = {"position": layers.Rotary(base=50.0, fraction=2 / 3)}
ATTENTION = dict(num_heads=2, head_dim=6, num_key_value_heads=1, use_bias=False, qk_norm=True, logit_soft_cap=2.0)
BLOCK = dict(
    num_heads=2, head_dim=6, num_key_value_heads=1, use_bias=False, intermediate_dim=10, window=2, activation="silu",
    gated=True, norm="rms", norm_placement="sandwich", dropout=0.3,
)  # fmt: skip
# Of each public layer: options that are no defaults, one that changes the outputs, and what the layer is called on.
LAYERS = {
    "MultiHeadSelfAttention": (dict(ATTENTION, window=3, **ROPE), {"causal": True}, PACKED),
    "LatentAttention": (dict(num_heads=2, kv_lora_rank=6, qk_nope_head_dim=4, qk_rope_head_dim=2, q_lora_rank=5,
                             v_head_dim=3), {"causal": True}, PACKED),
    "GatedDeltaNet": (dict(num_key_heads=2, key_head_dim=3, num_value_heads=4, norm_epsilon=0.1),
                      {"value_head_dim": 5}, TOKENS),
    "Mamba2": (dict(num_heads=2, head_dim=6, state_dim=3, norm_epsilon=0.1),
               {"num_groups": 2, "use_bias": True}, TOKENS),
    "ShortConvolution": ({"kernel_size": 4}, {"use_bias": True}, TOKENS),
    "CrossAttention": (ATTENTION, {"scale": 3.0}, {"inputs": X, **CROSS, "attention_mask": SOME,
                                                   "segment_ids": SEGMENTS}),
    "FeedForward": (dict(intermediate_dim=10, gated=True), {"activation": "silu"}, {"inputs": X}),
    "MixtureOfExperts": (dict(num_experts=3, intermediate_dim=10, num_shared_experts=1),
                         {"router_activation": "sigmoid", "activation": "gelu"}, {"inputs": X}),
    "EncoderBlock": (dict(BLOCK, **ROPE), {"causal": True}, PACKED),
    "DecoderBlock": (dict(BLOCK, cross_attention=True), {"position": "alibi"},
                     {**PACKED, **CROSS, "context_attention_mask": SOME}),
    "Pooling": ({}, {"kind": "max"}, TOKENS),
    "InsertVectors": ({"placeholder_id": 3}, {"group_size": 2},
                      {"inputs": X, "ids": np.array([[3, 3, 4, 2, 1], [1, 4, 5, 2, 0]], "int32"), "vectors": X[:, :2]}),
    "SoftPrompt": (dict(length=3), {"initializer": "ones"}, {"inputs": X}),
    "AttentionPooling": (dict(num_heads=2, intermediate_dim=10), {"activation": "relu"}, TOKENS),
    "PositionalEmbedding": (dict(vocab_size=11, dim=8, position_encoding="learned", max_length=9, token_types=3),
                            {"scale": True}, {"inputs": IDS, "positions": PLACES, "token_type_ids": SEGMENTS}),
    "FeatureEmbedding": (dict(dim=8, use_bias=False), {"position_encoding": "sinusoidal_halves"}, TOKENS),
    "AudioEmbedding": (dict(dim=8, kernel_size=5, strides=(2, 1)), {"position_encoding": None}, TOKENS),
    "LogMelSpectrogram": (dict(num_mel_bins=3, frame_length=4, hop_length=2), {"sampling_rate": 400},
                          {"inputs": X[0]}),
    "WaveformEmbedding": (dict(dim=8, filters=[4, 6], kernel_sizes=[2, 1], strides=[1, 2], position_kernel_size=2,
                               position_groups=4), {"norm": "group"}, TOKENS),
    "WaveformNormalization": ({}, {}, {"inputs": X[..., 0], "mask": MASK}),
    "LogitAdjustment": ({"use_bias": True, "scale": 0.5}, {"soft_cap": 2.0}, {"inputs": X}),
    "PatchEmbedding": (dict(patch_size=2, dim=8, image_size=(4, 6)), {"class_token": False},
                       {"inputs": RANDOM.random((2, 4, 6, 3), "float32")}),
    "RecurrentDecoder": (dict(dim=4, cell="lstm", dropout=0.2), {"attention": "additive"},
                         {"inputs": X, "states": X[:, 0], "context": CONTEXT, "inputs_mask": MASK,
                          "context_mask": CROSS["context_mask"]}),
    "Rotary": ({"fraction": 0.5}, {"base": 20.0}, {"x": HEADS, "positions": PLACES}),
    "DisentangledPositions": (dict(dim=3, num_buckets=8, share_projections=True), {"max_distance": 4}, DISTANCE),
    "AxialRotary": ({"grid": 2, "tokens_before": 1}, {"base": 20.0}, {"x": HEADS, "positions": PLACES}),
    "ALiBi": ({}, {"num_heads": 3}, DISTANCE),
    "RelativeBias": (dict(num_heads=2, num_buckets=6, max_distance=4), {"bidirectional": False}, DISTANCE),
}  # fmt: skip
every_layer = pytest.mark.parametrize("name", LAYERS)


def test_the_table_contains_every_public_layer():
    assert set(LAYERS) == set(layers.__all__) - {"Cache", "Int8Cache", "Residual", "SinkCache"}  # no layers


def make(name):
    options, fixed, arguments = LAYERS[name]
    return getattr(layers, name)(**options, **fixed), arguments


@every_layer
def test_lists_are_accepted_as_arrays(name):
    layer, arguments = make(name)
    expected = numpy(layer(**arguments))
    first, *others = (value.tolist() for value in arguments.values())
    assert_same(numpy(layer(first, **dict(zip(list(arguments)[1:], others)))), expected, 1e-6)
    changed = {n: v for n, v in arguments.items() if n not in ("mask", "context_mask")}
    if changed.keys() != arguments.keys():
        assert max(np.abs(a - b).max() for a, b in zip(numpy(layer(**changed)), expected)) > 1e-4  # the lists count


@every_layer
def test_the_type_is_known_without_a_call(name):
    """Keras' tests of layers ask `compute_output_spec` itself, where nothing casts the weights."""
    options, fixed, arguments = LAYERS[name]
    layer = getattr(layers, name)(**options, **fixed, dtype="mixed_float16")
    half = {key: x.astype("float16") if x.dtype == "float32" else x for key, x in arguments.items()}
    found = layer(**half)
    spec = layer.compute_output_spec(**{key: keras.KerasTensor(x.shape, str(x.dtype)) for key, x in half.items()})
    for output, symbol in zip(keras.tree.flatten(found), keras.tree.flatten(spec)):
        assert (tuple(output.shape), keras.backend.standardize_dtype(output.dtype)) == (symbol.shape, symbol.dtype)


@every_layer
def test_integers_keep_their_type_under_any_floatx(name, bfloat16):
    """Keras takes the type of numbers from floatx: `ops.where(condition, 3, 0)` has int16 under bfloat16."""
    layer, arguments = make(name)
    if name == "RelativeBias":
        layer = layers.RelativeBias(2)  # bidirectional
    # Without its type Keras makes float32 of an array on JAX.
    arguments = {name: keras.ops.convert_to_tensor(x, str(x.dtype)) for name, x in arguments.items()}
    assert all(np.isfinite(x).all() for x in numpy(layer(**arguments)))


SHAPES = {  # in Keras' test; of the other layers (2, 5, 8)
    **dict.fromkeys(["CrossAttention", "DecoderBlock"], {"inputs_shape": (2, 5, 8), "context_shape": (2, 3, 6)}),
    "RecurrentDecoder": {"inputs_shape": (2, 5, 8), "states_shape": (2, 8), "context_shape": (2, 3, 6)},
    **dict.fromkeys(["DisentangledPositions", "ALiBi", "RelativeBias", "PositionalEmbedding"], (2, 5)),
    "InsertVectors": {"inputs_shape": (2, 5, 8), "ids_shape": (2, 5), "vectors_shape": (2, 9, 8)},
    "Rotary": (2, 5, 2, 4), "AxialRotary": (2, 5, 2, 8), "LogMelSpectrogram": (2, 40), "PatchEmbedding": (2, 4, 6, 3),
    "WaveformNormalization": (2, 40),
}  # fmt: skip
TYPES = {"InsertVectors": {"inputs_shape": "float32", "ids_shape": "int32", "vectors_shape": "float32"}}
SECOND = {name: {argument: PLACES} for name in SHAPES for argument in ("positions", "key_positions")
          if list(LAYERS[name][2])[1:2] == [argument] and name != "PositionalEmbedding"}  # fmt: skip


@every_layer
@pytest.mark.drawn(6)
@pytest.mark.filterwarnings("ignore:`shuffle=True`", "ignore:The model does not have any trainable")
def test_keras_own_test_of_layers(name):
    (options, fixed, _), shape, more = LAYERS[name], SHAPES.get(name, (2, 5, 8)), SECOND.get(name, {})
    TestCase().run_layer_test(
        getattr(layers, name), {**options, **fixed}, input_shape=shape, call_kwargs=more,
        input_dtype=TYPES.get(name, "int32" if shape == (2, 5) else None),
        run_training_check=not more and not isinstance(shape, dict),  # Keras trains on one tensor
        run_mixed_precision_check=not more,  # Keras asks for the shape of the outputs without `call_kwargs`
    )  # fmt: skip


BAD = {
    "ragged": [[1], [2, 3]], "text": "text", "texts": [["a"]], "dict": {"a": 1}, "number": 3, "object": object(),
    "class": np.ndarray, "nothing": [None], "huge": [[2**31]], "huge array": np.array([[2**40]]),
    "array of texts": np.array([["a"]]), "complex": np.zeros((2, 5), "complex64"),
}  # fmt: skip


@every_layer
def test_an_argument_that_is_not_a_tensor_raises_value_error_with_its_name(name):
    for built in (False, True):
        layer, working = make(name)
        if built:
            layer(**working)
        for argument in working:
            for bad in BAD.values():
                refused(lambda: layer(**{**working, argument: bad}), [f"`{argument}`"])
        first, *others = working
        refused(lambda: layer(*[None, *(working[other] for other in others[:1])]), [f"`{first}`", "None"])
    for switch in {"return_attention_scores", "reverse", "training"} & set(inspect.signature(layer.call).parameters):
        for bad in ("yes", [1], 2, {}):
            refused(lambda: layer(**working, **{switch: bad}), [f"`{switch}`", "True or False"])


@pytest.mark.parametrize("name", ["MultiHeadSelfAttention", "CrossAttention", "Pooling", "AttentionPooling"])
def test_masks_are_bool_or_zeros_and_ones(name):
    """A mask of floats, or of other integers, may be meant to be added, where zero is what is seen."""
    layer, working = make(name)
    expected = numpy(layer(**working))
    for argument in {"mask", "context_mask", "attention_mask"} & set(working):
        mask = working[argument]
        for bad, words in ((mask.astype("float32"), ["bool", "float32"]), (np.where(mask, 0, -10000), ["-10000"])):
            refused(lambda: layer(**{**working, argument: bad}), [f"`{argument}`", *words])
        assert_same(numpy(layer(**{**working, argument: mask.astype("int32")})), expected)


@pytest.mark.parametrize("ids, words", [
    (np.array([[1.5, 2]], "float32"), ["integers", "fractions"]), (np.array([[True, False]]), ["integers", "bool"]),
    (np.array([[np.nan, 2]], "float32"), ["integers", "fractions"]), (np.array([[2**32 + 3, 2]]), ["32 bits"]),
    (np.array([[3.0, 11.0]]), ["from 0 to 10"]),
])  # fmt: skip
def test_ids_are_whole_numbers(ids, words):
    for vocab_size in (11, None) if words != ["from 0 to 10"] else (11,):
        refused(lambda: layers.PositionalEmbedding(vocab_size, 8)(ids), ["`inputs`", *words])


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


# --- subclasses ------------------------------------------------------------------------------------------------------


def positional_subclass(cls, fixed):
    """Passes everything on, in order or by name, through two constructors."""

    class First(cls):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)

    class Positional(First):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)

    return Positional, fixed


def defaulting_subclass(cls, fixed):
    """Has another default."""

    class Defaulting(cls):
        def __init__(self, **kwargs):
            super().__init__(**{**fixed, **kwargs})

    return Defaulting, {}


def adding_subclass(cls, fixed):
    """Has its own option, as an attribute of another name."""

    class Adding(cls):
        def __init__(self, gain=1.0, **kwargs):
            super().__init__(**kwargs)
            self._gain = gain

        @functools.wraps(cls.call)
        def call(self, *args, **kwargs):
            return self._gain * cls.call(self, *args, **kwargs)

    return Adding, {**fixed, "gain": 2.0}


def deep_subclass(cls, fixed):
    """Two levels: the first fixes an option, the second adds an option and overrides `get_config`."""

    class Fixing(cls):
        def __init__(self, **kwargs):
            super().__init__(**fixed, **kwargs)

    class Deep(Fixing):
        def __init__(self, label="none", **kwargs):
            super().__init__(**kwargs)
            self.label = label

        def get_config(self):
            return {**super().get_config(), "label": self.label}

    return Deep, {"label": "some"}


KINDS = [positional_subclass, defaulting_subclass, adding_subclass, deep_subclass]


def model_of(layer, arrays):
    symbols = {name: keras.Input(array.shape[1:], dtype=str(array.dtype)) for name, array in arrays.items()}
    first, *others = symbols
    return keras.Model([*symbols.values()], layer(symbols[first], **{name: symbols[name] for name in others}))


@pytest.mark.drawn(8)
@every_layer
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_subclass_keeps_its_options(name, kind, tmp_path):
    options, fixed, arguments = LAYERS[name]
    base = getattr(layers, name)
    arrays = {key: value for key, value in arguments.items() if "mask" not in key and "segment" not in key}
    inputs = [*arrays.values()]
    cls, more = kind(base, fixed)
    cls = keras.saving.register_keras_serializable(f"{name}-{kind.__name__}")(cls)
    model = model_of(cls(**options, **more), arrays)
    expected = numpy(model(inputs))
    plain = model_of(base(**options, **fixed), arrays)
    plain.set_weights(model.get_weights())
    gain = more.get("gain", 1.0)
    assert_same(expected, [gain * output for output in numpy(plain(inputs))], 1e-5)  # it has the option at all

    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(numpy(reloaded(inputs)), expected)
    assert type(reloaded.layers[-1]).__name__ == cls.__name__

    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    assert_same(numpy(clone(inputs)), expected)


def test_a_subclass_names_its_arguments_with_and_without_a_constructor():
    cls, _ = positional_subclass(layers.MultiHeadSelfAttention, {})
    config = cls(2, window=3).get_config()
    assert {"num_heads": 2, "window": 3}.items() <= config.items()
    config = type("Calling", (layers.MultiHeadSelfAttention,), {})(2, causal=True).get_config()
    assert config.keys() == layers.MultiHeadSelfAttention(2).get_config().keys() and config["causal"]


def test_a_subclass_may_have_other_arguments():
    class Pair(layers.FeedForward):
        def call(self, inputs, factors, note):
            return super().call(inputs) * factors["a"] * len(note)

    layer = Pair()
    once = layer(X, factors={"a": 1.0}, note="x")
    assert_same(numpy(layer(X, factors={"a": 2.0}, note="xyz")), [6 * numpy(once)[0]], 1e-5)


@keras.saving.register_keras_serializable("subclasses")
class Twice(layers.MultiHeadSelfAttention):
    """Passes on another value than came."""

    def __init__(self, num_heads, window=2, kernel_initializer=None, **kwargs):
        super().__init__(num_heads, window=2 * window, kernel_initializer=kernel_initializer or "zeros", **kwargs)


def test_a_value_that_a_subclass_changes_is_changed_once():
    initializer = keras.initializers.RandomNormal(stddev=0.5, seed=4)
    for make_one in (functools.partial(Twice, 2), lambda: Twice(np.int64(2), kernel_initializer=initializer)):
        layer = Twice.from_config(json.loads(json.dumps(make_one().get_config())))
        layer = Twice.from_config(json.loads(json.dumps(layer.get_config())))
        assert (layer.window, layer.num_heads) == (4, 2)
    assert layer.kernel_initializer.get_config() == initializer.get_config()


@pytest.mark.slow
def test_a_shared_position_is_shared_again(tmp_path):
    @keras.saving.register_keras_serializable("subclasses")
    class Open(layers.EncoderBlock):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)

    shared, inputs = layers.RelativeBias(2, num_buckets=6, max_distance=4), keras.Input((None, 8))
    model = keras.Model(inputs, Open(num_heads=2, position=shared)(Open(num_heads=2, position=shared)(inputs)))
    for _ in range(2):
        model.save(tmp_path / "model.keras")
        reloaded = keras.saving.load_model(tmp_path / "model.keras")
        first, second = reloaded.layers[1:]
        assert first.position is second.position and first.attention.position_layer is first.position
        assert [w.path for w in reloaded.weights] == [w.path for w in model.weights]
        assert_same(numpy(reloaded(X)), numpy(model(X)))
        model = reloaded


@every_layer
def test_the_signature_is_the_constructors(name):
    """What `help` and editors show."""
    cls = getattr(layers, name)
    shown, taken = (list(inspect.signature(function).parameters) for function in (cls, cls.__init__))
    assert shown == taken[1:] != ["args", "kwargs"]
