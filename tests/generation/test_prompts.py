"""How many tokens may follow a prompt."""

import pytest

from keras_txf.generation.prompts import new_token_limits


@pytest.mark.parametrize("new, length, positions, expected", [
    (None, None, None, [64, 64]), (None, None, 10, [5, 5]), (None, None, 99, [64, 64]), (7, None, None, [7, 7]),
    (None, 8, None, [5, 3]), (4, 8, None, [4, 3]),
])  # fmt: skip
def test_limits(new, length, positions, expected):
    assert new_token_limits([3, 5], new, length, positions) == expected
