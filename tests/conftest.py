"""What all tests share: one seed, and no state of Keras from one module to the next."""

import gc

import keras
import pytest

pytest.register_assert_rewrite("contracts")


@pytest.fixture(autouse=True)
def seed():
    keras.utils.set_random_seed(7)


@pytest.fixture(autouse=True, scope="module")
def clear_session():
    gc.freeze()  # garbage is then looked for among what the module makes, not each time among all that was imported
    yield
    keras.backend.clear_session()
