"""What all tests share: one seed, and no state of Keras from one module to the next."""

import gc

import keras
import pytest

pytest.register_assert_rewrite("contracts")


@pytest.fixture(autouse=True)
def seed(clear_session):
    with pytest.MonkeyPatch.context() as patch:
        # TensorFlow's own seed throws away all kernels: it is set once for each module, or tests take a sixth longer.
        patch.setattr("tensorflow.random.set_seed", lambda seed: None)
        keras.utils.set_random_seed(7)


@pytest.fixture(autouse=True, scope="module")
def clear_session():
    keras.utils.set_random_seed(7)
    gc.freeze()  # garbage is then looked for among what the module makes, not each time among all that was imported
    yield
    keras.backend.clear_session()
