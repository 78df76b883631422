"""Columns are the same from every source. Errors name a missing column, or a value of another type."""

import json

import numpy as np
import pandas
import pytest
import tensorflow as tf

import keras_txf as txf
from keras_txf.tasks.columns import one_or_many, read_columns, strings
from keras_txf.text.vocabulary import lines

TEXTS, LABELS = ['say "yes"', "NA", "007", "zwölf, null"], ["a", "b", "a", "None"]
NAMES = {"texts": "text", "labels": "label"}
FRAME = pandas.DataFrame({"label": LABELS, "text": TEXTS, "other": range(4)})


def csv(folder):
    FRAME.to_csv(folder / "data.csv", index=False)
    return folder / "data.csv"


def capitals(folder):
    return csv(folder).rename(folder / "DATA.CSV")


def tsv(folder):
    lines = ["text\tlabel", *map("\t".join, zip(TEXTS, LABELS))]
    (folder / "data.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / "data.tsv")


def jsonl(folder):
    lines = [json.dumps({"text": text, "label": label}) for text, label in zip(TEXTS, LABELS)]
    (folder / "data.jsonl").write_text("\n".join(lines))
    return folder / "data.jsonl"


def parquet(folder):
    FRAME.to_parquet(folder / "data.parquet")
    return folder / "data.parquet"


class HuggingFace:
    """The interface of `datasets.Dataset` that tasks use."""

    column_names = ["text", "label"]

    def __getitem__(self, name):
        return iter({"text": TEXTS, "label": LABELS}[name])


TABLES = {
    "dict": lambda _: {"label": LABELS, "text": TEXTS},
    "csv": csv, "capitals": capitals, "tsv": tsv, "jsonl": jsonl, "parquet": parquet, "pandas": lambda _: FRAME,
    "datasets": lambda _: HuggingFace(),
    "tf.data": lambda _: tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)),
    "tf.data of dicts": lambda _: tf.data.Dataset.from_tensor_slices({"label": LABELS, "text": TEXTS}),
}  # fmt: skip


@pytest.mark.parametrize("source", TABLES)
def test_a_table_gives_its_columns(source, tmp_path):
    assert read_columns(TABLES[source](tmp_path), [None], NAMES) == [TEXTS, LABELS]


MAKES = {
    "list": list, "tuple": tuple, "numpy": np.array, "pandas": pandas.Series, "iterator": iter, "tensor": tf.constant,
    "tensors": lambda values: list(tf.constant(values)),
}  # fmt: skip


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
def test_columns_give_themselves(make):
    assert repr(read_columns(make(TEXTS), [make(LABELS)], NAMES)) == repr(
        [TEXTS, LABELS]
    )  # `repr`, because a tensor equals its text


def test_a_data_set_of_texts_and_a_tensor_of_one_are_texts():
    assert one_or_many("texts", tf.data.Dataset.from_tensor_slices(TEXTS))[0] == TEXTS
    found, back = one_or_many("texts", tf.constant(TEXTS[0]))
    assert (found, back(["answer"])) == (TEXTS[:1], "answer")


def test_numbers_stay_numbers():
    assert read_columns(["a", "b"], [np.array([1, 0])], NAMES) == [["a", "b"], [1, 0]]
    for values in (np.array([0.5]), np.array([0.5], "longdouble"), [tf.constant(0.5)]):
        assert read_columns(["a"], [values], NAMES) == [["a"], [0.5]]


@pytest.mark.parametrize("data, others, words", [
    ("none.csv", [None], "`texts` must be a file that exists.*none.csv"),
    ("data.txt", [None], "`texts` must be data, or a file of.*data.txt"),
    (FRAME.drop(columns="label"), [None], "`columns` must name columns of the table `texts`.*there is no 'label'"),
    (FRAME, [LABELS], "`labels` must be left out"),
    (TEXTS, [LABELS[:2]], "`texts`, `labels` must be of one length.*{'texts': 4, 'labels': 2}"),
    ([], [[]], "at least 1"),
    (TEXTS, [None], "`labels` must be given where `texts` is not a table .* with \\['text', 'label'\\]"),
    (list(zip(TEXTS, LABELS)), [None], "`labels` must be given where `texts` is not a table"),
    (pandas.concat([FRAME, FRAME.label], axis=1), [None], "`texts` must be a table that has each column"),
    (3, [None], "`texts` must be a list or a column"),
    (tf.data.Dataset.from_tensor_slices(TEXTS), [None], "must have elements of"),
    (tf.data.Dataset.from_tensor_slices({"text": TEXTS}), [None], "`columns` must name parts"),
], ids=range(12))  # fmt: skip
def test_bad_columns_raise(data, others, words):
    with pytest.raises(ValueError, match=words):
        read_columns(data, others, NAMES)


CELLS = "as many cells in each row as the first line, 2; received 3"
MISSING = "`labels` must have a value in each row.* column 'label', row 2"
OBJECT = "data.jsonl' must have a JSON object in each line; received .*\\.$"
LINE = '{"text": "one", "label": "a"}\n'


@pytest.mark.parametrize("name, content, words", [
    ("data.csv", "text,label\ngood, day,a\nbad, sun,b\n", CELLS),
    ("data.csv", "text,label\none,a\ngood, day,a\n", "data.csv' cannot be read"),
    ("data.tsv", "text\tlabel\ngood\tday\ta\n", CELLS),
    ("data.csv", "text,label,label\none,a,b\n", "a table that has each column of \\['text', 'label'\\] once"),
    ("data.csv", "good,a\nbad,b\n", "table `texts`, \\['good', 'a'\\] .*there is no 'text', 'label'"),
    ("data.csv", "text;label\none;a\n", "table `texts`, \\['text;label'\\]"),
    ("data.tsv", "text\tlabel\nzwölf\ta\n".encode("latin-1"), "cannot be read: .*Save it as UTF-8.*pass the columns"),
    ("data.csv", "text,label\nzwölf,a\n".encode("utf-16"), "cannot be read: .*Save it as UTF-8"),
    ("data.tsv", "text\tlabel\na\tb\na\tb\tc\n", "cannot be read: .*Expected 2 fields in line 3, saw 3.$"),
    ("data.tsv", "text\tlabel\none\ta\ntwo\n", MISSING), ("data.csv", "text,label\none,a\ntwo,\n", MISSING),
    ("data.jsonl", LINE + '{"text": "two"}\n', MISSING), ("data.jsonl", LINE + "{", OBJECT),
    ("data.jsonl", LINE + "[1]", OBJECT), ("data.jsonl", LINE + "3", OBJECT),
    ("data.jsonl", LINE + '{"text": "a", "text": "b"}', OBJECT),
], ids=range(16))  # fmt: skip
def test_a_file_that_would_be_read_wrongly_raises(name, content, words, tmp_path):
    """pandas makes an index of cells without a name, and renames the second of two columns of one name."""
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=words) as error:
        read_columns(tmp_path / name, [None], NAMES)
    assert "\n" not in str(error.value)


BATCHED = tf.data.Dataset.from_tensor_slices((TEXTS, LABELS)).batch(2)


@pytest.mark.parametrize("call, words", [
    (lambda: strings("texts", read_columns(BATCHED, [None], NAMES)[0]),
     r"`texts` must hold one string.*`dataset.unbatch\(\)`.*at index 0"),
    (lambda: strings("texts", ["\U0001f408", "a\ud800"]), "`texts` must hold Unicode.*at index 1"),
    (lambda: strings("texts", pandas.Series(["a", float("nan")])), "`texts` must hold strings; received nan at index"),
    (lambda: one_or_many("texts", FRAME), "`texts` must be a list or a column"),
    (lambda: one_or_many("texts", BATCHED), "`texts` must be a list or a column"),
    (lambda: read_columns(["a", "b"], [["x", b"\xff"]], NAMES),
     r"`labels` must hold text in UTF-8; received b'\\xff' at index 1"),
    (lambda: read_columns(".", [], {"texts": "text"}), r"received the folder .*\[path.read_text\(\) for path in"),
], ids=range(7))  # fmt: skip
def test_other_values_than_text_raise_with_the_index(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("order", [("label", "text", "other"), ("other", "text", "label"), ("text", "label")])
def test_columns_are_found_by_their_names(order, tmp_path):
    table = FRAME[list(order)].rename(columns={"text": "body"})
    table.to_parquet(tmp_path / "data.parquet")
    table.to_csv(tmp_path / "data.csv", index=False)
    table.to_csv(tmp_path / "indexed.csv")
    for data in (table, tmp_path / "data.parquet", tmp_path / "data.csv", tmp_path / "indexed.csv"):
        assert read_columns(data, [None], {"texts": "body", "labels": "label"}) == [TEXTS, LABELS]


def test_a_byte_order_mark_is_not_a_part_of_a_name(tmp_path):
    for name, mark in (("data.csv", ","), ("data.tsv", "\t")):
        (tmp_path / name).write_text(f"text{mark}label\r\nzwölf{mark}a\r\n", encoding="utf-8-sig", newline="")
        assert read_columns(tmp_path / name, [None], NAMES) == [["zwölf"], ["a"]]


def test_lines_of_a_file_are_texts(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("\ufeffone\n\n two \nzwölf", encoding="utf-8")
    assert read_columns(path, [], {"texts": "text"}) == [["one", " two ", "zwölf"]]
    path.write_bytes("one\u2028two\x0cthree\r\nfour\rfive\n".encode())
    expected = ["one\u2028two\x0cthree", "four", "five"]
    assert read_columns(path, [], {"texts": "text"}) == [expected] and list(lines(path)) == expected
    assert list(lines([path], keep_ends=True))[:2] == [f"{expected[0]}\r\n", "four\r"]
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(ValueError, match="data.txt.* cannot be read"):
        read_columns(path, [], {"texts": "text"})


@pytest.mark.parametrize("suffix, labels, expected", [
    ("csv", ["1", "-2", "10"], [1, -2, 10]), ("tsv", ["1", "0", "1"], [1, 0, 1]), ("csv", ["1", "x", "1"], None),
    ("csv", ["007", "1", "1"], None), ("jsonl", ["1", "2", "1"], None),
    ("jsonl", ["2020-01-01", "1", "a"], None), ("jsonl", [1, 2, 1], None), ("jsonl", [True, False, True], None),
    ("parquet", ["1", "2", "1"], None), ("parquet", [1, 2, 1], None),
], ids=range(10))  # fmt: skip
def test_labels_are_of_the_type_that_the_file_shows(suffix, labels, expected, tmp_path):
    path, texts = tmp_path / f"data.{suffix}", ["1", "2", "3"]
    table = pandas.DataFrame({"text": texts, "label": labels})
    if suffix == "jsonl":
        rows = [json.dumps({"text": text, "label": label}) for text, label in zip(texts, labels)]
        path.write_text("\n".join(rows), encoding="utf-8-sig")
    elif suffix == "parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, sep="\t" if suffix == "tsv" else ",")
    found = read_columns(path, [None], NAMES)
    expected = labels if expected is None else expected
    assert found == [texts, expected] and list(map(type, found[1])) == list(map(type, expected))


@pytest.mark.parametrize("columns", ["question", ("question", "answer")])
def test_a_generator_is_made_of_the_columns_that_are_named(columns):
    table = {"question": ["who sings", "who runs"] * 8, "answer": ["a bird", "a dog"] * 8}
    make = txf.tasks.TextGenerator.from_scratch
    tokenizer = make(table, columns=columns, vocab_size=25, num_layers=1, dim=16, num_heads=2).tokenizer
    pieces = "".join(map(tokenizer.id_to_token, range(4, tokenizer.vocab_size)))
    assert "w" in pieces and ("b" in pieces) == (len(columns) == 2)


def test_a_folder_without_a_task_raises_with_the_missing_file(tmp_path):
    load = txf.tasks.TextClassifier.load
    with pytest.raises(ValueError, match="`folder` must be the folder of a task; received 'nothing'"):
        load("nothing")
    with pytest.raises(ValueError, match="`folder` must hold task.json.* or config.json"):
        load(tmp_path)


def test_an_index_is_made_of_the_column_that_is_named(tmp_path):
    embedder = txf.tasks.TextEmbedder.from_scratch(TEXTS, TEXTS, vocab_size=60, num_layers=1, dim=8, num_heads=2)
    assert embedder.index({"body": TEXTS}, columns="body").texts == TEXTS
