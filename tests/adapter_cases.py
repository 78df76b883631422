"""Models with LoRA adapters, for the tests of adapters and of their files."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

import keras_txf as txf
from keras_txf.training import add_adapter

random = np.random.default_rng(0)
IDS, TARGETS = random.integers(1, 11, (6, 5)), random.integers(1, 13, (6, 4))
OPTIONS = {"num_layers": 2, "dim": 12, "num_heads": 3, "dropout": 0.0}
BUILDERS = {
    "classifier": (functools.partial(txf.models.encoder_classifier, 11, 4, pooling="attention", **OPTIONS), IDS),
    "generator": (functools.partial(txf.models.decoder_generator, 11, norm_placement="pre", **OPTIONS), IDS),
    "untied": (functools.partial(txf.models.decoder_generator, 11, tie_embeddings=False, **OPTIONS), IDS),
    "seq2seq": (functools.partial(txf.models.encoder_decoder, 11, 13, position="relative", **OPTIONS),
                {"source_ids": IDS, "target_ids": TARGETS}),
}  # fmt: skip
every_builder = pytest.mark.parametrize("builder", BUILDERS)


def array(x):
    return np.array(ops.convert_to_numpy(ops.cast(x, "float32")))


def run(model, inputs):
    return array(model(inputs))


def values(variables):
    return {variable.path: np.array(ops.convert_to_numpy(variable)) for variable in variables}


def same(one, other):
    assert one.keys() == other.keys()
    changed = [path for path in one if (one[path] != other[path]).any()]
    assert not changed


def fit(model, inputs, epochs=2, rate=1e-2, **options):
    model.compile(keras.optimizers.Adam(rate), "mse", **{"run_eagerly": True, **options})
    train(model, inputs, epochs)


def train(model, inputs, epochs=2):
    outputs = np.cos(np.arange(np.prod(run(model, inputs).shape))).reshape(run(model, inputs).shape)
    history = model.fit(inputs, outputs, epochs=epochs, batch_size=3, shuffle=False, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


def trained(builder, **adapter):
    """A model with an adapter that has been trained, and its inputs."""
    build, inputs = BUILDERS[builder]
    model = build()
    add_adapter(model, **{"rank": 2, **adapter})
    fit(model, inputs)
    return model, inputs
