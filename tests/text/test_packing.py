"""Packing: by first fit, without loss of examples, with the same training as single examples."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_cases import CORPUS, learnt

import keras_txf as txf
from keras_txf import text
from keras_txf.text.lazy_imports import tf

SIZE = learnt("WordPiece").vocab_size
LINES = [word for line in CORPUS[:6] for word in (line[:25], line[5:14], line[30:])]
DIM, HEADS = 8, 2


def first_fit(sizes, lengths, window):
    """The examples of each row, assigned one by one in plain Python."""
    done = []
    for start in range(0, len(sizes), window):
        rows = []
        for index in range(start, min(start + window, len(sizes))):
            for row in rows:
                if all(sum(sizes[i][side] for i in [*row, index]) <= lengths[side] for side in range(len(lengths))):
                    row.append(index)
                    break
            else:
                rows.append([index])
        done += rows
    return done


@pytest.mark.slow
@settings(deadline=None, max_examples=3)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 7)), min_size=1, max_size=23),
    st.integers(5, 12),
    st.integers(7, 12),
    st.sampled_from([1, 4, 50]),
)
def test_equals_first_fit_in_python(sizes, source_length, target_length, window):
    random = np.random.default_rng(0)
    sources, targets = ([random.integers(1, 99, pair[side]).astype("int32") for pair in sizes] for side in (0, 1))

    def generate():
        for source, target in zip(sources, targets):
            yield {"source_ids": source, "target_ids": target}, target + 1

    ids = tf.TensorSpec([None], "int32")
    signature = ({"source_ids": ids, "target_ids": ids}, ids)
    dataset = tf.data.Dataset.from_generator(generate, output_signature=signature)
    lengths = {"source_ids": source_length, "target_ids": target_length}
    rows = list(text.pack(dataset, lengths, window).as_numpy_iterator())
    expected = first_fit(sizes, (source_length, target_length), window)
    assert len(rows) == len(expected)
    for (inputs, answers), indices in zip(rows, expected):
        for side, sequences, length in (("source", sources, source_length), ("target", targets, target_length)):
            found = [inputs[f"{side}_{name}"] for name in ("ids", "segment_ids", "positions")]
            np.testing.assert_array_equal(found, joined([sequences[index] for index in indices], length))
            assert all(part.dtype == np.int32 for part in found)
        np.testing.assert_array_equal(answers, joined([targets[index] + 1 for index in indices], target_length)[0])


def joined(sequences, length):
    parts = [(row, np.full(len(row), number + 1), np.arange(len(row))) for number, row in enumerate(sequences)]
    return [np.pad(row := np.concatenate(part), (0, length - len(row))) for part in zip(*parts)]


@pytest.mark.slow
def test_shapes_are_static():
    rows = text.pack(text.next_token(LINES, learnt("WordPiece"), 16), 16)
    inputs, targets = rows.batch(3, drop_remainder=True).element_spec
    assert inputs.keys() == {"token_ids", "segment_ids", "positions"}
    assert {tuple(spec.shape) for spec in (*inputs.values(), targets)} == {(3, 16)}
    batch = next(iter(rows.batch(2)))
    assert batch[1].shape == (2, 16)


IDS = [[5, 0], [7], [8, 9, 3]]


def packed(*parts):
    """Rows of 4 tokens, of examples with `IDS` and these parts."""
    parts = [tf.ragged.constant(part) if isinstance(part[0], list) else tf.constant(part) for part in (IDS, *parts)]
    dataset = tf.data.Dataset.from_tensor_slices(tuple(parts))
    dataset = dataset.map(lambda *element: tf.nest.map_structure(tf.convert_to_tensor, element))
    return next(iter(text.pack(dataset, 4, pad_id=99).batch(9)))


def test_labels_have_a_place_and_a_weight_at_the_first_token_of_their_example():
    inputs, labels, weights = packed([0, 2, 1])
    np.testing.assert_array_equal(inputs["token_ids"], [[5, 0, 7, 99], [8, 9, 3, 99]])
    np.testing.assert_array_equal(inputs["segment_ids"], [[1, 1, 2, 0], [1, 1, 1, 0]])
    np.testing.assert_array_equal(inputs["positions"], [[0, 1, 0, 0], [0, 1, 2, 0]])
    np.testing.assert_array_equal(labels, [[0, 0, 2, 0], [1, 0, 0, 0]])
    np.testing.assert_array_equal(weights, [[1, 0, 1, 0], [1, 0, 0, 0]])


@pytest.mark.slow
def test_weights_of_examples_and_of_tokens():
    share = [0.5, 2.0, 3.0]
    np.testing.assert_array_equal(packed([0, 2, 1], share)[2], [[0.5, 0, 2, 0], [3, 0, 0, 0]])
    np.testing.assert_array_equal(packed(IDS, share)[2], [[0.5, 0.5, 2, 0], [3, 3, 3, 0]])
    inputs, targets, weights = packed(IDS, [[float(id) for id in row] for row in IDS])
    np.testing.assert_array_equal(weights, [[5, 0, 7, 0], [8, 9, 3, 0]])
    np.testing.assert_array_equal(targets, [[5, 0, 7, 99], [8, 9, 3, 99]])


def start_and_end():
    return learnt("WordPiece", start="[CLS]", end="[SEP]")


def encoder(packed):
    return txf.models.encoder(SIZE, 1, DIM, HEADS, dropout=0.0, packed=packed)


def masked_model(packed):
    names = ("token_ids", "segment_ids", "positions") if packed else ("token_ids",)
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    states = encoder(packed)(inputs if packed else inputs["token_ids"])
    return keras.Model(inputs if packed else inputs["token_ids"], keras.layers.Dense(SIZE)(states))


def generator(packed):
    return txf.models.decoder_generator(SIZE, 1, DIM, HEADS, dropout=0.0, packed=packed, position="rotary")


def pair(packed):
    return txf.models.encoder_decoder(SIZE, SIZE, 1, DIM, HEADS, dropout=0.0, packed=packed, position="relative")


TASKS = {
    "next token": (lambda: text.next_token(LINES, start_and_end()), generator),
    "translation": (lambda: text.translation((LINES, LINES[::-1]), start_and_end()), pair),
    "question answering": (lambda: text.question_answering((LINES, LINES[::-1], LINES), start_and_end()), pair),
    "instruction": (lambda: text.instruction((LINES, LINES[::-1]), start_and_end()), generator),
    "masking": (lambda: text.masked_language_modelling(LINES, start_and_end(), rate=0.5).cache(), masked_model),
}


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_loss_and_gradients_equal_the_examples_alone(task):
    """One step of SGD with learning rate 1 moves each weight by its gradient."""
    make, build = TASKS[task]
    examples = make()
    plain, packed = build(False), build(True)
    packed.set_weights(plain.get_weights())
    before = plain.get_weights()
    (together,) = examples.padded_batch(len(LINES))  # reads to the end, so that the cache is complete
    (rows,) = text.pack(examples, 128, window=7).batch(len(LINES))
    assert rows[1].shape[0] < len(LINES) / 2
    losses = []
    for model, (inputs, targets, *weights) in ((plain, together), (packed, rows)):
        model.compile(keras.optimizers.SGD(1.0), txf.training.TokenCrossEntropy(), run_eagerly=True)
        weights = [part.numpy() for part in weights]
        losses.append(float(model.train_on_batch(numpy(inputs), targets.numpy(), *weights)))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    moved = 0.0
    for first, one, other in zip(before, plain.get_weights(), packed.get_weights(), strict=True):
        np.testing.assert_allclose(other - first, one - first, atol=2e-6)
        moved = max(moved, np.abs(one - first).max())
    assert moved > 1e-3


def numpy(inputs):
    return {name: rows.numpy() for name, rows in inputs.items()} if isinstance(inputs, dict) else inputs.numpy()
