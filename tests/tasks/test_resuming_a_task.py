"""A task that was killed and started again has the weights of an unbroken training."""

import keras
import numpy as np
import pytest

import keras_txf as txf

LINES = ["the cat sat on the mat", "the dog sat", "a bird sang to the dog", "on the rug"] * 6


def train(file, killed_after=None):
    keras.utils.set_random_seed(1)
    generator = txf.tasks.TextGenerator.from_scratch(LINES, vocab_size=30, num_layers=1, dim=16, num_heads=2)
    resume = txf.training.Resume(file)
    kill = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: stop(epoch == killed_after))
    generator.fit(
        LINES, epochs=4, initial_epoch=resume.epoch, batch_size=4, seed=3, callbacks=[resume, kill], verbose=0
    )
    return generator.model.get_weights()


def stop(is_time):
    if is_time:
        raise KeyboardInterrupt


@pytest.mark.slow
def test_a_killed_training_ends_like_an_unbroken_one(tmp_path):
    expected = train(tmp_path / "unbroken.npz")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "broken.npz", killed_after=2)
    found = train(tmp_path / "broken.npz")
    for one, other in zip(expected, found):
        np.testing.assert_allclose(other, one, atol=1e-6)
    complete = train(tmp_path / "broken.npz")  # nothing left to do: the weights are read
    for one, other in zip(found, complete):
        np.testing.assert_array_equal(other, one)
