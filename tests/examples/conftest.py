import pathlib
import sys

import pytest

import keras_txf as txf

for folder in ("examples/serve", "examples"):  # which tests import as modules
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / folder))


@pytest.fixture
def shallow(monkeypatch):
    """Models of one block, or two where a decoder has a depth of its own: deeper ones take longer, and show no more."""
    most = {"num_layers": 1, "num_decoder_layers": 2}
    for name in ("encoder_decoder", "masked_language_model"):
        whole = getattr(txf.models, name)

        def build(*sizes, whole=whole, **options):
            return whole(*sizes, **options | {key: min(options[key], most[key]) for key in most if key in options})

        monkeypatch.setattr(txf.models, name, build)
