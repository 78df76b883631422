"""An answer stops at a sequence of several new tokens."""

from types import SimpleNamespace

import drawing
import numpy as np
import pytest
from keras import ops

from keras_txf.generation.loop import ends_with_stop, latest_tokens


@pytest.mark.parametrize("prompt_length, ends", [(0, [0, 1, 0, 1]), (1, [0, 0, 1]), (2, [0, 1])])
def test_a_stop_of_several_tokens(prompt_length, ends):
    history = ops.convert_to_tensor(np.array([[5, 6, 5, 7]], "int32"))
    stops = ops.convert_to_tensor(np.array([[5, 6], [-2, 7]], "int32"))  # -2: any token, or none
    request = SimpleNamespace(stops=stops, prompt_length=prompt_length)
    for count, expected in enumerate(ends):
        found = ends_with_stop(latest_tokens(history, ops.convert_to_tensor(count), request), request)
        assert drawing.array(found).tolist() == [bool(expected)]
