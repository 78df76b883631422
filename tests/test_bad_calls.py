"""One bad value for each argument of each public callable: refused by name, or right."""

import bad_calls
import pytest

import keras_txf as txf


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    """Some bad values are names of files to write."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def uncompiled_loops(request):
    """Compiling takes seconds for each sampler. TensorFlow warns of pipelines where functions run uncompiled."""
    if getattr(request.node, "callspec", None) and request.node.callspec.params["area"] in ("models", "generation"):
        request.getfixturevalue("uncompiled")


@pytest.fixture(scope="module")
def cases():
    for add in bad_calls.AREAS.values():
        add()
    return bad_calls.CASES


def of(area):
    return [name for name in bad_calls.CASES if name.startswith(f"{area}.")]


def wrong(area, values, step=1):
    """A line for each outcome that is neither a refusal by name nor right."""
    rows = bad_calls.outcomes(of(area), values, step)
    return "\n".join("{}({}={}): {}".format(*row) for row in rows if bad_calls.is_wrong(*row))


@pytest.mark.slow
def test_every_public_callable_has_a_case(cases):
    public = {
        f"{area}.{name}": getattr(getattr(txf, area), name)
        for area in bad_calls.AREAS
        for name in getattr(txf, area).__all__
    }
    assert {name for name, value in public.items() if callable(value)} - set(cases) == set(bad_calls.WITHOUT)


@pytest.mark.slow
def test_every_method_of_a_task_has_a_case(cases):
    methods = {
        f"tasks.{name}.{method}"
        for name in txf.tasks.__all__
        for method in dir(getattr(txf.tasks, name))
        if callable(getattr(getattr(txf.tasks, name), method)) and not method.startswith("_")
    }
    without = {f"tasks.{name}.{method}" for name in txf.tasks.__all__ for method in ("get_config", "checkpoint_model")}
    assert methods - set(cases) == without  # they take no argument


@pytest.mark.slow
@pytest.mark.parametrize("area", bad_calls.AREAS)
def test_every_case_works_before_an_argument_is_made_bad(cases, area):
    for name in of(area):
        function, working, _ = cases[name]
        function(**working)


@pytest.mark.slow
@pytest.mark.parametrize("area", bad_calls.AREAS)
def test_an_object_of_another_kind_is_refused_by_name(cases, area):
    found = wrong(area, ["Wrong()"])
    assert not found, found


@pytest.mark.slow
@pytest.mark.parametrize("area", bad_calls.AREAS)
def test_bad_values_are_refused_by_name_or_right(cases, area):
    found = wrong(area, bad_calls.BAD, step=5)  # `python tests/bad_calls.py` gives each argument all values
    assert not found, found


@pytest.mark.slow
def test_a_wrong_outcome_is_noticed(cases):
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
