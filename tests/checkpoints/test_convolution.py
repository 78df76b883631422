"""The convolution of DeBERTa v2 and the blocks that have one, against slow loops in float64."""

import drawing
import numpy as np
import pytest
from refusals import refused

import keras_txf as txf
from keras_txf.checkpoints.families.deberta import Convolution, ConvolutionResidual

B, T, D = 2, 6, 8
X = drawing.normal(B, T, D)
REAL = np.arange(T) < np.array([T, 4])[:, None]


def slow_convolution(layer, x, real):
    kernel, bias = (drawing.array(weight).astype("float64") for weight in layer.weights)
    half, x = len(kernel) // 2, x.astype("float64")
    output = np.zeros((B, T, D))
    for b, t in np.ndindex(B, T):
        output[b, t] = bias
        for place, s in enumerate(range(t - half, t + half + 1)):
            if 0 <= s < T and real[b, s]:
                output[b, t] += x[b, s] @ kernel[place]
    return np.tanh(output)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_a_token_sees_as_many_neighbours_on_either_side(size):
    layer = drawing.built(Convolution(size), X)
    drawing.assert_same(layer(X), slow_convolution(layer, X, np.ones((B, T), bool)))
    found, expected = drawing.array(layer(X, mask=REAL)), slow_convolution(layer, X, REAL)
    drawing.assert_same(found[REAL], expected[REAL])


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_a_block_adds_the_convolution_of_its_inputs_and_a_norm(norm):
    options = dict(num_heads=2, intermediate_dim=10, norm=norm)
    block = drawing.built(txf.layers.EncoderBlock(**options, residual=ConvolutionResidual(3)), X)
    plain = txf.layers.EncoderBlock(**options)
    plain(X)
    plain.set_weights([weight for weight in block.weights if "/convolution" not in weight.path])
    # Real tokens alone: what padding gets is of no concern.
    sums = drawing.array(plain(X, mask=REAL)) + slow_convolution(block.convolution, X, REAL)
    expected = drawing.array(block.convolution_norm(sums.astype("float32")))
    drawing.assert_same(drawing.array(block(X, mask=REAL))[REAL], expected[REAL])
    assert type(block).from_config(block.get_config()).convolution.kernel_size == 3


@drawing.not_on_jax
def test_each_block_of_an_encoder_has_its_own_or_none():
    residual = ConvolutionResidual(3, "gelu")
    model = txf.models.encoder(11, 3, D, 2, residual=[residual, "sequential", residual])
    kernels = [weight.path for weight in model.weights if "convolution/kernel" in weight.path]
    assert kernels == ["encoder_0/convolution/kernel", "encoder_2/convolution/kernel"]
    drawing.randomize(model)
    ids = np.array([[5, 3, 8, 0, 0], [7, 2, 4, 9, 6]])
    drawing.assert_same(model(ids[:1])[:, :3], model(ids[:1, :3]))  # padding counts as what is beyond the end


def test_bad_convolutions_raise_value_error():
    residual = ConvolutionResidual()
    for options, words in (({"norm_placement": "pre"}, ["'post'", "'pre'"]), ({"causal": True}, ["causal=False"])):
        refused(lambda: txf.layers.EncoderBlock(2, residual=residual, **options), ["`ConvolutionResidual`", *words])
    refused(lambda: txf.layers.EncoderBlock(2, residual=ConvolutionResidual(4)), ["`kernel_size`", "odd", "4"])
    refused(lambda: Convolution()(X[0]), ["`inputs`", "(batch, length, dim)", "(6, 8)"])
    block = txf.layers.EncoderBlock(2, residual=residual)
    refused(lambda: block(X, segment_ids=np.ones((B, T), "int32")), ["`segment_ids`", "`ConvolutionResidual`"])
