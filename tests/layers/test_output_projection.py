"""Attention without its output projection, in blocks and models. Its heads are NumPy's in test_block_options.py."""

import drawing
import numpy as np
import pytest
from refusals import refused

import keras_txf as txf

DIM = 12
HIDDEN, CONTEXT = drawing.normal(2, 5, DIM), drawing.normal(2, 7, 10, seed=2)
layers, models = txf.layers, txf.models


@pytest.mark.parametrize("placement, cross_attention", [("pre", True), ("post", False), ("sandwich", True)])
def test_a_block_without_output_projection_equals_one_with_the_identity(placement, cross_attention):
    inputs, options = [HIDDEN, CONTEXT][: 1 + cross_attention], dict(num_heads=3, num_key_value_heads=1, qk_norm=True)

    def make_block(switch):
        own = layers.MultiHeadSelfAttention(
            **options, causal=True, position="rotary", output_projection=switch, name="attention"
        )
        cross = layers.CrossAttention(**options, output_projection=switch, name="cross_attention")
        given = {"cross_attention": cross} if cross_attention else {}
        return drawing.built(layers.DecoderBlock(attention=own, norm_placement=placement, **given), *inputs)

    without, full = make_block(False), make_block(True)
    weights = {inner_path(weight): drawing.array(weight) for weight in without.weights}
    changed = {"kernel": np.eye(DIM), "bias": np.zeros(DIM)}
    for weight in full.weights:
        path = inner_path(weight)
        weight.assign(changed[path.split("/")[-1]] if "attention/output/" in path else weights.pop(path))
    assert not weights
    drawing.assert_same(without(*inputs), full(*inputs))
    if cross_attention:
        cross = without.cross_attention_layer
        nothing = cross(HIDDEN, CONTEXT, context_mask=np.zeros((2, 7), "bool"))
        np.testing.assert_array_equal(drawing.array(nothing), 0.0)


def inner_path(weight):
    return weight.path.split("/", 1)[1]


def make(*switches, **options):
    attentions = [layers.MultiHeadSelfAttention(3, causal=True, output_projection=switch) for switch in switches]
    return models.decoder_generator(11, 2, DIM, attention=attentions, **options)


def test_only_output_projections_are_missing():
    full, without = make(True, True), make(False, False)
    paths = [{weight.path for weight in model.weights} for model in (full, without)]
    assert paths[1] < paths[0] and all("attention/output/" in path for path in paths[0] - paths[1])
    assert full.count_params() - without.count_params() == 2 * (DIM * DIM + DIM)


def test_each_block_may_have_its_own_option():
    model = make(True, False)
    assert [model.get_layer(f"decoder_{i}").attention.output_dense is None for i in range(2)] == [False, True]


@pytest.mark.parametrize("bias", [True, False])
def test_output_bias_without_output_projection_raises_value_error(bias):
    words = ["output_projection=False", str(bias)]
    for cls in (layers.MultiHeadSelfAttention, layers.CrossAttention):
        refused(lambda: cls(3, output_bias=bias, output_projection=False), ["output_bias=", *words])


def test_heads_of_another_width_than_the_block_raise_value_error():
    words = ["`attention` must return the width of the block, 12", "24"]
    wide = layers.MultiHeadSelfAttention(3, head_dim=8, output_projection=False)
    refused(lambda: layers.EncoderBlock(attention=wide)(HIDDEN), words)
    cross = layers.CrossAttention(3, head_dim=8, output_projection=False)
    refused(lambda: layers.DecoderBlock(3, cross_attention=cross)(HIDDEN, CONTEXT), ["`cross_attention`", "12", "24"])
    refused(lambda: models.encoder(11, 1, 12, attention=wide), words)
    narrow = layers.MultiHeadSelfAttention(3, head_dim=4, output_projection=False)
    assert layers.EncoderBlock(attention=narrow)(HIDDEN).shape == HIDDEN.shape


@pytest.mark.slow
def test_no_checkpoint_is_written(tmp_path):
    """Every family has the weights of W^O: the folder would not load."""
    options = dict(
        gated=True, use_bias=False, norm="rms", norm_placement="pre", position_encoding=None, scale_embedding=False
    )
    model = make(True, False, **options)
    words = ["`family`", "output_projection"]
    refused(lambda: txf.checkpoints.save(model, tmp_path / "no", family="llama"), words)
    assert not (tmp_path / "no").exists()
