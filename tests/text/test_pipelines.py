"""Examples of every task: their content; no example is lost or repeated when shuffled, sharded or resumed."""

import collections

import numpy as np
import pytest
from text_cases import CORPUS, LEARN, PIPELINES, columns, columns_of, learnt

from keras_txf import text
from keras_txf.models import encoder_classifier
from keras_txf.text.lazy_imports import tf

LINES = [f"{line} {number}" for number, line in enumerate(CORPUS)]
OTHERS = [line[::-1] for line in LINES]
LABELS = [number % 3 for number in range(len(LINES))]
CLS, SEP, MASK = 2, 3, 4  # ids of WordPiece


def word_piece(**options):
    return learnt("WordPiece", **{"start": "[CLS]", "end": "[SEP]", **options})


BYTES = text.ByteTokenizer(["<pad>", "</s>", "<s>"], ["[MASK]"], start="<s>", end="</s>")  # quick to trace
every_pipeline = pytest.mark.parametrize("name", PIPELINES)


def run(name, *how):
    """The examples of a pipeline."""
    return PIPELINES[name][1](columns(*columns_of(name, LINES, OTHERS, LABELS)), *how)


def plain(element):
    """A nested element as tuples of numbers, to compare and count."""
    return tuple(frozen(np.asarray(part).tolist()) for part in tf.nest.flatten(element))


def frozen(value):
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def elements(dataset):
    return [plain(element) for element in dataset.as_numpy_iterator()]


def body(line):
    return word_piece().tokenize(line).numpy().tolist()


def byte_ids(line, length):
    """Ids of a line, truncated, without start and end."""
    return tuple(byte + 3 for byte in line.encode()[:length])


def pair_of_bytes(first, second):
    """A row of 9 tokens, with 6 tokens of texts: each text has 3, or the rest that the other leaves."""
    return (2, *byte_ids(first, 3), 1, *byte_ids(second, 3), 1)


def target_of_bytes(line):
    return (2, *byte_ids(line, 8)), (*byte_ids(line, 8), 1)


def row_of_bytes(line):
    return (2, *byte_ids(line, 7), 1)


EXAMPLES = {  # at most 9 tokens a row
    "classification": lambda first, second, label: (row_of_bytes(first), label),
    "sentence pairs": lambda first, second, label: (pair_of_bytes(first, second), label),
    "translation": lambda first, second, label: (row_of_bytes(first), *target_of_bytes(second)),
    "contrastive": lambda first, second, label: (row_of_bytes(first), row_of_bytes(second)),
}


@pytest.mark.drawn(2)
@pytest.mark.drawn(2)
@every_pipeline
def test_shapes_and_numbers(name):
    examples = run(name, BYTES, 9)
    for spec in tf.nest.flatten(examples.element_spec):
        assert isinstance(spec, tf.TensorSpec) and spec.shape.rank in (0, 1) and spec.dtype == tf.int32
    found = elements(examples)
    assert max(len(row) for element in found for row in element if isinstance(row, tuple)) == 9
    if name != "next token":
        assert len(examples) == len(LINES)
    if name in EXAMPLES:
        assert found == list(map(EXAMPLES[name], LINES, OTHERS, LABELS))


def test_labels_without_classes_are_numbers():
    scores = text.classification((LINES[:3], [0.0, 2.5, 5.0]), BYTES, None)
    assert [score for _, score in elements(scores)] == [0, 2.5, 5] and scores.element_spec[1].dtype == tf.float32


@pytest.mark.slow
@pytest.mark.parametrize("max_length", [5, 6, 9, 20, 31, None])
def test_sentence_pairs_are_berts(max_length, tmp_path):
    import transformers

    tokenizer = word_piece()
    (tmp_path / "vocab.txt").write_text("\n".join(tokenizer.get_config()["vocabulary"]) + "\n", encoding="utf-8")
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    seconds = [line[: 3 * number] for number, line in enumerate(OTHERS)]
    expected = theirs(LINES, seconds, max_length=max_length, truncation=max_length is not None)
    found = elements(text.sentence_pairs((LINES, seconds, LABELS), tokenizer, 3, max_length))
    assert found == [(tuple(row), label) for row, label in zip(expected["input_ids"], LABELS)]
    typed = text.sentence_pairs((LINES, seconds, LABELS), tokenizer, 3, max_length, token_types=True)
    inputs = [inputs for inputs, _ in typed.as_numpy_iterator()]
    assert [row["token_ids"].tolist() for row in inputs] == expected["input_ids"]
    assert [row["token_type_ids"].tolist() for row in inputs] == expected["token_type_ids"]


@pytest.mark.slow
@pytest.mark.parametrize("batches", ["padded", "by length"])
def test_a_model_takes_the_types_of_pairs(batches):
    examples = text.sentence_pairs((LINES, OTHERS, LABELS), word_piece(), 3, token_types=True)
    model = encoder_classifier(word_piece().vocab_size, 3, 1, 8, 2, token_types=2, token_type_ids=True)
    batches = examples.padded_batch(4) if batches == "padded" else text.batch_by_length(examples, 400, [20, 100])
    assert sum(len(model(inputs)) for inputs, _ in batches) == len(LINES)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [False, True])
def test_without_labels_there_are_inputs_alone(memory):
    tokenizer, first, second = word_piece(length=16), LINES[:5], OTHERS[:5]
    data = (lambda *parts: parts if len(parts) > 1 else parts[0]) if memory else columns
    alone = text.classification(data(first), tokenizer)
    assert elements(alone) == [one[:1] for one in elements(text.classification((first, [0] * 5), tokenizer))]
    assert alone.element_spec.dtype == tf.int32
    for other in (np.array(first), tf.constant(first)):
        assert elements(text.classification(other, tokenizer)) == elements(alone)
    for types in (False, True):
        alone = text.sentence_pairs(data(first, second), tokenizer, token_types=types)
        labelled = text.sentence_pairs((first, second, [0] * 5), tokenizer, token_types=types)
        assert elements(alone) == [one[:-1] for one in elements(labelled)]
        assert isinstance(alone.element_spec, dict) == types


def test_pairs_are_cut_on_the_left_and_take_other_separators():
    tokenizer = text.ByteTokenizer(start="</s>", end="</s>", truncation_side="left")
    [(row, _)] = elements(text.sentence_pairs((["abcdef"], ["uvwxyz"], [0]), tokenizer, 1, 9, ["</s>", "</s>"]))
    assert row == (1, *byte_ids("ef", 9), 1, 1, *byte_ids("xyz", 9), 1)


@pytest.mark.drawn(5)
@pytest.mark.parametrize("max_length", [1, 5, 8, 99, None])
def test_next_token_has_each_token_but_the_first_as_a_target_once(max_length):
    lines = ["", *LINES, ""]
    found = elements(text.next_token(columns(lines), BYTES, max_length))
    rows, most = BYTES(lines).to_list(), max_length or 999
    assert sum((list(row) for row, _ in found), []) == sum((row[:-1] for row in rows), [])
    assert sum((list(row) for _, row in found), []) == sum((row[1:] for row in rows), [])
    assert all(0 < len(row) == len(targets) <= most for row, targets in found)
    assert len(found) == sum(-(-(len(row) - 1) // most) for row in rows)
    assert len(elements(text.next_token(columns(["", "f", "fo"]), text.ByteTokenizer()))) == 1


@pytest.mark.slow
def test_question_answering_cuts_the_context():
    found = elements(text.question_answering((LINES, ["who?"] * len(LINES), OTHERS), word_piece(), max_length=12))
    question = body("who?")
    for (source, target, answer), context, line in zip(found, LINES, OTHERS, strict=True):
        assert source == (CLS, *question, SEP, *body(context)[: 9 - len(question)], SEP)
        assert target == (CLS, *answer[:-1]) and answer == (*body(line)[:11], SEP)
    ((source, *_),) = elements(text.question_answering((["a"], [LINES[0]], ["a"]), word_piece(), max_length=8))
    assert source == (CLS, *body(LINES[0])[:5], SEP, SEP)


@pytest.mark.slow
def test_targets_of_contrastive_pairs():
    batches = run("contrastive", BYTES, 9).padded_batch(5).map(text.contrastive_targets).as_numpy_iterator()
    assert [targets.tolist() for _, targets in batches] == [[0, 1, 2, 3, 4]] * 3 + [[0, 1, 2]]


def test_the_tokenizers_length_is_the_default():
    six = text.ByteTokenizer(length=6)
    for given, length in ((None, 6), (8, 8)):
        assert [len(row) for (row,) in elements(text.token_ids(LINES, six, given))] == [length] * len(LINES)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("kind", LEARN)
def test_every_tokenizer(kind):
    many = LINES * 20  # more lines than a chunk
    found = elements(text.token_ids(columns(many), learnt(kind)))
    assert [list(row) for (row,) in found] == learnt(kind).tokenize(many).to_list()


@pytest.mark.slow
def test_text_without_end():
    endless = text.token_ids(columns(LINES).repeat(), word_piece())
    assert int(endless.cardinality()) == tf.data.INFINITE_CARDINALITY
    assert elements(endless.take(20)) == (elements(text.token_ids(LINES, word_piece())) * 2)[:20]


def resumed(make, steps, tmp_path):
    """The next elements after some steps: of the same iterator, and of a new iterator that continues from a file."""
    iterator = iter(make())
    first = [plain(next(iterator)) for _ in range(steps)]
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "at"))
    rest = [plain(element) for element in iterator]
    again = iter(make())
    tf.train.Checkpoint(iterator=again).restore(path)
    return first, rest, [plain(element) for element in again]


ENDS = {
    "alone": lambda examples: examples.shuffle(5, seed=1),
    "batches": lambda examples: text.batch_by_length(examples.shuffle(5, seed=1), 256, 60).shuffle(3, seed=2),
    "rows": lambda examples: text.pack(examples.shuffle(5, seed=1), 128, window=4).batch(1),
}


@pytest.mark.slow
@every_pipeline
@pytest.mark.parametrize("end", ENDS)
def test_resumed_in_the_middle_of_an_epoch(name, end, tmp_path):
    first, rest, again = resumed(lambda: ENDS[end](run(name, BYTES, 60)).prefetch(2), 2, tmp_path)
    assert first and rest and rest == again
    if end == "alone" and name != "masking":
        assert collections.Counter(first + rest) == collections.Counter(elements(run(name, BYTES, 60)))
