"""What backend/ does with private names of Keras: a failure names what a new Keras broke."""

import keras
import numpy as np

from keras_txf.backend import flat_graph, functional_graph, keras_private


def dense():
    layer = keras.layers.Dense(3)
    layer.build((None, 2))
    return layer


def test_flatten_layers():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.Sequential([keras.layers.Dense(4)])])
    names = [type(layer).__name__ for layer in keras_private.flatten_layers(model)]
    assert names[0] == "Sequential" and names.count("Dense") == 2
    assert keras_private.layers_by_attribute(model)[""] is model


def test_trainable_by_nature_and_kept_kernel():
    layer = dense()
    layer.trainable = False
    assert not layer.trainable_variables
    assert keras_private.trainable_by_nature(layer) == keras_private.own_trainable_by_nature(layer) == layer.weights
    assert keras_private.kept_kernel(layer) is layer.weights[0]


def test_accept_trainable_state_and_trained_by(recwarn):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.layers[0].trainable = False
    keras_private.accept_trainable_state(model)
    model.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
    assert not recwarn.list
    assert len(keras_private.trained_by(model.optimizer)) == 2


def test_unlocked_and_untrack():
    layer = dense()
    with keras_private.unlocked(layer):
        more = layer.add_weight(shape=(1,), name="more")
    assert len(layer.weights) == 3
    keras_private.untrack(layer, more)
    assert len(layer.weights) == 2


def test_gradients_of_two_variables_of_one_path_are_forgotten():
    x = keras.Input((2,))
    inner = [keras.layers.Dense(1, name="dense")(x) for _ in range(2)]
    one, two = (keras.Model(x, y, name=name) for name, y in zip("ab", inner))
    model = keras.Model(x, one(x) + two(x))
    model.compile(keras.optimizers.SGD(0.0), "mse")
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    assert [v.path for v in model.weights] == ["dense/kernel", "dense/bias"] * 2
    if keras.backend.backend() == "torch":
        model.zero_grad()
        assert [v.value.grad for v in model.weights] == [None] * 4


def test_training_of_call():
    seen = []

    class Look(keras.layers.Layer):
        def call(self, x):
            seen.append(keras_private.training_of_call(self))
            return x

    layer = Look()
    model = keras.Sequential([layer])
    for training in (True, False):
        model(np.ones((1, 2)), training=training)
    assert seen[-2:] == [True, False]


def test_remat_mode():
    with keras.RematScope(mode="full"):
        assert getattr(keras_private.remat_mode(keras.layers.Dense(1)), "mode", None) == "full"
    assert keras_private.remat_mode(keras.layers.Dense(1)) is None


def test_without_autocast():
    seen = []

    class Look(keras.layers.Layer):
        def build(self, shape):
            self.weight = self.add_weight(shape=(1,))

        def call(self, x):
            seen.append(keras.backend.standardize_dtype((self.weight + 0).dtype))
            with keras_private.without_autocast():
                seen.append(keras.backend.standardize_dtype((self.weight + 0).dtype))
            return x

    Look(dtype="mixed_bfloat16")(np.ones((1, 2)))
    assert seen == ["bfloat16", "float32"]


def test_infer_spec():
    symbol = keras.KerasTensor((None, 2))
    assert keras_private.infer_spec(lambda x: keras.ops.concatenate([x, x], axis=1), symbol).shape == (None, 4)


def test_variables_without_values():
    with keras_private.without_values() as made:
        layer = dense()
    assert len(made) == 2 and not any(map(keras_private.has_value, layer.weights))
    keras_private.initialize(layer.weights[0], lambda shape, dtype: keras.ops.ones(shape, dtype))
    keras_private.initialize(layer.weights[1])
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(layer.weights[0]), np.ones((2, 3)))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(layer.weights[1]), np.zeros(3))


def test_the_graph_of_a_model():
    ids, other = keras.Input((None,), dtype="int32"), keras.Input((4,), name="other", optional=True)
    embedding = keras.layers.Embedding(5, 4, mask_zero=True)
    x = embedding(ids)
    joined = keras.layers.Concatenate(axis=1)([x, x])
    model = keras.Model([ids, other], keras.layers.Dense(2, name="last")(joined[:, 2:]))
    assert functional_graph.is_functional(model) and functional_graph.optional_inputs(model) == ["other"]
    assert functional_graph.layers_called_on(model, ids)[0] is embedding
    operations = [node.operation for node in functional_graph.nodes(model)]
    assert "last" in [operation.name for operation in operations]
    assert 1 in [flat_graph.concatenation_axis(operation) for operation in operations]
    [cut] = [node for node in functional_graph.nodes(model) if type(node.operation).__name__ == "GetItem"]
    assert flat_graph.sequence_start(cut.operation, cut.arguments.args, cut.arguments.kwargs) == 2
    called = []

    def call(layer, *args, **kwargs):
        called.append(layer)
        return layer(*args, **kwargs)

    outputs = functional_graph.run_graph(model, [np.array([[1, 2]]), None], call)
    assert outputs.shape == (1, 2, 2) and embedding in called
    assert functional_graph.mask_of(embedding(np.array([[1, 0]]))) is not None


def test_seed_of_words():
    words = keras.random.SeedGenerator(5).next()

    def draw(words):
        dropped = keras.random.dropout(np.ones((40,), "float32"), 0.5, seed=keras_private.seed_of_words(words))
        return keras.ops.convert_to_numpy(dropped)

    np.testing.assert_array_equal(draw(words), draw(words))
    assert (draw(words + 1) != draw(words)).any()
