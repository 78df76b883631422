"""ShortConvolution against a loop over tokens in float64. `test_gated_delta_net` decodes with it."""

import drawing
import numpy as np
import pytest
from refusals import refused

import keras_txf as txf

B, T, D = 2, 7, 10
X = drawing.normal(B, T, D)
REAL = (np.arange(T) >= np.array([[2], [0]])) & (np.arange(T) < np.array([[7], [5]]))


@pytest.mark.parametrize("size, use_bias", [(1, False), (3, False), (3, True), (9, True)])
def test_equals_a_loop_over_tokens_in_float64(size, use_bias):
    layer = drawing.built(txf.layers.ShortConvolution(size, use_bias), X)
    w = {weight.path.partition("/")[2]: drawing.array(weight).astype("float64") for weight in layer.weights}
    for real in (np.ones((B, T), bool), REAL):
        first, second, x = np.split(X @ w["input/kernel"] + w.get("input/bias", 0), 3, axis=-1)
        x, mixed = first * x * real[..., None], np.zeros((B, T, D)) + w.get("convolution_bias", 0)
        for t, i in np.ndindex(T, size):
            if t >= i:
                mixed[:, t] += w["convolution_kernel"][size - 1 - i] * x[:, t - i]
        expected = (second * mixed) @ w["output/kernel"] + w.get("output/bias", 0)
        found = drawing.array(layer(X, mask=None if real.all() else real))
        drawing.assert_same(found[real], expected[real])


def test_wrong_arguments_raise_value_error():
    refused(lambda: txf.layers.ShortConvolution(0), ["`kernel_size`", "0"])
    refused(lambda: txf.layers.ShortConvolution(use_bias=1), ["`use_bias`", "1"])
    refused(lambda: txf.layers.ShortConvolution()(X[0]), ["`inputs`", "(batch, length, dim)", "(7, 10)"])
    block = txf.layers.DecoderBlock(attention=txf.layers.ShortConvolution())
    refused(lambda: block(X, segment_ids=np.ones((B, T), "int32")), ["`segment_ids`", "`attention`"])
