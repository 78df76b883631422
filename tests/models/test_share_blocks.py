"""Blocks that stand at several places of a stack."""

import drawing
import keras
import numpy as np
import pytest
from refusals import refused

import keras_txf as txf

IDS = np.random.default_rng(0).integers(1, 11, (2, 5))


def assigned(model, other, blocks):
    """The model with the weights of another, whose blocks are those of the list."""
    values = {weight.path: weight for weight in other.weights}
    for weight in model.weights:
        name, _, rest = weight.path.partition("/")
        stack, _, index = name.rpartition("_")
        path = f"{stack}_{blocks[int(index)]}/{rest}" if index.isdigit() else weight.path
        weight.assign(values[path])
    return model


@pytest.mark.slow
@pytest.mark.parametrize("number, blocks", [(1, [0, 0, 0, 0, 0]), (2, [0, 0, 0, 1, 1]), (5, [0, 1, 2, 3, 4])])
def test_a_shared_block_is_the_same_block_at_each_place(number, blocks):
    sizes = dict(vocab_size=11, num_layers=5, dim=8, num_heads=2, return_hidden_states=True)
    shared = txf.models.encoder(**sizes, share_blocks=number)
    plain = assigned(txf.models.encoder(**sizes), shared, blocks)
    assert len({weight.path.split("/")[0] for weight in shared.weights if "encoder_" in weight.path}) == number
    for name, expected in plain(IDS).items():
        drawing.assert_same(shared(IDS)[name], expected, 1e-6)


@pytest.mark.slow
@drawing.not_on_jax
def test_shared_blocks_generate_as_their_copies_do(tmp_path):
    sizes = dict(vocab_size=11, num_layers=4, dim=8, num_heads=2, position="rotary", norm_placement="pre", window=3)
    shared = txf.models.decoder_generator(**sizes, share_blocks=2)
    plain = assigned(txf.models.decoder_generator(**sizes), shared, [0, 0, 1, 1])
    for options in ({}, {"sampler": txf.generation.Beam(3)}):
        expected = plain.generate([[1, 2, 3], [4]], 6, **options)
        assert list(map(list, shared.generate([[1, 2, 3], [4]], 6, **options))) == list(map(list, expected))
    shared.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    drawing.assert_same(again(IDS), shared(IDS), 1e-6)


@pytest.mark.slow
@drawing.not_on_jax
def test_both_sides_of_a_pair_share_and_are_trained():
    model = txf.models.encoder_decoder(
        11, 11, num_layers=3, dim=8, num_heads=2, share_blocks=1, dropout=0.0, encoder_options={"share_blocks": 2}
    )
    names = {weight.path.split("/")[0] for weight in model.weights if "coder_" in weight.path}
    assert names == {"encoder_0", "encoder_1", "decoder_0"}
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit({"source_ids": IDS, "target_ids": IDS}, IDS, epochs=2, verbose=0).history
    assert history["loss"][1] < history["loss"][0]
    assert model.generate([[1, 2]], 3).shape[0] == 1


@pytest.mark.parametrize(
    "value, words", [(4, ["`share_blocks`", "3 blocks of the encoder", "4"]), (0, ["`share_blocks`", "0"])]
)
def test_bad_numbers_are_refused(value, words):
    refused(lambda: txf.models.encoder(11, 3, 8, 2, share_blocks=value), words)


def test_the_decoders_own_number_is_refused_as_the_decoders():
    words = ["`share_blocks`", "2 blocks of the decoder", "3"]
    refused(lambda: txf.models.encoder_decoder(11, 11, 3, 8, 2, num_decoder_layers=2, share_blocks=3), words)


@pytest.mark.slow
def test_lists_have_a_value_for_each_block_that_there_is():
    model = txf.models.encoder(11, 4, 8, 2, share_blocks=2, window=[2, None])
    assert [model.get_layer(f"encoder_{i}").window for i in range(2)] == [2, None]
    refused(
        lambda: txf.models.encoder(11, 4, 8, 2, share_blocks=2, window=[2, None, 2, None]),
        ["`window`", "share_blocks=2"],
    )
