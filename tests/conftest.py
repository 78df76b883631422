"""What all tests share: one seed, no state of Keras from one module to the next, loops that are compiled or not."""

import gc
import importlib.util
import os

# XLA optimizes machine code that most tests run once: without, compiling takes half as long. What XLA does to the
# graph itself stays. XLA_FLAGS="" in the environment tests what users run.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false",
)
# pytest-xdist runs one process on each core. With threads for all cores in each process, PyTorch's threads wait.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import keras
import pytest

pytest.register_assert_rewrite("contracts")
HAS_TENSORFLOW = bool(importlib.util.find_spec("tensorflow"))


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items):
    if keras.backend.backend() == "tensorflow":
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def seed(clear_session):
    with pytest.MonkeyPatch.context() as patch:
        # TensorFlow's own seed throws away all kernels: it is set once for each module, or tests take a sixth longer.
        if HAS_TENSORFLOW:
            patch.setattr("tensorflow.random.set_seed", lambda seed: None)
        keras.utils.set_random_seed(7)


@pytest.fixture(autouse=True, scope="module")
def clear_session():
    keras.utils.set_random_seed(7)
    gc.freeze()  # garbage is then looked for among what the module makes, not each time among all that was imported
    yield
    keras.backend.clear_session()


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
