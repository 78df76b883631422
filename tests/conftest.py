"""Shared by all tests: which cases run today, one seed, a clean Keras for each module, compiled or eager loops."""

import collections
import datetime
import gc
import importlib.util
import os
import zlib

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


def pytest_addoption(parser):
    group = parser.getgroup("keras_txf")
    group.addoption("--all", action="store_true", help="run all cases of tests that are drawn")
    group.addoption("--turn", type=int, default=datetime.date.today().toordinal(), help="which cases are drawn: a day")
    group.addoption("--one-in", type=int, default=1, help="draw one in this many of the other tests too")


def pytest_report_header(config):
    return "all cases" if config.option.all else f"cases are drawn by the date: --turn {config.option.turn}, or --all"


@pytest.hookimpl(tryfirst=True)  # before pytest selects tests by their marks
def pytest_collection_modifyitems(config, items):
    if keras.backend.backend() == "tensorflow":
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.slow)
    if not config.option.all and not any("::" in argument for argument in config.args):
        drawn = set(_draw(items, config.option))
        config.hook.pytest_deselected(items=[item for item in items if item not in drawn])
        items[:] = [item for item in items if item in drawn]


def _draw(items, options):
    """One in n of the cases of a test, or of the tests of a file that have one case. Each comes every n-th day."""
    counts = collections.Counter()
    for item in items:
        file, function = item.nodeid.split("::")[0], item.nodeid.partition("[")[0]
        group = function if hasattr(item, "callspec") else file
        place = zlib.crc32(file.encode()) + counts[group]
        counts[group] += 1
        if (place + options.turn) % _one_in(item, options) == 0:
            yield item


def _one_in(item, options):
    """The n of the mark `drawn(n)`; otherwise 3 for slow and parity tests, and what `--one-in` says for the others."""
    if mark := item.get_closest_marker("drawn"):
        return mark.args[0]
    is_slow = item.get_closest_marker("slow") or item.get_closest_marker("parity")
    return max(3 if is_slow else 1, options.one_in)


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
