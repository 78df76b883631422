"""Every case that is drawn runs once in its n days, whatever else runs, and a named file runs in full."""

import pathlib
import types

import pytest
from rotation import drawn, is_drawn


def item(file, name, *marks):
    """A stand-in for an item of pytest. A name with `[` is one of several cases."""
    found = {mark.name: mark for mark in marks}
    case = {"callspec": None} if "[" in name else {}
    return types.SimpleNamespace(
        nodeid=f"{file}::{name}", path=pathlib.Path(file), get_closest_marker=found.get, **case
    )


def cases(file, name, number, *marks):
    return [item(file, f"{name}[{case}]", *marks) for case in range(number)]


def days(items, one_in=1):
    """How many of twelve days each item runs on."""
    found = [list(drawn(items, turn, one_in)) for turn in range(739_000, 739_012)]
    return [sum(item in today for today in found) for item in items]


@pytest.mark.parametrize("marks, often", [
    ((), 12), ((pytest.mark.slow,), 4), ((pytest.mark.parity,), 4), ((pytest.mark.drawn(6),), 2),
    ((pytest.mark.slow, pytest.mark.drawn(1)), 12),
])  # fmt: skip
def test_each_case_runs_once_in_its_days(marks, often):
    items = cases("tests/models/test_a.py", "test_b", 7, *marks)
    items += [item("tests/models/test_a.py", f"test_{name}", *marks) for name in "cde"]
    assert days(items) == [often] * len(items)


def test_a_share_of_the_quick_tests_leaves_mathematics_and_slow_tests():
    marks, files = (pytest.mark.slow,), ["tests/layers/test_a.py", "tests/ops/test_a.py"]
    layers, ops = (cases(file, "test_b", 4) for file in files)
    assert days(layers, 4) == [3] * 4 and days(ops, 4) == [12] * 4
    assert days(cases(files[0], "test_b", 4, *marks), 4) == [4] * 4


def test_functions_of_a_file_run_the_same_cases():
    both = [cases("tests/a/test_b.py", name, 9, pytest.mark.slow) for name in ("test_c", "test_d")]
    names = [[one.nodeid.partition("[")[2] for one in drawn(items, 5)] for items in both]
    assert names[0] == names[1] and len(names[0]) == 3


def test_a_named_file_runs_in_full():
    folder, file, test = ["tests/models"], ["tests/models", "tests/ops/test_a.py"], ["tests/ops/test_a.py::test_b"]
    assert is_drawn(["/home/user/.pyenv/tests"])
    assert is_drawn([]) and is_drawn(folder) and not is_drawn(file)
    assert is_drawn(file, turn=5) and is_drawn(file, one_in=4) and not is_drawn(folder, turn=5, everything=True)
    assert not is_drawn(test, turn=5, one_in=4)
