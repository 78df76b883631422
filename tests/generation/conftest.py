"""Loops of TensorFlow run step by step here: compiling each takes seconds. `compiled` is for tests of the compilers."""

import pytest


@pytest.fixture(autouse=True)
def step_by_step(uncompiled):
    pass
