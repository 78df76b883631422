"""The answers of a task are texts: what makes arrays of them is refused."""

import pytest

from keras_txf.tasks.answers import Answers


@pytest.mark.parametrize("name", ["padded", "return_scores", "num_return_sequences"])
def test_an_option_of_arrays_is_refused_with_the_way_to_it(name):
    with pytest.raises(ValueError, match=f"`{name}` must not be given, .*`task.model.generate`; received 2"):
        Answers(None, None, None, {name: 2})
