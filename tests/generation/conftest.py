"""On TensorFlow the loops of `generate` run step by step in this folder, because compiling one takes seconds.

A test of compiled loops takes the fixture `compiled`.
"""

import pytest


@pytest.fixture(autouse=True)
def step_by_step(uncompiled):
    pass
