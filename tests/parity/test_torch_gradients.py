"""Gradients of the blocks are PyTorch's, for every weight and input."""

import keras
import numpy as np
import pytest
import torch
from parity.weights import (
    DECODER_LAYER,
    ENCODER_LAYER,
    causal_mask,
    close,
    gradients_of,
    hide,
    holes,
    normal,
    paired_blocks,
    translate,
)

from keras_txf.layers import DecoderBlock, EncoderBlock

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the gradients here are TensorFlow's"),
]

BATCH, TARGET, SOURCE, DIM = 2, 5, 7, 12
PADDING = holes(BATCH, TARGET)
LEFT_PADDING = np.arange(TARGET) >= np.array([[0], [2]])
MEMORY_PADDING = holes(BATCH, SOURCE, seed=1)


def check(theirs, ours, table, arrays, their_masks, our_masks):
    """Of the real tokens' sum(output · random): a plain sum would lose the gradients through a layer norm."""
    import tensorflow as tf

    weight = normal(*arrays[0].shape, seed=9) * our_masks["mask"][..., None]
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays]
    (theirs(*tensors, **their_masks) * torch.from_numpy(weight)).sum().backward()

    variables = [tf.Variable(array) for array in arrays]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(ours(*variables, **our_masks) * weight)
    ours_of_weights, ours_of_inputs = tape.gradient(loss, [[w.value for w in ours.weights], variables])

    for tensor, gradient in zip(tensors, ours_of_inputs):
        close(gradient, tensor.grad, atol=1e-4)
    expected = translate(gradients_of(theirs), ours.weights, table)
    for gradient, array in zip(ours_of_weights, expected):
        close(gradient, array, atol=1e-4)


@pytest.mark.parametrize("norm_first, activation", [(False, "relu"), (True, "gelu")])
def test_encoder(norm_first, activation):
    shapes = [(BATCH, TARGET, DIM)]
    theirs, ours = paired_blocks(
        torch.nn.TransformerEncoderLayer, EncoderBlock, ENCODER_LAYER, norm_first, activation, shapes=shapes
    )
    check(theirs, ours, ENCODER_LAYER, [normal(*shapes[0])], {"src_key_padding_mask": hide(PADDING)}, {"mask": PADDING})


@pytest.mark.parametrize("norm_first, activation", [(False, "relu"), (True, "gelu")])
@pytest.mark.parametrize("padding", [PADDING, LEFT_PADDING], ids=["holes", "queries without a key"])
def test_decoder(norm_first, activation, padding):
    shapes = [(BATCH, TARGET, DIM), (BATCH, SOURCE, DIM)]
    theirs, ours = paired_blocks(
        torch.nn.TransformerDecoderLayer, DecoderBlock, DECODER_LAYER, norm_first, activation, shapes=shapes,
        cross_attention=True,
    )  # fmt: skip
    their_masks = {
        "tgt_mask": hide(causal_mask(TARGET)),
        "tgt_key_padding_mask": hide(padding),
        "memory_key_padding_mask": hide(MEMORY_PADDING),
    }
    our_masks = {"mask": padding, "context_mask": MEMORY_PADDING}
    arrays = [normal(*shapes[0]), normal(*shapes[1], seed=1)]
    check(theirs, ours, DECODER_LAYER, arrays, their_masks, our_masks)
