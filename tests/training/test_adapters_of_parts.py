"""LoRA on Dense layers that are not this package's: in a user's attention and feed-forward, and directly in a model."""

import keras
import numpy as np
import pytest
from adapter_cases import array, fit, run, same, train, values
from keras import layers
from user_layers import Bottleneck, DifferentialAttention, SquaredReLU

import keras_txf as txf
from keras_txf.training import add_adapter, merge_adapter, remove_adapter, use_adapter

random = np.random.default_rng(0)
# Products of the same matrices differ in the last bit on PyTorch, by where the memory starts.
IDS, HIDDEN = random.integers(1, 11, (6, 5)), random.normal(size=(6, 5, 8)).astype("float32")
PARTS = ["attention/query", "attention/key", "attention/value", "attention/output_dense"]
DENSE = [f"decoder_{i}/{part}" for i in range(2) for part in PARTS]
DENSE += [f"decoder_{i}/feed_forward/{part}" for i, part in ((0, "inner"), (0, "outer"), (1, "down"), (1, "up"))]


def generator():
    """Of a user's parts; the last feed-forward has an activation within a Dense layer, and no `build`."""
    keras.utils.set_random_seed(3)
    parts = {"attention": DifferentialAttention(2), "feed_forward": [SquaredReLU(6), Bottleneck(3, 8)]}
    return txf.models.decoder_generator(11, num_layers=2, dim=8, dropout=0.0, **parts)


@keras.saving.register_keras_serializable(package="tests")
class DoubledDense(layers.Dense):
    def call(self, inputs):
        return 2 * super().call(inputs)


def of_keras():
    """Dense layers of a model, in a wrapper, in layers of a user's, and one that does not compute as Dense."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((None, 8))
    x = layers.TimeDistributed(layers.Dense(8, activation="relu"), name="wrapper")(inputs)
    x = Bottleneck(3, 8, name="bottleneck")(DifferentialAttention(2, name="attention")(x))
    x = layers.Dense(7, activation="gelu", name="mine")(x)
    return keras.Model(inputs, layers.Dense(4, use_bias=False, name="logits")(DoubledDense(5, name="doubled")(x)))


def randomize(model):
    for variable in model.trainable_variables:
        variable.assign(0.2 * random.normal(size=variable.shape))


@pytest.mark.slow
def test_parts_of_a_users_are_trained_saved_and_merged(tmp_path):
    model = generator()
    before, bare = values(model.weights), run(model, IDS)
    add_adapter(model, rank=2, dropout=0.1, targets="*")
    np.testing.assert_allclose(run(model, IDS), bare, atol=1e-6)
    parts = [f"{path}/default_lora_{part}" for path in DENSE for part in "ab"]
    assert sorted(variable.path for variable in model.trainable_variables) == sorted(parts)
    adapter = values(model.trainable_variables)
    fit(model, IDS, rate=0.1)
    assert all((value != adapter[path]).any() for path, value in values(model.trainable_variables).items())
    same(values(v for v in model.weights if v.path in before), before)
    tuned, other = run(model, IDS), generator()

    txf.training.save_adapter(model, tmp_path / "one.safetensors")
    txf.training.load_adapter(other, tmp_path / "one.safetensors", "other")
    np.testing.assert_allclose(run(other, IDS), tuned, atol=1e-6)
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras", safe_mode=True)
    np.testing.assert_allclose(run(reloaded, IDS), tuned, atol=1e-6)
    same(values(reloaded.trainable_variables), values(model.trainable_variables))
    generated = reloaded.generate([[3, 5, 8]], 6)
    np.testing.assert_array_equal(generated[:, 3:], 1 + run(model, generated)[:, 2:-1, 1:].argmax(-1))  # 0 is padding
    assert (generated[:, 3:] != 1 + run(generator(), generated)[:, 2:-1, 1:].argmax(-1)).any()
    for one in (reloaded, model):
        train(one, IDS, epochs=1)
    assert np.abs(run(reloaded, IDS) - tuned).max() > 1e-3

    tuned = run(model, IDS)
    merge_adapter(model)
    np.testing.assert_allclose(run(model, IDS), tuned, atol=1e-4)
    assert values(model.weights).keys() == before.keys()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("quantized", [False, True])
def test_any_dense_layer_of_a_model_of_keras(quantized, tmp_path):
    model = of_keras()
    if quantized:
        model.quantize("int8")
    bare = run(model, HIDDEN)
    add_adapter(model, "one", rank=2, targets="*", heads=())
    assert not any("doubled" in variable.path for variable in model.trainable_variables)
    np.testing.assert_allclose(run(model, HIDDEN), bare, atol=1e-6)
    randomize(model)
    tuned = run(model, HIDDEN)
    assert np.abs(tuned - bare).max() > 1e-2
    with pytest.raises(ValueError, match="adapters inside wrapper, a TimeDistributed. Use `txf.training.save_adapter`"):
        model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "all.weights.h5")
    other = of_keras()
    if quantized:
        other.quantize("int8")
    add_adapter(other, "one", rank=2, targets="*", heads=())
    other.load_weights(tmp_path / "all.weights.h5")
    for name, expected in (("one", tuned), (None, bare)):
        use_adapter(other, name), use_adapter(model, name)
        np.testing.assert_allclose(run(other, HIDDEN), expected, atol=1e-6)
    (remove_adapter if quantized else merge_adapter)(model, "one")
    np.testing.assert_allclose(run(model, HIDDEN), bare if quantized else tuned, rtol=1e-4, atol=1e-4)
    model.save(tmp_path / "model.keras")


@keras.saving.register_keras_serializable(package="tests")
class ModelOfCode(keras.Model):
    """A model without a graph, whose block Keras makes anew from a file."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.block = txf.layers.EncoderBlock(2, intermediate_dim=12, name="block")

    def call(self, inputs):
        return self.block(inputs)

    def get_config(self):
        return {}


def test_a_model_without_a_graph_is_not_saved_without_its_adapters(tmp_path):
    model = ModelOfCode(name="mine")
    model(HIDDEN)
    add_adapter(model, rank=2, targets="*/query", heads=())
    with pytest.raises(ValueError, match="received adapters inside mine, a ModelOfCode. Use"):
        model.save(tmp_path / "model.keras")
    remove_adapter(keras.Sequential([keras.Input((None, 8)), model.block]))
    model.save(tmp_path / "model.keras")


@keras.saving.register_keras_serializable(package="tests")
class WithDense(layers.Wrapper):
    """A wrapper with a layer that its configuration does not hold."""

    def build(self, shape):
        if not self.layer.built:  # a file has built it
            self.layer.build(shape)
        self.extra = layers.Dense(8, name="extra")
        self.extra.build(shape)

    def call(self, inputs):
        return self.extra(self.layer(inputs))


def test_a_wrapper_keeps_the_adapters_of_its_layer_alone(tmp_path):
    inputs = keras.Input((None, 8))
    model = keras.Model(inputs, WithDense(txf.layers.FeedForward(12, name="network"), name="wrapper")(inputs))
    add_adapter(model, "one", rank=2, targets="*intermediate", heads=())
    model.save(tmp_path / "model.keras")
    reloaded = keras.saving.load_model(tmp_path / "model.keras")
    assert sum("one_lora" in weight.path for weight in reloaded.weights) == 2
    add_adapter(model, "two", rank=2, targets="*extra", heads=())
    with pytest.raises(ValueError, match="received adapters inside wrapper"):
        model.save(tmp_path / "model.keras")


@keras.saving.register_keras_serializable(package="tests")
class GainedDense(layers.Dense):
    @property
    def kernel(self):
        return 2 * super().kernel


def test_a_dense_layer_that_computes_otherwise_takes_no_adapter():
    changed = layers.Dense(8, name="changed")
    call = changed.call
    changed.call = lambda inputs, training=None: 2 * call(inputs)
    model = keras.Sequential(
        [keras.Input((None, 8)), changed, GainedDense(8, name="gained"), layers.Dense(8, name="x")]
    )
    with pytest.raises(ValueError, match="'changed'"):
        add_adapter(model, targets="changed", heads=())
    with pytest.raises(ValueError, match="'gained'"):
        add_adapter(model, targets="gained", heads=())


def test_removing_the_last_adapter_restores_the_layer():
    model = of_keras()
    layer = model.get_layer("mine")
    before = dict(vars(layer))
    for name in ("one", "two"):
        add_adapter(model, name, targets="mine", dropout=0.1, heads=())
    with pytest.raises(
        ValueError, match="must be 'int8' or 'int4' for a layer with adapters; received 'float8' for mine"
    ):
        layer.quantize("float8")
    for name in ("one", "two"):
        remove_adapter(model, name)
    assert vars(layer).keys() == before.keys() and layer.quantize is before["quantize"]
    assert len(model.variables) == len(of_keras().variables)
    with pytest.raises(ValueError, match="the paths of Dense and EinsumDense layers; received 'doubled'"):
        add_adapter(model, targets="doubled")


def test_an_activation_is_computed_again_in_the_backward_pass():
    with keras.RematScope(mode="activations"):
        model = of_keras()
    add_adapter(model, targets="mine", rank=2, heads=())
    randomize(model)
    before = array(model.trainable_variables[0])
    fit(model, HIDDEN[:3], epochs=1)
    assert (array(model.trainable_variables[0]) != before).any()
