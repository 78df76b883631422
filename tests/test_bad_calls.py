"""One bad value for each argument of each public callable: refused by name, or right."""

import functools

import bad_calls
import pytest

import keras_txf as txf

PARTS = 3


def each_third(test):
    """A third of each area. Those of one number are drawn on one day, and only what they need is built."""
    areas = pytest.mark.parametrize("area", bad_calls.AREAS)
    return pytest.mark.slow(pytest.mark.parametrize("part", range(PARTS))(areas(test)))


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Some bad values are names of files to write."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def uncompiled_loops(request):
    """Compiling takes seconds for each sampler. TensorFlow warns of pipelines where functions run uncompiled."""
    if getattr(request.node, "callspec", None) and request.node.callspec.params["area"] in ("models", "generation"):
        request.getfixturevalue("uncompiled")


@functools.cache
def names_of(area, part):
    """The names of an area's cases; of tasks, which take long to build, those of a third of the tasks."""
    own = txf.tasks.__all__[part::PARTS]
    if area == "tasks":
        bad_calls.add_tasks(own)
        return [name for name in bad_calls.CASES if name.startswith("tasks.") and name.split(".")[1] in own]
    return _names_of(area)


@functools.cache
def _names_of(area):
    bad_calls.AREAS[area]()
    return [name for name in bad_calls.CASES if name.startswith(f"{area}.")]


def third(area, part):
    """The places of the names, or of the arguments, that belong to a part. Tasks are parted before."""
    return slice(None) if area == "tasks" else slice(part, None, PARTS)


def wrong(area, part, values, step=1):
    """A line for each outcome that is neither a refusal by name nor right."""
    rows = bad_calls.outcomes(names_of(area, part), values, step, third(area, part))
    return "\n".join("{}({}={}): {}".format(*row) for row in rows if bad_calls.is_wrong(*row))


@pytest.mark.slow
def test_every_public_callable_and_every_method_of_a_task_has_a_case():
    cases = {name for area in bad_calls.AREAS for part in range(PARTS) for name in names_of(area, part)}
    public = {
        f"{area}.{name}"
        for area in bad_calls.AREAS
        for name in getattr(txf, area).__all__
        if callable(getattr(getattr(txf, area), name))
    }
    assert public - cases == set(bad_calls.WITHOUT)
    methods = {
        f"tasks.{name}.{method}"
        for name in txf.tasks.__all__
        for method in dir(getattr(txf.tasks, name))
        if callable(getattr(getattr(txf.tasks, name), method)) and not method.startswith("_")
    }
    without = {f"tasks.{name}.{method}" for name in txf.tasks.__all__ for method in ("get_config", "checkpoint_model")}
    assert methods - cases == without  # they take no argument


@each_third
def test_every_case_works_before_an_argument_is_made_bad(area, part):
    for name in names_of(area, part)[third(area, part)]:
        function, working, _ = bad_calls.CASES[name]
        function(**working)


@each_third
def test_an_object_of_another_kind_is_refused_by_name(area, part):
    found = wrong(area, part, ["Wrong()"])
    assert not found, found


@each_third
def test_bad_values_are_refused_by_name_or_right(area, part):
    found = wrong(area, part, bad_calls.BAD, step=5)  # `python tests/bad_calls.py` gives each argument all values
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
