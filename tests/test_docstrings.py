"""Every example in a docstring runs and prints what it says."""

import doctest
import importlib
import pkgutil
import re

import keras
import numpy as np
import pytest

import keras_txf as txf

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="each backend prints numbers and dtypes in its own way"
)


class Checker(doctest.OutputChecker):
    """Takes the shapes of TensorFlow for the tuples that they are."""

    def check_output(self, want, got, optionflags):
        return super().check_output(as_tuples(want), as_tuples(got), optionflags)


def as_tuples(text):
    def as_tuple(match):
        return str(tuple(None if size == "None" else int(size) for size in re.findall(r"\w+", match.group(1))))

    return re.sub(r"TensorShape\(\[(.*?)\]\)", as_tuple, text)


def examples():
    """The docstrings with examples of every module of the package."""
    finder = doctest.DocTestFinder()
    names = [info.name for info in pkgutil.walk_packages(txf.__path__, "keras_txf.")]
    for module in map(importlib.import_module, ["keras_txf", *names]):
        names = {**vars(module), "np": np, "keras": keras, "txf": txf}
        yield from (test for test in finder.find(module, globs=names) if test.examples)


EXAMPLES = {test.name: test for test in examples()}


def marked(name):
    """Examples that train or generate are slow; those of layers and ops are not."""
    fast = re.match(r"keras_txf\.(layers|ops|visualize\.plots|text\.(tokenizers|checkpoint))", name)
    return pytest.param(name, marks=[] if fast else [pytest.mark.slow])


@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", [*map(marked, EXAMPLES)])
def test_example(name):
    report = []
    runner = doctest.DocTestRunner(checker=Checker(), verbose=False)
    runner.run(EXAMPLES[name], out=report.append, clear_globs=False)
    assert not runner.failures, "".join(report)


def test_layers_and_builders_have_an_example():
    having = {name.rpartition(".")[2] for name in EXAMPLES}
    assert {*txf.layers.__all__, *txf.models.__all__} <= having


def test_checker_still_compares():
    checker = Checker()
    assert checker.check_output("(2, 7)\n", "TensorShape([2, 7])\n", 0)
    assert not checker.check_output("(2, 7)\n", "TensorShape([2, 8])\n", 0)
