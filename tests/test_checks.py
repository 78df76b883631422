"""What a message shows of a value: one line at most, whatever the value is."""

import numpy as np
import pytest

from keras_txf.checks import LONGEST, short_repr


class Odd:
    def __repr__(self):
        raise RuntimeError("no repr")


LONG = {
    "list": list(range(100_000)), "strings": ["x" * 1000] * 50, "dict": dict.fromkeys(range(1000), "y" * 50),
    "nested": [[[i] * 100 for i in range(100)]] * 100, "string": "z\n" * 10**6, "bytes": b"z" * 10**6,
    "array": np.arange(900.0).reshape(30, 30), "integer": 10**5000, "object": Odd(),
}  # fmt: skip


@pytest.mark.parametrize("value", LONG.values(), ids=LONG)
def test_a_long_value_takes_one_line(value):
    text = short_repr(value)
    assert text and len(text) <= LONGEST + 5 and "\n" not in text


@pytest.mark.parametrize(
    "value", ["hot", "two  blanks", 1.5, None, b"ab", (1, 2), {"a": [1, {"b": 2}]}, list(range(20)), np.arange(3)]
)
def test_a_short_value_is_shown_as_it_is(value):
    assert short_repr(value) == repr(value)
