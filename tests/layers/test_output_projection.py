"""Attention without its output projection, in blocks and models. Its heads are NumPy's in test_block_options.py."""

import pathlib

import drawing
import numpy as np
import pytest
from refusals import refused

import keras_txf as txf

DIM = 12
HIDDEN, CONTEXT = drawing.normal(2, 5, DIM), drawing.normal(2, 7, 10, seed=2)
layers, models = txf.layers, txf.models


@pytest.mark.parametrize("placement, cross_attention", [("pre", True), ("post", False), ("sandwich", True)])
def test_a_block_is_one_whose_output_projection_changes_nothing(placement, cross_attention):
    options = dict(norm_placement=placement, position="rotary", num_key_value_heads=1, qk_norm=True)
    inputs = [HIDDEN, CONTEXT][: 1 + cross_attention]
    without, full = (
        drawing.built(
            layers.DecoderBlock(3, cross_attention=cross_attention, output_projection=switch, **options), *inputs
        )
        for switch in (False, True)
    )
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


def make(builder, **options):
    sizes = (11, 13) if builder is models.encoder_decoder else (11,)
    return builder(*sizes, 2, DIM, 3, **options)


@pytest.mark.parametrize("builder, attentions, use_bias", [
    (models.decoder_generator, 2, False), (models.encoder_decoder, 2 + 4, True),
])  # fmt: skip
def test_what_a_model_lacks_are_its_output_projections(builder, attentions, use_bias):
    full, without = (make(builder, use_bias=use_bias, output_projection=switch) for switch in (True, False))
    paths = [{weight.path for weight in model.weights} for model in (full, without)]
    assert paths[1] < paths[0] and all("attention/output/" in path for path in paths[0] - paths[1])
    assert full.count_params() - without.count_params() == attentions * (DIM * DIM + DIM * use_bias)


def test_each_block_may_have_its_own():
    model = make(models.decoder_generator, output_projection=[True, False])
    assert [model.get_layer(f"decoder_{i}").attention.output_dense is None for i in range(2)] == [False, True]


@pytest.mark.parametrize("bias", [True, False])
def test_a_bias_of_no_projection_is_refused(bias):
    words = ["output_projection=False", str(bias)]
    for cls in (layers.MultiHeadSelfAttention, layers.CrossAttention):
        refused(lambda: cls(3, output_bias=bias, output_projection=False), ["`output_bias`", *words])
    options = dict(num_heads=3, attention_output_bias=bias, output_projection=False)
    for make_one in (layers.EncoderBlock, layers.DecoderBlock, lambda **given: models.encoder(11, 1, 12, **given)):
        refused(lambda: make_one(**options), ["`attention_output_bias`", *words])


def test_heads_of_another_width_than_the_block_are_refused():
    words = ["output_projection=False", "num_heads=3", "head_dim=8", "dim=12"]
    options = dict(num_heads=3, head_dim=8, output_projection=False)
    refused(lambda: layers.EncoderBlock(**options)(HIDDEN), words)
    refused(lambda: layers.DecoderBlock(cross_attention=True, **options)(HIDDEN, CONTEXT), words)
    refused(lambda: models.decoder_generator(11, 1, 12, **options), words)
    words = ["`num_heads` must divide `dim`", "num_heads=5"]
    refused(lambda: layers.EncoderBlock(5, output_projection=False)(HIDDEN), words)
    assert layers.EncoderBlock(3, head_dim=4, output_projection=False)(HIDDEN).shape == HIDDEN.shape


@pytest.mark.slow
def test_no_checkpoint_is_written(tmp_path):
    """Every family has the weights of W^O: the folder would not load."""
    folder = pathlib.Path(__file__).parents[1] / "checkpoints" / "golden" / "llama"
    options = dict(
        gated=True, use_bias=False, norm="rms", norm_placement="pre", position="rotary", scale_embedding=False
    )
    model = make(models.decoder_generator, output_projection=[True, False], **options)
    words = ["`family`", "output_projection"]
    refused(lambda: txf.checkpoints.save(model, tmp_path / "no", family="llama"), words)
    assert not (tmp_path / "no").exists()
    refused(lambda: txf.checkpoints.load(folder, output_projection=False), ["o_proj"])
