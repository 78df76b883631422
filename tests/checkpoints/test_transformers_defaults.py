"""Each default of a key of config.json is that of the class in transformers, in our tables or in the written one."""

import pytest

pytest.importorskip("transformers")


def test_the_defaults_are_those_of_the_installed_classes():
    from checkpoints import make_transformers_keys

    written = (make_transformers_keys.FOLDER / "transformers_defaults.py").read_text(encoding="utf-8")
    made = make_transformers_keys.defaults_text()  # its first line names the version
    assert written.splitlines()[1:] == made.splitlines()[1:], "run tests/checkpoints/make_transformers_keys.py"
