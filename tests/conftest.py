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
    group.addoption("--all", action="store_true", help="run every case of the tests that are drawn")
    group.addoption("--turn", type=int, help="draw the cases of this day, in named files too; by default today's")
    group.addoption("--one-in", type=int, default=1, help="draw one in this many of the quick tests too, but all of ops")


def pytest_configure(config):
    option = config.option
    if not hasattr(config, "workerinput"):  # xdist hands these options to its processes
        is_named = any(".py" in argument for argument in config.args)
        option.draw = not option.all and (option.turn is not None or not is_named)
        option.turn = option.turn or datetime.date.today().toordinal()


def pytest_report_header(config):
    return f"cases are drawn: --turn {config.option.turn}" if config.option.draw else "no cases are drawn"


@pytest.hookimpl(tryfirst=True)  # before pytest selects tests by their marks
def pytest_collection_modifyitems(config, items):
    if keras.backend.backend() == "tensorflow":
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.slow)
    if config.option.draw:
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
    """The n of the mark `drawn(n)`; 3 for other slow and parity tests; `--one-in` for quick tests, where it is more."""
    mark = item.get_closest_marker("drawn")
    is_slow = item.get_closest_marker("slow") or item.get_closest_marker("parity")
    share = mark.args[0] if mark else 3 if is_slow else 1
    is_mathematics = item.path.parent.name == "ops"  # its tests can fail on each backend for a reason of its own
    return share if is_slow or is_mathematics else max(share, options.one_in)


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
