"""One bad value for each argument of each public callable: refused by name, or right."""

import functools

import bad_calls
import pytest

import keras_txf as txf

# Each task is a part of its own, for it takes long to build.
PARTS = [area for area in bad_calls.AREAS if area != "tasks"] + [f"tasks.{name}" for name in txf.tasks.__all__]
each_part = pytest.mark.parametrize("part", [pytest.param(part, marks=pytest.mark.slow) for part in PARTS])


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Some bad values are names of files to write."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def uncompiled_loops(request):
    """Compiling takes seconds for each sampler. TensorFlow warns of pipelines where functions run uncompiled."""
    if getattr(request.node, "callspec", None) and request.node.callspec.params["part"] in ("models", "generation"):
        request.getfixturevalue("uncompiled")


@functools.cache
def names_of(part):
    """The names of the cases of a part."""
    area, _, task = part.partition(".")
    if task:
        bad_calls.add_tasks([task])
    else:
        bad_calls.AREAS[area]()
    return [name for name in bad_calls.CASES if f"{name}.".startswith(f"{part}.")]


def wrong(part, values, step=1):
    """A line for each outcome that is neither a refusal by name nor right."""
    rows = bad_calls.outcomes(names_of(part), values, step)
    return "\n".join("{}({}={}): {}".format(*row) for row in rows if bad_calls.is_wrong(*row))


def callables(owner, names):
    return [name for name in names if callable(getattr(owner, name))]


@pytest.mark.slow
def test_every_public_callable_and_every_method_of_a_task_has_a_case():
    cases, tasks = {name for part in PARTS for name in names_of(part)}, txf.tasks
    modules = {area: getattr(txf, area) for area in bad_calls.AREAS}
    public = {f"{area}.{name}" for area, part in modules.items() for name in callables(part, part.__all__)}
    assert public - cases == set(bad_calls.WITHOUT)
    own = {name: callables(cls, dir(cls)) for name in tasks.__all__ for cls in [getattr(tasks, name)]}
    methods = {f"tasks.{name}.{each}" for name in own for each in own[name] if not each.startswith("_")}
    without = {f"tasks.{name}.{method}" for name in own for method in ("get_config", "checkpoint_model")}
    assert methods - cases == without  # they take no argument


@each_part
def test_every_case_works_before_an_argument_is_made_bad(part):
    for name in names_of(part):
        function, working, _ = bad_calls.CASES[name]
        function(**working)


@each_part
def test_an_object_of_another_kind_is_refused_by_name(part):
    found = wrong(part, ["Wrong()"])
    assert not found, found


@each_part
def test_bad_values_are_refused_by_name_or_right(part):
    found = wrong(part, bad_calls.BAD, step=5)  # `python tests/bad_calls.py` gives each argument all values
    assert not found, found


def test_a_wrong_outcome_is_noticed():
    def accepts(values):
        return values

    def breaks(values):
        raise TypeError("unsupported operand")

    def refuses(values):
        raise ValueError("`values` must be a list.")

    def hides(values):
        raise ValueError("something is wrong")

    expected = {accepts: "accepted", breaks: "TypeError", refuses: "refused", hides: "not named"}
    for function, words in expected.items():
        bad_calls.CASES["own"] = (function, {"values": []}, ())
        found = bad_calls.outcome("own", "values", "Wrong()")
        del bad_calls.CASES["own"]
        assert found.startswith(words)
        assert bad_calls.is_wrong("own", "values", "Wrong()", found) == (function is not refuses)
