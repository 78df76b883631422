"""Subclasses of every public layer, as users write them, keep all of their options when they are saved or copied."""

import functools
import inspect
import json

import keras
import numpy as np
import pytest
from cases import assert_same, numpy

import keras_txf as txf

layers = txf.layers
RANDOM = np.random.default_rng(3)
X, CONTEXT = RANDOM.normal(size=(2, 5, 8)).astype("float32"), RANDOM.normal(size=(2, 4, 6)).astype("float32")
IDS, PLACES = np.array([[[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]], [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]]], "int32")
ROPE = {"position": layers.Rotary(base=50.0, fraction=2 / 3)}
ATTENTION = dict(num_heads=2, head_dim=6, num_key_value_heads=1, use_bias=False, qk_norm=True, logit_soft_cap=2.0)
BLOCK = dict(
    ATTENTION, intermediate_dim=10, window=2, activation="silu", gated=True, norm="rms", norm_placement="sandwich",
    dropout=0.3,
)  # fmt: skip
# Of each public layer: options that are no defaults, one that changes the outputs, and what the layer is called on.
LAYERS = {
    "MultiHeadSelfAttention": (dict(ATTENTION, window=3, **ROPE), {"causal": True}, [X]),
    "LatentAttention": (dict(num_heads=2, kv_lora_rank=6, qk_nope_head_dim=4, qk_rope_head_dim=2, q_lora_rank=5,
                             v_head_dim=3), {"causal": True}, [X]),
    "CrossAttention": (ATTENTION, {"scale": 3.0}, [X, CONTEXT]),
    "FeedForward": (dict(intermediate_dim=10, gated=True), {"activation": "silu"}, [X]),
    "MixtureOfExperts": (dict(num_experts=3, intermediate_dim=10, num_shared_experts=1),
                         {"router_activation": "sigmoid", "activation": "gelu"}, [X]),
    "EncoderBlock": (dict(BLOCK, **ROPE), {"causal": True}, [X]),
    "DecoderBlock": (dict(BLOCK, cross_attention=True), {"position": "alibi"}, [X, CONTEXT]),
    "Pooling": ({}, {"kind": "max"}, [X]),
    "AttentionPooling": (dict(num_heads=2, intermediate_dim=10), {"activation": "relu"}, [X]),
    "PositionalEmbedding": (dict(vocab_size=11, dim=8, position_encoding="learned", max_length=9), {"scale": True},
                            [IDS]),
    "FeatureEmbedding": (dict(dim=8, use_bias=False), {"position_encoding": None}, [X]),
    "AudioEmbedding": (dict(dim=8, kernel_size=5, strides=(2, 1)), {"position_encoding": None}, [X]),
    "LogMelSpectrogram": (dict(num_mel_bins=3, frame_length=4, hop_length=2), {"sampling_rate": 400}, [X[0]]),
    "PatchEmbedding": (dict(patch_size=2, dim=8, image_size=(4, 6)), {"class_token": False},
                       [RANDOM.random((2, 4, 6, 3), "float32")]),
    "RecurrentDecoder": (dict(dim=4, cell="lstm", dropout=0.2), {"attention": "additive"}, [X, X[:, 0], CONTEXT]),
    "Rotary": ({"fraction": 0.5}, {"base": 20.0}, [RANDOM.normal(size=(2, 5, 2, 8)).astype("float32"), PLACES]),
    "Convolution": ({"kernel_size": 5}, {"activation": "relu"}, [X]),
    "DisentangledPositions": (dict(dim=3, num_buckets=8, share_projections=True), {"max_distance": 4},
                              [PLACES, PLACES[:, :3]]),
    "AxialRotary": ({"grid": 2, "tokens_before": 1}, {"base": 20.0},
                    [RANDOM.normal(size=(2, 5, 2, 8)).astype("float32"), PLACES]),
    "ALiBi": ({}, {"num_heads": 3}, [PLACES, PLACES[:, :3]]),
    "RelativeBias": (dict(num_heads=2, num_buckets=6, max_distance=4), {"bidirectional": False},
                     [PLACES, PLACES[:, :3]]),
}  # fmt: skip


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
    """Has an option of its own, which it keeps under another name."""

    class Adding(cls):
        def __init__(self, gain=1.0, **kwargs):
            super().__init__(**kwargs)
            self._gain = gain

        @functools.wraps(cls.call)
        def call(self, *args, **kwargs):
            return self._gain * cls.call(self, *args, **kwargs)

    return Adding, {**fixed, "gain": 2.0}


def deep_subclass(cls, fixed):
    """Two levels: one that fixes an option, and one above it that adds another and says so in `get_config` too."""

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
    symbols = [keras.Input(array.shape[1:], dtype=str(array.dtype)) for array in arrays]
    return keras.Model(symbols, layer(*symbols))


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_subclass_keeps_its_options(name, kind, tmp_path):
    options, fixed, arrays = LAYERS[name]
    base = getattr(layers, name)
    cls, more = kind(base, fixed)
    cls = keras.saving.register_keras_serializable(f"{name}-{kind.__name__}")(cls)
    layer = cls(**options, **more)
    model = model_of(layer, arrays)
    expected = numpy(model(arrays))
    plain = model_of(base(**{**options, **fixed}), arrays)
    plain.set_weights(model.get_weights())
    gain = more.get("gain", 1.0)
    assert_same(expected, [gain * output for output in numpy(plain(arrays))], 1e-5)  # it has the option at all

    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(numpy(reloaded(arrays)), expected)
    assert type(reloaded.layers[-1]).__name__ == cls.__name__

    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    assert_same(numpy(clone(arrays)), expected)


def test_the_table_knows_every_public_layer():
    assert set(LAYERS) == {name for name in layers.__all__ if issubclass(getattr(layers, name), keras.layers.Layer)}


@pytest.mark.slow
def test_the_fixed_options_change_the_outputs():
    """Or the test above would not see that they are lost."""
    for name, (options, fixed, arrays) in LAYERS.items():
        if not {"num_heads", "class_token", "attention"} & set(fixed):  # which change shapes
            one, other = (model_of(getattr(layers, name)(**each), arrays) for each in (options, {**options, **fixed}))
            other.set_weights(one.get_weights())
            [before], [after] = numpy(one(arrays)), numpy(other(arrays))
            assert np.abs(after - before).max() > 1e-3, name


def test_arguments_in_order_have_their_names():
    cls, _ = positional_subclass(layers.MultiHeadSelfAttention, {})
    config = cls(2, 6, 1, window=3).get_config()
    assert {"num_heads": 2, "head_dim": 6, "num_key_value_heads": 1, "window": 3}.items() <= config.items()


def test_a_subclass_without_a_constructor_has_all_options():
    class Calling(layers.MultiHeadSelfAttention):
        pass

    config = Calling(2, causal=True).get_config()
    plain = layers.MultiHeadSelfAttention(2, causal=True).get_config()
    assert config.keys() == plain.keys() and config["causal"]


@keras.saving.register_keras_serializable("subclasses")
class Twice(layers.MultiHeadSelfAttention):
    """Passes on another value than came."""

    def __init__(self, num_heads, window=2, kernel_initializer=None, **kwargs):
        super().__init__(num_heads, window=2 * window, kernel_initializer=kernel_initializer or "zeros", **kwargs)


def test_a_value_that_is_changed_on_the_way_is_changed_once(tmp_path):
    initializer = keras.initializers.RandomNormal(stddev=0.5, seed=4)
    for make in (functools.partial(Twice, 2), functools.partial(Twice, np.int64(2), kernel_initializer=initializer)):
        layer = Twice.from_config(json.loads(json.dumps(make().get_config())))
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
    x = inputs
    for _ in range(2):
        x = Open(num_heads=2, position=shared)(x)
    model = keras.Model(inputs, x)
    for _ in range(2):
        model.save(tmp_path / "model.keras")
        reloaded = keras.saving.load_model(tmp_path / "model.keras")
        first, second = reloaded.layers[1:]
        assert first.position is second.position and first.attention.position_layer is first.position
        assert [w.path for w in reloaded.weights] == [w.path for w in model.weights]
        assert_same(numpy(reloaded(X)), numpy(model(X)))
        model = reloaded


@pytest.mark.parametrize("name", LAYERS)
def test_the_signature_is_the_constructors(name):
    """What `help` and editors show."""
    cls = getattr(layers, name)
    shown, taken = (list(inspect.signature(function).parameters) for function in (cls, cls.__init__))
    assert shown == taken[1:] != ["args", "kwargs"]
