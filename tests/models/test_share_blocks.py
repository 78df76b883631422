"""Blocks that several layers of a stack share."""

import drawing
import keras
import numpy as np
import pytest
from refusals import refused

import keras_txf as txf

IDS = np.random.default_rng(0).integers(1, 11, (2, 5))


def assigned(model, other, blocks):
    """The model with the weights of another model, whose blocks are in the list."""
    values = {weight.path: weight for weight in other.weights}
    for weight in model.weights:
        name, _, rest = weight.path.partition("/")
        stack, _, index = name.rpartition("_")
        path = f"{stack}_{blocks[int(index)]}/{rest}" if index.isdigit() else weight.path
        weight.assign(values[path])
    return model


@pytest.mark.drawn(3)
@pytest.mark.parametrize("number, blocks", [(1, [0, 0, 0]), (2, [0, 0, 1]), (3, [0, 1, 2])])
def test_consecutive_layers_share_a_block(number, blocks, tmp_path):
    sizes = dict(vocab_size=11, num_layers=3, dim=8, num_heads=2, return_hidden_states=True)
    shared = txf.models.encoder(**sizes, share_blocks=number)
    plain = assigned(txf.models.encoder(**sizes), shared, blocks)
    assert len({weight.path.split("/")[0] for weight in shared.weights if "encoder_" in weight.path}) == number
    shared.save(tmp_path / "model.keras")
    for model in (shared, keras.saving.load_model(tmp_path / "model.keras")):
        found = model(IDS)
        for name, expected in plain(IDS).items():
            drawing.assert_same(found[name], expected, 1e-6)


@pytest.mark.slow
@drawing.not_on_jax
def test_shared_blocks_generate_and_are_trained(uncompiled):
    sizes = dict(vocab_size=11, num_layers=4, dim=8, num_heads=2, position="rotary", norm_placement="pre", window=3)
    shared = txf.models.decoder_generator(**sizes, share_blocks=2)
    plain = assigned(txf.models.decoder_generator(**sizes), shared, [0, 0, 1, 1])
    for options in ({}, {"sampler": txf.generation.Beam(3)}):
        found, expected = (model.generate([[1, 2, 3], [4]], 6, **options) for model in (shared, plain))
        np.testing.assert_array_equal(found, expected)
    model = txf.models.encoder_decoder(11, 11, 3, 8, 2, share_blocks=1, encoder_options={"share_blocks": 2})
    names = {weight.path.split("/")[0] for weight in model.weights if "coder_" in weight.path}
    assert names == {"encoder_0", "encoder_1", "decoder_0"}
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    before = model.get_weights()
    model.train_on_batch({"source_ids": IDS, "target_ids": IDS}, IDS)
    assert all((weight != old).any() for weight, old in zip(model.get_weights(), before) if weight.ndim == 2)


def test_wrong_numbers_raise_value_error():
    encoder, pair = txf.models.encoder, txf.models.encoder_decoder
    refused(lambda: encoder(11, 3, 8, 2, share_blocks=4), ["`share_blocks`", "3 blocks of the encoder", "4"])
    refused(lambda: encoder(11, 3, 8, 2, share_blocks=0), ["`share_blocks`", "0"])
    words = ["`share_blocks`", "2 blocks of the decoder", "3"]
    refused(lambda: pair(11, 11, 3, 8, 2, num_decoder_layers=2, share_blocks=3), words)


def test_lists_have_a_value_for_each_distinct_block():
    model = txf.models.encoder(11, 4, 8, 2, share_blocks=2, window=[2, None])
    assert [model.get_layer(f"encoder_{i}").window for i in range(2)] == [2, None]
    windows = [2, None, 2, None]
    refused(lambda: txf.models.encoder(11, 4, 8, 2, share_blocks=2, window=windows), ["`window`", "share_blocks=2"])
