"""Labels of each type, in the words of the caller; what is no label is refused with its place."""

import numpy as np
import pytest

from keras_txf.tasks.labels import label_list, numbers_of


@pytest.mark.parametrize("labels, values, numbers", [
    ([1, 3], ["3", 1], [1, 0]), ([-1, 1], ["-1", 1], [0, 1]), (["0", "1"], [1, "0", 0], [1, 0, 0]),
    ([False, True], [True, "False"], [1, 0]), (["b", "a"], ["a", "b"], [1, 0]),
])  # fmt: skip
def test_labels_have_numbers(labels, values, numbers):
    assert numbers_of("labels", values, labels) == numbers


@pytest.mark.parametrize("labels, value", [
    ([0, 1], True), ([0, 1], 1.0), ([0, 1], "\u00b2"), ([False, True], 1), (["a", "b"], {"a"}), (["a", "b"], None),
    (["a", "b"], ["a"]),
])  # fmt: skip
def test_what_is_no_label_is_refused_with_its_place(labels, value):
    with pytest.raises(ValueError, match="`tags` must be of the labels .* at place 1 of the text at place 7"):
        numbers_of("tags", [labels[0], value], labels, row=7)


def test_labels_may_be_booleans():
    assert label_list(np.array([True, False, True])) == [False, True]
    with pytest.raises(ValueError, match="of one type"):
        label_list([0, 1, True])
