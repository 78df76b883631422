"""TokenClassifier: words of any length, entities with their spans in the text, files and a served model."""

import keras
import numpy as np
import pandas
import pytest
import tensorflow as tf

import keras_txf as txf
from keras_txf.tasks.words import read_conll

WORDS = [["Ada", "Lovelace", "is", "here"], ["Who", "saw", "Bo", "in", "Rome", "?"], ["Rome", "is", "old"]] * 4
TAGS = [["B-PER", "I-PER", "O", "O"], ["O", "O", "B-PER", "O", "B-LOC", "O"], ["B-LOC", "O", "O"]] * 4
SMALL = dict(vocab_size=80, num_layers=1, dim=16, num_heads=2, dropout=0.0)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def task():
    """A task made by hand instead of trained: each token has the tag of its word in `TAGS`."""
    tag_of = {word: tag for words, tags in zip(WORDS, TAGS) for word, tag in zip(words, tags)}
    labels = sorted({*tag_of.values()})
    tokenizer = txf.text.WordPieceTokenizer([*SPECIAL, *tag_of, "##here"], lowercase=False, start="[CLS]", end="[SEP]")
    ids = keras.Input([None], dtype="int32", name="token_ids")
    embedding = keras.layers.Embedding(tokenizer.vocab_size, len(labels), embeddings_initializer="zeros")
    model = keras.Model(ids, embedding(ids))
    table = np.zeros((tokenizer.vocab_size, len(labels)), "float32")
    for word, tag in tag_of.items():
        table[tokenizer.token_to_id(word), labels.index(tag)] = 3
    model.set_weights([table])
    return txf.tasks.TokenClassifier(model, tokenizer, labels, max_length=8)


@pytest.fixture(scope="module")
def untrained():
    """An untrained task, whose tags depend on the words around a word."""
    return txf.tasks.TokenClassifier.from_scratch(WORDS, TAGS, max_length=8, **SMALL)


@pytest.mark.slow
def test_long_texts_are_read_in_parts(untrained):
    """The answer for a part equals the model's answer for the part alone."""
    words = [word for row in WORDS[:3] for word in row]
    room = untrained.max_length - 2
    counts = [len(untrained.tokenizer.tokenize(word)) for word in words]
    start, expected = 0, []
    while start < len(words):
        stop = start + 1
        while stop < len(words) and sum(counts[start : stop + 1]) <= room:
            stop += 1
        expected += [*untrained.predict(words[start:stop], return_probabilities=True)]
        start = stop
    np.testing.assert_allclose(untrained.predict(words, return_probabilities=True), expected, atol=1e-6)


def test_a_word_of_more_tokens_than_there_is_room(task):
    assert len(task.tokenizer.tokenize("here" * 9)) > task.max_length
    assert task.predict(["here" * 9, "Rome"])[1] == task.predict(["Rome"])[0]


def test_scores_equal_the_tags(task):
    """One of 19 tags is wrong: in the fourth row the task finds a sixth entity."""
    tags = [*TAGS[:3], ["O", "O", "O"], ["B-LOC", "O", "O"]]
    found = task.evaluate(WORDS[:3] + WORDS[2:3] * 2, tags)
    right, wrong = -np.log(np.exp([3, 0]) / (np.exp(3) + 3))
    count = sum(map(len, tags))
    np.testing.assert_allclose(found["loss"], (right * (count - 1) + wrong) / count, rtol=1e-5)
    np.testing.assert_allclose(found["accuracy"], 1 - 1 / count, rtol=1e-6)
    scores = [found[name] for name in ("precision", "recall", "f1")]
    np.testing.assert_allclose(scores, [5 / 6, 1, 10 / 11], rtol=1e-6)


def test_words_without_a_token(task):
    assert task.predict([["", "Rome"], []]) == [["O", "B-LOC"], []]
    assert not task.predict(["", "Rome"], return_probabilities=True)[0].any()


def test_entities_are_parts_of_the_text(task):
    texts = ["Who saw\u00a0Bo  in Rome?", "", "Ada Lovelace is here"]
    found = task.entities(texts)
    assert [[(one["text"], one["label"], one["start"], one["end"]) for one in row] for row in found] == [
        [("Bo", "PER", 8, 10), ("Rome", "LOC", 15, 19)], [], [("Ada Lovelace", "PER", 0, 12)]
    ]  # fmt: skip
    assert task.entities(texts[0]) == found[0] and all(0.5 < one["score"] <= 1 for one in found[0])


def test_spans_of_words_are_characters(task):
    text = "Ähm, 東京 ist 𐐀!"
    [words], [spans] = task._windows.split([text])
    assert words == ["Ähm", ",", "東京", "ist", "𐐀", "!"] == [text[start:end] for start, end in spans]


@pytest.mark.slow
def test_it_is_served(untrained, tmp_path):
    untrained.export(tmp_path / "served")
    loaded = tf.saved_model.load(str(tmp_path / "served"))
    rows = [["Rome", "is", "here"], ["Who", "saw", "Bo"], []]
    served = loaded.serve(tf.constant([" ".join(row) for row in rows]))
    for index, (row, tags) in enumerate(zip(rows, untrained.predict(rows))):
        found = [[value.decode() for value in served[name].numpy()[index]] for name in ("word", "tag")]
        assert found == [[*row, *[""] * (3 - len(row))], [*tags, *[""] * (3 - len(row))]]
    expected = [row.max(axis=1) for row in untrained.predict(rows[:2], return_probabilities=True)]
    np.testing.assert_allclose(served["score"].numpy()[:2], expected, atol=1e-6)


def test_files_columns_and_numbers_are_the_same(task, tmp_path):
    lines = ["-DOCSTART- X O", ""]
    for words, tags in zip(WORDS, TAGS):
        lines += [*(f"{word} NN {tag}" for word, tag in zip(words, tags)), ""]
    (tmp_path / "data.conll").write_text("\n".join(lines))
    (tmp_path / "data.iob").write_text("\n".join(lines).replace(" ", "\t"))
    numbers = [[task.labels.index(tag) for tag in row] for row in TAGS]
    expected = task._checked([WORDS, TAGS])
    assert expected == task._checked([WORDS, numbers]) == [WORDS, numbers]
    for name in ("data.conll", "data.iob"):
        assert task._read(tmp_path / name, [None], None) == [WORDS, TAGS]
    frame = pandas.DataFrame({"tokens": WORDS, "ner": TAGS})
    frame.to_parquet(tmp_path / "data.parquet")
    rows = tf.data.Dataset.from_tensor_slices((tf.ragged.constant(WORDS), tf.ragged.constant(TAGS)))
    for data, columns in ((frame, ("tokens", "ner")), (tmp_path / "data.parquet", ("tokens", "ner")), (rows, None)):
        assert task._checked(task._read(data, [None], columns)) == expected


def test_weights_of_labels_equal_the_loss():
    tagger = txf.tasks.TokenClassifier.from_scratch(WORDS[:3], TAGS[:3], max_length=30, **SMALL)
    words, tags = WORDS[:2], TAGS[:2]
    tagger.compile(keras.optimizers.SGD(1e-12), run_eagerly=True)
    found = tagger.fit(words, tags, class_weight={"B-LOC": 5.0}, epochs=1, verbose=0).history["loss"][0]
    own, weights = [], []
    for row, names in zip(tagger.predict(words, return_probabilities=True), tags):
        own += [row[i, tagger.labels.index(tag)] for i, tag in enumerate(names)]
        weights += [5.0 if tag == "B-LOC" else 1.0 for tag in names]
    np.testing.assert_allclose(found, np.average(-np.log(own), weights=weights), rtol=1e-5)


def test_labels_that_make_no_entities(task):
    tagger = txf.tasks.TokenClassifier(task.model, task.tokenizer, ["NOUN", "VERB", "X", "."], max_length=9)
    assert set(tagger.evaluate([["Rome"]], [["NOUN"]])) == {"loss", "accuracy"}
    assert tagger.predict([""]) == [None]
    with pytest.raises(ValueError, match="`entities` needs labels like 'B-PER'"):
        tagger.entities("Rome")


@pytest.mark.parametrize("call, words", [
    (lambda task: task.fit(WORDS, [["O"]] * 12), ["`tags`", "each of 4 words", "at index 0"]),
    (lambda task: task.fit(WORDS, [["O"] * len(row) for row in WORDS[:2]]), ["`words`, `tags`", "one length"]),
    (lambda task: task.fit(["a b"], [["O"]]), ["`words`", "'a b'"]),
    (lambda task: task.fit([["a"], ["b"]], [["O"], ["B-X"]]), ["`tags`", "'B-X'", "at index 1"]),
    (lambda task: task.fit([["a"], ["b"]], [["O"], [b"\xff"]]), ["`tags`", "xff", "at index 1"]),
    (lambda task: task.fit("none.conll"), ["exist", "none.conll"]),
    (lambda task: task.predict("Ada is here"), ["`words`", "'Ada is here'"]),
    (lambda task: task.predict([["Ada", 3]]), ["`words`", "3"]),
    (lambda task: task.entities([3]), ["`texts`", "3"]),
    (lambda task: txf.tasks.TokenClassifier(task.model, task.tokenizer, ["O", "B-a"]), ["`labels`", "received 2"]),
])  # fmt: skip
def test_bad_input_raises(task, call, words):
    with pytest.raises(ValueError) as error:
        call(task)
    assert "\n" not in str(error.value) and all(word in str(error.value) for word in words), str(error.value)


UNIVERSAL = """# sent_id = 1
# text = Dámelo\tya
1-2\tDámelo\t_\t_\t_\t_\t_\t_\t_\t_
1\tDá\tdar\tVERB\tv\t_\t0\troot\t_\t_
2\tme\tyo\tPRON\tp\t_\t1\tobj\t_\t_
2.1\tido\tir\tVERB\t_\t_\t_\t_\t_\t_
3\t20 000\t20\tNUM\tn\t_\t1\tobj\t_\t_

# text = Sí
1\tSí\tsí\tINTJ\ti\t_\t0\troot\t_\tSpaceAfter=No
"""
GERMEVAL = "#\tn-tv.de\n1\tAda\tB-PER\tO\n2\tsaw\tO\tO\n\n#\thttp://x\n1\tBo\tB-PER\tO\n"
ONTONOTES = "bc/x 0 0 Ada NNP\nbc/x 0 1 saw VBD\n\nbc/x 0 0 Bo NNP\n"
NAMED = "id\tword\tpos\tner\n7\tAda\tNNP\tB-PER\n8\tsaw\tVBD\tO\n\n9\tBo\tNNP\tB-PER\n"
PEOPLE = [["Ada", "saw"], ["Bo"]]
ADA_IS, TAGGED = [["Ada", "is"]], [["O", "B-PER"]]


@pytest.mark.parametrize("content, columns, words, tags", [
    ("\ufeffAda\tO\nis\tB-PER\n", None, ADA_IS, TAGGED),
    ("# sent_id = 1\n# text = Ada is\nAda\t_\tO\t\nis\t_\tB-PER\n", None, ADA_IS, TAGGED),
    ("# newdoc\nAda\tO\r\nis\tB-PER\r\n\r\n", None, ADA_IS, TAGGED),
    ("# text = Ada is\nAda X O\nis X B-PER \n", None, ADA_IS, TAGGED),
    ("#\tO\n#a\tO", None, [["#", "#a"]], [["O", "O"]]), ("# O\n#a O\n", None, [["#", "#a"]], [["O", "O"]]),
    ("a\u2028b\tO\n", None, [["a\u2028b"]], [["O"]]),
    (UNIVERSAL, None, [["Dá", "me", "20 000"], ["Sí"]], [["VERB", "PRON", "NUM"], ["INTJ"]]),
    (UNIVERSAL, (1, 4), [["Dá", "me", "20 000"], ["Sí"]], [["v", "p", "n"], ["i"]]),
    (GERMEVAL, (1, 2), PEOPLE, [["B-PER", "O"], ["B-PER"]]),
    (ONTONOTES, (3, -1), PEOPLE, [["NNP", "VBD"], ["NNP"]]),
    (NAMED, ("word", "ner"), PEOPLE, [["B-PER", "O"], ["B-PER"]]),
    ("Tag\tToken\nB-PER\tAda\nO\tsaw\n\nB-PER\tBo\n", None, PEOPLE, [["B-PER", "O"], ["B-PER"]]),
    ("1 NUM\n2 NUM\n", None, [["1", "2"]], [["NUM", "NUM"]]),
    ("a\u00a0b O\nha O\n", None, [["a\u00a0b", "ha"]], [["O", "O"]]),
], ids=range(15))  # fmt: skip
def test_columns_of_files(content, columns, words, tags, tmp_path):
    """A line that looks like a comment may be a word."""
    (tmp_path / "data.TXT").write_bytes(content.encode())
    assert read_conll(tmp_path / "data.TXT", columns) == [words, tags]
    assert txf.tasks.TokenClassifier._read(tmp_path / "data.TXT", [None], columns) == [words, tags]


@pytest.mark.parametrize("content, columns, message", [
    (GERMEVAL, None, ["`columns`", "counts the words of a text", "'1 Ada B-PER O'", "(1, -1)"]),
    (ONTONOTES, None, ["`columns`", "is the same in all lines of a text", "'bc/x 0 0 Ada NNP'"]),
    (NAMED, None, ["`columns` must say which", "['id', 'word', 'pos', 'ner']"]),
    (NAMED, ("word", "tag"), ["`columns`", "['id', 'word', 'pos', 'ner']", "received ('word', 'tag')"]),
    (NAMED, (1,), ["`columns`", "received (1,)"]), (NAMED, (1, True), ["`columns`", "received (1, True)"]),
    (GERMEVAL, (1, 9), ["10 columns", "in line 2"]), (GERMEVAL, (1, -5), ["5 columns", "in line 2"]),
    ("Ada\n", None, ["a word and its tag", "'Ada' in line 1"]), ("\n\n", None, ["received none"]),
], ids=range(10))  # fmt: skip
def test_a_file_that_cannot_be_read_raises(content, columns, message, tmp_path):
    (tmp_path / "data.conllu").write_text(content)
    with pytest.raises(ValueError) as error:
        txf.tasks.TokenClassifier.from_scratch(tmp_path / "data.conllu", columns=columns, **SMALL)
    assert all(words in str(error.value) for words in message) and "\n" not in str(error.value), str(error.value)
