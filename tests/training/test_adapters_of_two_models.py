"""Adapters on two encoders inside one model, whose layers and variables have the same paths."""

import keras
import numpy as np
import pytest
from adapter_cases import array, same
from keras import layers
from refusals import refused
from safetensors.numpy import load_file

import keras_txf as txf
from keras_txf.training import add_adapter, load_adapter, merge_adapter, save_adapter, use_adapter
from keras_txf.training.selection import heads_of

random = np.random.default_rng(0)
IDS = [random.integers(1, 11, (4, 5)), random.integers(1, 11, (4, 3))]
BERT = {"model_type": "bert", "architectures": ["BertModel"]}
TARGETS = np.linspace(-1, 1, 4)[:, None]


def two_towers(names=(None, None), more=1):
    """The head of the first tower is deeper: its layers stand before the blocks of the second one in the model."""
    towers = [txf.models.encoder(11, 1, 8, 2, dropout=0.0, name=name) for name in names]
    inputs = [keras.Input((None,), dtype="int32") for _ in towers]
    one, two = (layers.GlobalAveragePooling1D()(tower(ids)) for tower, ids in zip(towers, inputs))
    for number in range(more):
        one = layers.Dense(8, name=f"deep_{number}")(one)
    return keras.Model(inputs, layers.Dot(1)([layers.Dense(6, name="left")(one), layers.Dense(6, name="right")(two)]))


def fit(model, epochs):
    model.fit(IDS, TARGETS, epochs=epochs, batch_size=2, shuffle=False, verbose=0)


def numbers(variables):
    return {str(number): array(variable) for number, variable in enumerate(variables)}


@pytest.mark.slow
@pytest.mark.parametrize("names", [(None, None), ("queries", "documents")])
def test_both_are_trained_saved_loaded_and_merged(names, tmp_path):
    model, other, third = two_towers(names), two_towers(names), two_towers(("a", "b"))
    other.set_weights(model.get_weights())
    add_adapter(model, rank=2)
    assert sum("lora" in variable.path for variable in model.trainable_variables) == 8
    model.compile(keras.optimizers.Adam(0.05), "mse", run_eagerly=True)
    before = numbers(model.trainable_variables)
    fit(model, 2)
    assert all((value != before[key]).any() for key, value in numbers(model.trainable_variables).items())
    tuned = array(model(IDS))

    save_adapter(model, tmp_path / "one.safetensors")
    tensors = load_file(tmp_path / "one.safetensors")
    ones = names if names[0] else ("encoder", "encoder_1")  # whatever number Keras has counted to
    paths = [f"{one}/encoder_0/attention/{part}/lora_a" for one in ones for part in ("query", "value")]
    assert sorted(key for key in tensors if key.endswith("lora_a")) == sorted(paths)
    load_adapter(other, tmp_path / "one.safetensors")
    np.testing.assert_allclose(array(other(IDS)), tuned, atol=1e-6)
    merge_adapter(other)
    np.testing.assert_allclose(array(other(IDS)), tuned, atol=1e-5)
    refused(
        lambda: load_adapter(third, tmp_path / "one.safetensors"),
        ["must have the layers of", "/encoder_0/attention/query"],
    )

    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    again, weights = keras.saving.load_model(tmp_path / "model.keras"), two_towers(names)
    add_adapter(weights, rank=2)
    weights.load_weights(tmp_path / "model.weights.h5")
    for one in (again, weights):
        np.testing.assert_allclose(array(one(IDS)), tuned, atol=1e-6)
    same(numbers(again.optimizer.variables), numbers(model.optimizer.variables))
    for one in (model, again):
        fit(one, 2)
    for one, two in zip(model.trainable_variables, again.trainable_variables, strict=True):
        np.testing.assert_allclose(array(one), array(two), atol=1e-6)


def test_checkpoints_are_refused_and_go_each_by_itself(tmp_path):
    model, words = (
        two_towers(),
        ["`model` must have one weight of each path", "received 2 of", "each of its inner models"],
    )
    refused(lambda: txf.checkpoints.save(model, tmp_path / "new", BERT), words)
    add_adapter(model)
    refused(lambda: txf.checkpoints.save_adapter(model, tmp_path / "new", config=BERT), words)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("targets, places", [
    ("*/query", ["queries", "documents"]), ("encoder_0/attention/query", ["queries", "documents"]),
    ("documents/*/query", ["documents"]),
])  # fmt: skip
def test_a_path_selects_both_layers_and_a_path_after_a_model_name_selects_one(targets, places, tmp_path):
    model, other = (two_towers(("queries", "documents")) for _ in range(2))
    add_adapter(model, rank=2, targets=targets, heads="queries/embedding")
    trained = {id(variable) for variable in model.trainable_variables}
    for name in ("queries", "documents"):
        paths = [v.path for v in model.get_layer(name).weights if id(v) in trained]
        assert any("lora" in path for path in paths) == (name in places)
        assert any("embedding" in path for path in paths) == (name == "queries")
    save_adapter(model, tmp_path / "one.safetensors")
    load_adapter(other, tmp_path / "one.safetensors")
    same(numbers(other.trainable_variables), numbers(model.trainable_variables))
    use_adapter(model, None)


def test_heads_are_the_layers_after_the_last_block_of_each_model():
    assert [head.name for head in heads_of(two_towers(more=2))] == ["deep_0", "deep_1", "left", "right"]
    towers = [txf.models.encoder_classifier(11, 4, num_layers=1, dim=8, num_heads=2) for _ in range(2)]
    inputs = [keras.Input((None,), dtype="int32") for _ in towers]
    model = keras.Model(inputs, layers.Add()([tower(ids) for tower, ids in zip(towers, inputs)]))
    assert [head.name for head in heads_of(model)] == ["logits", "logits"]


class Pair(keras.Model):
    def __init__(self):
        super().__init__(name="pair")
        self.both = [layers.Dense(2, name="same") for _ in range(2)]

    def call(self, x):
        return self.both[0](x) + self.both[1](x)


def test_two_layers_of_one_path_in_one_model_raise_an_error():
    model = Pair()
    model(np.ones((1, 3)))
    refused(
        lambda: add_adapter(model, targets="*", heads=()), ["one layer of each path within one model", "'pair/same'"]
    )
    assert len(model.weights) == 4
