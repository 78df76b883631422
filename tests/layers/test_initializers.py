"""A seeded initializer: other numbers for each weight, the same ones for each model that is built alike."""

import keras
import numpy as np
import pytest

import keras_txf as txf

models, layers = txf.models, txf.layers
SIZES = dict(num_layers=2, dim=8, num_heads=2)


def tables(options, *encoding, **of_embedding):
    """Options in which an embedding has the initializer of tables."""
    initializer = options.pop("embeddings_initializer", None)
    embedding = layers.PositionalEmbedding(11, 8, *encoding, embeddings_initializer=initializer, **of_embedding)
    return {**options, "embedding": embedding}


BUILDERS = {
    "encoder": lambda **options: models.encoder(
        11, **SIZES, gated=True, **tables(options, "learned", 11, token_types=11)
    ),
    "decoder_generator": lambda **options: models.decoder_generator(
        11, **SIZES, norm_placement="pre", **tables(options, "sinusoidal")
    ),
    "encoder_decoder": lambda **options: models.encoder_decoder(
        11, 11, **SIZES, share_embeddings=False, **tables(options, "sinusoidal")
    ),
    "image_encoder": lambda **options: models.image_encoder((2, 2), 1, **SIZES, channels=8, class_token=True,
                                                            **options),
}  # fmt: skip


def seeded(seed=1):
    options = ("kernel_initializer", "embeddings_initializer")
    return {name: keras.initializers.RandomNormal(seed=seed) for name in options}


def weights(model):
    """What is drawn, by path: kernels and tables."""
    drawn = {w.path: np.array(w.numpy() if hasattr(w, "numpy") else w) for w in model.weights if len(w.shape) == 2}
    assert len(drawn) >= 10
    return drawn


@pytest.mark.parametrize("name", BUILDERS)
def test_each_weight_has_its_own_numbers(name):
    drawn = weights(BUILDERS[name](**seeded()))
    # A draw begins alike whatever its shape.
    rows = {path: tuple(np.round(value.reshape(-1)[:8], 6)) for path, value in drawn.items()}
    assert len(set(rows.values())) == len(rows), rows


def test_the_initializer_draws_the_weights():
    """Of the scale that it gives, not some other one."""
    initializer = keras.initializers.RandomNormal(mean=3.0, stddev=0.1, seed=1)
    layer = layers.MultiHeadSelfAttention(4, kernel_initializer=initializer)
    layer.build((None, None, 64))
    for kernel in (layer.query.kernel, layer.key.kernel, layer.value.kernel, layer.output_dense.kernel):
        values = keras.ops.convert_to_numpy(kernel)
        assert abs(values.mean() - 3) < 0.02 and abs(values.std() - 0.1) < 0.01


def test_configurations_keep_the_given_initializer():
    model = BUILDERS["encoder"](**seeded())
    expected = keras.initializers.RandomNormal(seed=1).get_config()
    for name, option in (("embedding", "embeddings_initializer"), ("encoder_1", "kernel_initializer")):
        assert model.get_layer(name).get_config()[option]["config"] == expected
    clone, another_seed = weights(keras.models.clone_model(model)), weights(BUILDERS["encoder"](**seeded(2)))
    for path, value in weights(model).items():
        np.testing.assert_array_equal(value, clone[path])
        assert (value != another_seed[path]).any()


def test_a_generator_of_seeds_goes_on():
    initializer = keras.initializers.RandomNormal(seed=keras.random.SeedGenerator(1))
    drawn = weights(BUILDERS["encoder"](kernel_initializer=initializer))
    starts = {tuple(value.reshape(-1)[:8]) for value in drawn.values()}
    assert len(starts) == len(drawn)
