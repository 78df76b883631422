"""Each default of a key of config.json equals transformers' default, in our tables or in the generated table."""

import json

import pytest

pytest.importorskip("transformers")


def test_the_defaults_are_those_of_the_installed_classes():
    from checkpoints import make_transformers_keys

    from keras_txf.checkpoints.config import transformers_defaults

    written = {name: table for name, table in transformers_defaults().items() if name != "transformers"}
    made = json.loads(json.dumps(make_transformers_keys.tables()))
    assert written == made, "run tests/checkpoints/make_transformers_keys.py"
