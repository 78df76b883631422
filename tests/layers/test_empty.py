"""Batches without rows and sequences without tokens have outputs of the right shapes, and finite."""

import keras
import numpy as np
import pytest
from cases import numpy

import keras_txf as txf

layers = txf.layers
EMPTY = [(0, 5, 4), (2, 0, 4), (2, 5, 0)]  # batch, length, length of the context
if keras.backend.backend() == "jax":  # which compiles each operation anew
    EMPTY = EMPTY[1:2]
ATTENTIONS = {
    "plain": {}, "grouped": {"num_key_value_heads": 2, "position": "rotary", "causal": True},
    "single": {"num_key_value_heads": 1, "qk_norm": True, "logit_soft_cap": 2.0, "position": "relative"},
}  # fmt: skip


def x(batch, length, dim=8):
    return np.ones((batch, length, dim), "float32")


def assert_shapes(outputs, *shapes):
    outputs = numpy(outputs)
    assert [output.shape for output in outputs] == list(shapes)
    assert all(np.isfinite(output).all() for output in outputs)


@pytest.mark.parametrize("batch, length, source", EMPTY)
@pytest.mark.parametrize("options", ATTENTIONS.values(), ids=ATTENTIONS)
def test_attention(options, batch, length, source):
    layer, mask = layers.MultiHeadSelfAttention(4, **options), np.ones((batch, length), "bool")
    assert_shapes(layer(x(batch, length), mask=mask, segment_ids=mask.astype("int32")), (batch, length, 8))
    scores = (batch, 4, length, length)
    assert_shapes(layer(x(batch, length), return_attention_scores=True), (batch, length, 8), scores)
    of_both = {name: value for name, value in options.items() if name not in ("position", "causal")}
    cross, inputs = layers.CrossAttention(4, **of_both), (x(batch, length), x(batch, source, 6))
    assert_shapes(cross(*inputs), (batch, length, 8))
    assert_shapes(cross(*inputs, context_mask=np.ones((batch, source), "bool"), return_attention_scores=True),
                  (batch, length, 8), (batch, 4, length, source))  # fmt: skip


@pytest.mark.parametrize("batch, length, source", EMPTY)
def test_blocks(batch, length, source):
    encoder = layers.EncoderBlock(4, dropout=0.5, gated=True)
    attention = layers.MultiHeadSelfAttention(4, causal=True, dropout=0.5)
    decoder = layers.DecoderBlock(attention=attention, cross_attention=layers.CrossAttention(4, dropout=0.5))
    for training in (False, True):
        assert_shapes(encoder(x(batch, length), training=training), (batch, length, 8))
        assert_shapes(decoder(x(batch, length), x(batch, source, 6), training=training), (batch, length, 8))


@pytest.mark.parametrize("batch, length", [(0, 5), (2, 0)])
def test_the_others(batch, length):
    ids = np.ones((batch, length), "int32")
    learned, small = {"position_encoding": "learned", "max_length": 9}, {"token_dim": 4, "token_types": 2}
    for options in (learned, small, {"combine": "concat", "pad_id": None}):
        assert_shapes(layers.PositionalEmbedding(11, 8, **options)(ids), (batch, length, 8))
    assert_shapes(layers.PositionalEmbedding(11, 8)(x(batch, length), reverse=True), (batch, length, 11))
    for recurrence in (layers.GatedDeltaNet(2, 3), layers.Mamba2(2), layers.ShortConvolution()):
        assert_shapes(recurrence(x(batch, length), mask=ids == 1), (batch, length, 8))
    for kind in ("mean", "max", "first", "last", "attention"):
        assert_shapes(layers.Pooling(kind)(x(batch, length)), (batch, 8))
        assert_shapes(layers.Pooling(kind)(x(batch, length), mask=ids == 1), (batch, 8))
    assert_shapes(layers.Rotary()(np.ones((batch, length, 2, 4), "float32"), ids), (batch, length, 2, 4))
    for cls in (layers.ALiBi, layers.RelativeBias):
        assert_shapes(cls(2)(ids, ids[:, :3]), (batch, 2, length, min(length, 3)))
    assert_shapes(layers.PatchEmbedding(2, 8, (4, 6))(np.ones((0, 4, 6, 3), "float32")), (0, 7, 8))


def test_no_tokens_where_lengths_are_unknown():
    sizes, ids = dict(num_layers=1, dim=8, num_heads=2), np.ones((2, 0), "int32")
    for pooling in ("max", "attention"):
        logits = txf.models.encoder_classifier(11, 3, **sizes, pooling=pooling).predict(ids, verbose=0)
        assert logits.shape == (2, 3) and np.isfinite(logits).all()
