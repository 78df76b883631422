import keras
import pytest


@pytest.fixture
def uncompiled():
    """Runs the loops of TensorFlow step by step: what they compute is the same, and compiling takes seconds each."""
    if keras.backend.backend() != "tensorflow":
        yield
        return
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture
def compiled(uncompiled):
    """For a test among others that are not: the loops are compiled."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.run_functions_eagerly(False)
