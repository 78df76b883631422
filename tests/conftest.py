"""Shared by all tests: which cases run today, one seed, a clean Keras for each module, compiled or eager loops."""

import datetime
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
from rotation import drawn, is_drawn

pytest.register_assert_rewrite("contracts")
HAS_TENSORFLOW = bool(importlib.util.find_spec("tensorflow"))


def _day(text):
    if int(text) < 1:
        raise ValueError("days are counted from 1")
    return int(text)


def pytest_addoption(parser):
    group = parser.getgroup("keras_txf")
    group.addoption("--all", action="store_true", help="run every case of the tests that are drawn")
    group.addoption("--turn", type=_day, help="draw the cases of this day, in named files too; by default today's")
    group.addoption(
        "--one-in", type=int, default=1, help="draw one in this many of the quick tests too, but all of ops"
    )


def pytest_configure(config):
    option = config.option
    everything = option.all or getattr(option, "lf", False)  # --lf: the tests that failed, whatever the day
    option.draw = is_drawn(config.args, option.turn, everything, option.one_in)
    option.turn = getattr(config, "workerinput", {}).get("turn") or option.turn or datetime.date.today().toordinal()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Gives the processes of pytest-xdist the same day, also at midnight."""
    node.workerinput["turn"] = node.config.option.turn


def pytest_terminal_summary(terminalreporter, config):
    if config.option.draw:
        terminalreporter.write_line(
            f"Some cases are drawn: --turn {config.option.turn} repeats the day, --all runs all; -m says which marks."
        )


@pytest.hookimpl(tryfirst=True)  # before pytest selects tests by their marks
def pytest_collection_modifyitems(config, items):
    if keras.backend.backend() == "tensorflow":
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.slow)
    if config.option.draw:
        today = set(drawn(items, config.option.turn, config.option.one_in))
        config.hook.pytest_deselected(items=[item for item in items if item not in today])
        items[:] = [item for item in items if item in today]


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
def bfloat16():
    """Layers and tensors are of bfloat16. Keras makes its policy of the floatx when a layer asks for it first."""
    before = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx("bfloat16")
    keras.config.set_dtype_policy("bfloat16")
    yield
    keras.config.set_floatx(before[0])
    keras.config.set_dtype_policy(before[1])


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
