"""InsertVectors against a loop over the tokens; test_image_text decodes with it."""

import drawing
import keras
import numpy as np
from refusals import refused

import keras_txf as txf

IDS = np.array([[9, 9, 5, 9], [5, 6, 7, 8], [9, 5, 9, 6]])
X, VECTORS = drawing.normal(3, 4, 8), drawing.normal(3, 4, 8, seed=2)


def test_placeholders_are_replaced_in_order():
    expected = X.copy()
    for row, ids in enumerate(IDS):
        vectors = iter(VECTORS[row])
        for column, one in enumerate(ids):
            expected[row, column] = next(vectors) if one == 9 else X[row, column]
    found = txf.layers.InsertVectors(9)(X, IDS, VECTORS)
    np.testing.assert_array_equal(drawing.array(found), expected)


def test_a_row_with_a_wrong_number_of_placeholders_raises_an_error_or_is_nan():
    refused(lambda: txf.layers.InsertVectors(9)(X, IDS, VECTORS[:, :2]), ["`ids`", "at most 2", "received 3 in row 0"])
    groups = txf.layers.InsertVectors(9, group_size=2)
    refused(lambda: groups(X, IDS, VECTORS), ["`ids`", "`group_size`, 2", "received 3 in row 0"])
    ids, vectors = keras.Input((None,), dtype="int32"), keras.Input((None, 8))
    compiled = keras.Model([ids, vectors], groups(keras.layers.Embedding(10, 8)(ids), ids, vectors))
    if keras.backend.backend() == "torch":  # where `predict` compiles nothing
        refused(lambda: compiled.predict([IDS, VECTORS], verbose=0), ["`ids`", "received 3 in row 0"])
        return
    found = compiled.predict([IDS, VECTORS], verbose=0)
    assert np.isnan(found).any(axis=(1, 2)).tolist() == [True, False, False]
    found = compiled.predict([IDS, VECTORS[:, :1]], verbose=0)
    assert np.isnan(found).any(axis=(1, 2)).tolist() == [True, False, True]


def test_bad_arguments_raise_an_error():
    refused(lambda: txf.layers.InsertVectors(-1), ["`placeholder_id`", "-1"])
    layer = txf.layers.InsertVectors(9)
    refused(lambda: layer(X, IDS, VECTORS[..., :5]), ["`vectors`", "(3, 4, 5)"])
    refused(lambda: layer(X, X[..., 0], VECTORS), ["`ids`", "float32"])
