"""What whole models must not depend on: padding, later tokens, far tokens, neighbours in a packed row."""

import itertools

import drawing
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keras_txf as txf

VOCABULARY, DIM, PAD = 11, drawing.DIM, 0
KINDS = ("encoder", "decoder_generator", "encoder_decoder")
SEQUENCES = [[5, 3, 8, 1], [7, 7, 2], [4, 10, 6, 9, 3]]
SOURCES = [[2, 9], [6, 1, 8, 3, 5], [10, 4, 4]]


def make(kind, options, packed=False, num_layers=2):
    """A builder's model with random weights; the same options give the same weights, packed or not."""
    options = dict(options)
    num_heads = options.pop("num_heads")
    if kind != "encoder":
        options["tie_embeddings"] = options.get("combine") != "concat"
    sizes = (VOCABULARY, VOCABULARY) if kind == "encoder_decoder" else (VOCABULARY,)
    model = getattr(txf.models, kind)(*sizes, num_layers, DIM, num_heads, packed=packed, **options)
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


# The other pairs of kind and position_encoding wait for the long run: an encoder-decoder is slow to build.
SHORT = {"encoder": (0, 1, 2, 3, 4), "decoder_generator": (0, 1, 4), "encoder_decoder": (0,)}


def cases():
    """Every kind with every position_encoding."""
    for kind, (index, position_encoding) in itertools.product(KINDS, enumerate(drawing.ENCODINGS)):
        marks = [pytest.mark.slow] * (index not in SHORT[kind])
        yield pytest.param(
            kind, position_encoding, id=f"{kind}-" + "-".join(map(str, position_encoding.values())), marks=marks
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind, position_encoding", list(cases()))
@drawing.few(2)
@given(drawing.block_options(), st.integers(1, 4))
def test_padding_and_later_tokens_change_nothing(kind, position_encoding, options, place):
    model = make(kind, {**options, **position_encoding})
    assert_padding_changes_nothing(kind, model)
    if kind != "encoder":
        assert_later_tokens_change_nothing_earlier(kind, model, place)


def packed_row(sequences, rows, length):
    """ids, segment ids and positions of the given sequences, one after the other."""
    ids, segments, positions = (np.zeros(length, "int32") for _ in range(3))
    start = 0
    for row in rows:
        place = slice(start, start + len(sequences[row]))
        ids[place], segments[place], positions[place] = sequences[row], row + 1, np.arange(len(sequences[row]))
        start = place.stop
    return ids, segments, positions


def packed_inputs(rows_of_batch, sequences, ids_name, prefix, length):
    stacked = zip(*(packed_row(sequences, rows, length) for rows in rows_of_batch), strict=True)
    names = [ids_name, f"{prefix}segment_ids", f"{prefix}positions"]
    return {name: np.stack(rows) for name, rows in zip(names, stacked, strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@drawing.few(2)
@given(drawing.model_options())
def test_packed_sequences_equal_the_same_alone(kind, options):
    packed, plain = (make(kind, options, is_packed, num_layers=1) for is_packed in (True, False))
    assert [w.path for w in packed.weights] == [w.path for w in plain.weights]
    rows_of_batch = [[0, 2, 1], [1, 0]]  # the second row ends in padding
    if kind == "encoder_decoder":
        inputs = {
            **packed_inputs(rows_of_batch, SOURCES, "source_ids", "source_", 10),
            **packed_inputs(rows_of_batch, SEQUENCES, "target_ids", "target_", 12),
        }
        segments = inputs["target_segment_ids"]
    else:
        inputs = packed_inputs(rows_of_batch, SEQUENCES, "token_ids", "", 12)
        segments = inputs["segment_ids"]
    outputs = drawing.array(packed(inputs))
    for index, rows in enumerate(rows_of_batch):
        for row in rows:
            drawing.assert_same(outputs[index][segments[index] == row + 1], alone(kind, plain, row))


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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["encoder", "decoder_generator"])
@drawing.few(2)
@given(drawing.model_options(exclude=["window"]), st.sampled_from([1, 2, 3]))
def test_nothing_beyond_every_layers_window_counts(kind, options, window):
    model = make(kind, {**options, "window": window})
    ids = np.array([[5, 3, 8, 1, 4, 9, 2, 7, 10]], "int32")
    other = ids.copy()
    other[0, 4] = 6
    reach = 2 * (window - 1)  # two layers
    distance = np.arange(9) - 4
    reached = (np.abs(distance) <= reach) & ((distance >= 0) | (kind == "encoder"))
    before, after = (call(kind, model, x, None)[0] for x in (ids, other))
    drawing.assert_same(after[~reached], before[~reached], 1e-6)
    for t in np.flatnonzero(reached):
        assert drawing.difference(after[t], before[t]) > 1e-7


@pytest.mark.slow
@drawing.few(2)
@given(drawing.block_options(exclude=["window", "position"]), st.permutations(range(9)))
def test_an_encoder_without_positions_does_not_know_the_order(options, order):
    model = make("encoder", {**options, "position_encoding": None})
    ids = np.array([[5, 3, 8, 1, 4, 9, PAD, 7, PAD]], "int32")
    before, after = call("encoder", model, ids, None), call("encoder", model, ids[:, order], None)
    real = ids[:, order] != PAD
    drawing.assert_same(after[real], before[:, order][real], 2e-5)  # sums in another order


@pytest.mark.parametrize("kind", ["encoder", "decoder_generator"])
def test_a_row_of_padding_alone_stays_finite(kind):
    model = make(kind, {"num_heads": 2, "position": "rotary"}, num_layers=1)
    assert np.isfinite(call(kind, model, pad([[PAD], [5, 3, 8]]), None)).all()
