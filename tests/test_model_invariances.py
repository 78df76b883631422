"""What whole models must not depend on: padding, later tokens. Of far tokens and of order see tests/layers."""

import drawing
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keras_txf as txf
from keras_txf.checkpoints.parts import with_parts

VOCABULARY, DIM, PAD = 11, drawing.DIM, 0
KINDS = ("encoder", "decoder_generator", "encoder_decoder")
SEQUENCES = [[5, 3, 8, 1], [7, 7, 2], [4, 10, 6, 9, 3]]
SOURCES = [[2, 9], [6, 1, 8, 3, 5], [10, 4, 4]]


def make(kind, options, num_layers=2):
    """A builder's model with random weights."""
    options = dict(options)
    if kind != "encoder":
        options["tie_embeddings"] = options.get("combine") != "concat"
    sizes = (VOCABULARY, VOCABULARY) if kind == "encoder_decoder" else (VOCABULARY,)
    build = getattr(txf.models, kind)
    options = drawing.with_embedding(options, VOCABULARY)
    options = with_parts(build, {"num_layers": num_layers, "dim": DIM, **options})
    model = build(*sizes, **options)
    return drawing.randomize(model)


def pad(sequences, left=()):
    """int32 (B, longest), padded on the right, or on the left in the rows `left`."""
    longest = max(map(len, sequences))
    rows = []
    for row, sequence in enumerate(sequences):
        padding = [PAD] * (longest - len(sequence))
        rows.append(padding + sequence if row in left else sequence + padding)
    return np.array(rows, "int32")


def call(kind, model, ids, sources):
    inputs = {"source_ids": sources, "target_ids": ids} if kind == "encoder_decoder" else ids
    return drawing.array(model(inputs))


def alone(kind, model, row):
    """The outputs for one sequence without any padding, (T, D or V)."""
    return call(kind, model, pad(SEQUENCES[row : row + 1]), pad(SOURCES[row : row + 1]))[0]


def assert_padding_changes_nothing(kind, model):
    """Two layers: what padding holds after the first must not count in the second."""
    more = [[PAD] * 2 + row for row in SEQUENCES], [row + [PAD] * 3 for row in SOURCES]
    batches = [
        (pad(SEQUENCES), pad(SOURCES)),
        (pad(SEQUENCES, left=(0, 1, 2)), pad(SOURCES, left=(0, 1, 2))),
        (pad(more[0], left=(1,)), pad(more[1], left=(0,))),
    ]
    outputs = [call(kind, model, *batch) for batch in batches]
    for row in (0, 1):
        expected = alone(kind, model, row)
        for (ids, _), output in zip(batches, outputs, strict=True):
            drawing.assert_same(output[row][ids[row] != PAD], expected)


def assert_later_tokens_change_nothing_earlier(kind, model, place):
    ids, sources = pad([[5, 3, 8, 1, 4], [0, 0, 2, 6, 9]]), pad(SOURCES[:2])
    other = ids.copy()
    other[:, place:] = [7, 1, 10, 2, 3][place:]
    before, after = call(kind, model, ids, sources), call(kind, model, other, sources)
    # Not even at padding: where a target begins with that token, what follows it is learned there.
    drawing.assert_same(after[:, :place], before[:, :place], 1e-6)
    assert drawing.difference(before[:, place], after[:, place]) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("position_encoding", drawing.ENCODINGS, ids=lambda row: "-".join(map(str, row.values())))
@pytest.mark.parametrize("kind", KINDS)
@drawing.few(2)
@given(drawing.block_options(), st.integers(1, 4))
def test_padding_and_later_tokens_change_nothing(kind, position_encoding, options, place):
    model = make(kind, {**options, **position_encoding})
    assert_padding_changes_nothing(kind, model)
    if kind != "encoder":
        assert_later_tokens_change_nothing_earlier(kind, model, place)


@pytest.mark.parametrize("position", ["rotary", None])
def test_max_length_is_of_each_packed_sequence(position):
    model = txf.models.decoder_generator(11, 1, 8, 2, position=position, packed=True, max_length=4)
    inputs = {
        "token_ids": np.ones((1, 8), "int32"), "segment_ids": np.repeat([[1, 2]], 4, axis=1),
        "positions": np.tile(np.arange(4), 2)[None],
    }  # fmt: skip
    assert model(inputs).shape == (1, 8, 11)
    inputs["positions"][0, 3] = 9
    with pytest.raises(ValueError, match="`positions` must be .*0 to 3"):
        model(inputs)


@pytest.mark.parametrize("kind", ["encoder", "decoder_generator"])
def test_a_row_of_padding_alone_stays_finite(kind):
    model = make(kind, {"num_heads": 2, "position": "rotary"}, num_layers=1)
    assert np.isfinite(call(kind, model, pad([[PAD], [5, 3, 8]]), None)).all()
