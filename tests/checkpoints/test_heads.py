"""Heads of checkpoints: new ones on a body, and bodies out of folders with a head."""

import keras
import numpy as np
import pytest
from checkpoints.test_golden import GOLDEN
from keras import ops

import keras_txf as txf

IDS = np.array([[5, 6, 7, 8], [9, 4, 0, 0]])


def numpy(outputs):
    return [ops.convert_to_numpy(value) for value in keras.tree.flatten(outputs)]


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_a_body_gets_a_new_head_for_spans_which_is_saved_with_it(family, tmp_path):
    model = txf.checkpoints.load(GOLDEN / family, "question_answering")
    txf.checkpoints.save(model, tmp_path)
    again = txf.checkpoints.load(tmp_path)
    for one, other in zip(numpy(model(IDS)), numpy(again(IDS)), strict=True):
        np.testing.assert_array_equal(one, other)
    body, before = (txf.checkpoints.load(folder, "encoder") for folder in (tmp_path, GOLDEN / family))
    np.testing.assert_array_equal(*numpy([body(IDS), before(IDS)]))


def test_a_head_of_spans_has_no_number_of_classes():
    with pytest.raises(ValueError, match="num_classes"):
        txf.checkpoints.load(GOLDEN / "bert", "question_answering", num_classes=3)
