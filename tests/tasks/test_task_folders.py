"""The files in the folder of a task, over earlier files too; damaged files raise an error with their name."""

import json
import pathlib
import shutil

import keras
import numpy as np
import pytest
from page_files import BAD, GOOD

import keras_txf as txf

SMALL = dict(vocab_size=120, num_layers=1, dim=16, num_heads=2, dropout=0.0)
TEXT = "A moving film, I laughed twice; I cried once."


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "task"
    txf.tasks.TextClassifier.from_scratch(GOOD + BAD, [1] * 4 + [0] * 4, **SMALL).save(folder)
    return folder


def classifier(bert):
    return txf.tasks.TextClassifier.from_checkpoint(bert, labels=[7, 3], max_length=5)


def probabilities(task):
    return task.predict(TEXT, return_probabilities=True)


@pytest.mark.slow
def test_a_folder_holds_what_was_saved_last(bert, tmp_path):
    task, folder = classifier(bert), tmp_path / "task"
    folder.mkdir()
    for format in ("keras", "huggingface", "huggingface", "keras"):
        (folder / "task.json").exists() and (folder / "mine.txt").write_text("mine")
        weights = [value + 0.01 for value in task.model.get_weights()]
        task.model.set_weights(weights)
        task.save(folder, format=format)
        names = {file.name for file in folder.iterdir()} - {"mine.txt"}
        assert ("model.safetensors" in names, "model.keras" in names) == (format != "keras", format == "keras")
        assert names == {"task.json", "README.md", "model.keras", "checkpoint"} or format != "keras"
        task = type(task).load(folder)
        for one, other in zip(task.model.get_weights(), weights, strict=True):
            np.testing.assert_array_equal(one, other)
    assert (folder / "mine.txt").read_text() == "mine"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TextClassifier", "TextEmbedder", "TokenClassifier", "PairClassifier"])
def test_options_are_the_same_in_the_format_of_hugging_face(name, bert, tmp_path):
    options = {"labels": [7, 3]} if name in ("TextClassifier", "PairClassifier") else {}
    options = {"labels": ["O", "B-a"], "label_all_tokens": True} if name == "TokenClassifier" else options
    task = getattr(txf.tasks, name).from_checkpoint(bert, max_length=7, **options)
    task.record.append({"examples": 3, "epochs": 1, "scores": {}, "script": "train.py"})
    task.save(tmp_path / "task", format="huggingface")
    again = type(task).load(tmp_path / "task")
    assert again.get_config() == task.get_config() and again.record == task.record
    again.save(tmp_path / "again", format="huggingface")
    assert type(task).load(tmp_path / "again").get_config() == task.get_config()


def test_labels_that_another_program_wrote_count(bert, tmp_path):
    classifier(bert).save(tmp_path / "task", format="huggingface")
    path = tmp_path / "task" / "config.json"
    path.write_text(path.read_text().replace('"7"', '"x"'))
    assert sorted(txf.tasks.TextClassifier.load(tmp_path / "task").labels) == ["3", "x"]


def test_an_embedder_reads_the_folder_of_a_classifier_of_hugging_face(bert, tmp_path):
    classifier(bert).save(tmp_path / "task", format="huggingface")
    assert txf.tasks.TextEmbedder.load(tmp_path / "task").encode(TEXT).shape == (32,)


@pytest.mark.parametrize("change, words", [
    ("{", "readable task.json"), ("[]", "readable task.json"), ({"tokenizers": 3}, "a dict as tokenizers; received 3"),
    ({"options": None}, "a dict as options; received None"), ({"record": {}}, "a list as record; received {}"),
    ({"options": {"foo": 1}}, "cannot be read: .*foo"), ({"task": 3}, "must hold a TextClassifier.* of 3"),
    ({"options": {"labels": ["a"]}}, "cannot be read: .*labels"), ({"tokenizers": {"x": 3}}, "cannot be read"),
    ({"tokenizers": {"tokenizer": {"class_name": "X"}}}, "cannot be read: .*tokenizer"),
], ids=range(10))  # fmt: skip
def test_a_damaged_file_raises_by_name(change, words, saved, tmp_path):
    content = json.loads((saved / "task.json").read_text())
    text = change if isinstance(change, str) else json.dumps({**content, **change})
    (tmp_path / "task.json").write_text(text)
    (tmp_path / "model.keras").write_bytes((saved / "model.keras").read_bytes())
    with pytest.raises(ValueError, match=words) as error:
        txf.tasks.TextClassifier.load(tmp_path)
    assert str(tmp_path) in str(error.value) and "\n" not in str(error.value)


def test_a_folder_of_a_task_is_not_a_checkpoint(saved):
    with pytest.raises(ValueError, match="`path` must be a checkpoint with a tokenizer.*tokenizer.json"):
        txf.tasks.TextClassifier.from_checkpoint(saved)


@pytest.mark.parametrize("content", [None, b"", b"damaged"])
def test_a_model_that_is_missing_or_damaged_raises_by_name(content, saved, tmp_path):
    (tmp_path / "task.json").write_bytes((saved / "task.json").read_bytes())
    content is None or (tmp_path / "model.keras").write_bytes(content)
    with pytest.raises(ValueError, match="model.keras") as error:
        txf.tasks.TextClassifier.load(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("folder", [".", "..", "../here"])
def test_the_current_folder_raises(folder, saved, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    task = txf.tasks.TextClassifier.load(saved)
    with pytest.raises(ValueError, match="`folder` must not be the current folder"):
        task.save(folder)
    assert pathlib.Path.cwd() == tmp_path / "here"


@keras.saving.register_keras_serializable(package="mine")
class Doubling(keras.layers.Layer):
    def call(self, inputs):
        return 2 * inputs


def test_a_layer_of_ones_own_must_be_imported_before_its_task_is_loaded(tmp_path):
    task = txf.tasks.TextClassifier.from_scratch(GOOD + BAD, [1] * 4 + [0] * 4, feed_forward=Doubling(), **SMALL)
    task.save(tmp_path / "task")
    loaded = txf.tasks.TextClassifier.load(tmp_path / "task")
    np.testing.assert_array_equal(probabilities(loaded), probabilities(task))
    known = keras.saving.get_custom_objects().pop("mine>Doubling")
    try:
        with pytest.raises(ValueError, match="model.keras' cannot be read before the class 'Doubling'.*import it"):
            txf.tasks.TextClassifier.load(tmp_path / "task")
    finally:
        keras.saving.get_custom_objects()["mine>Doubling"] = known


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TextClassifier", "TextEmbedder"])
def test_a_task_that_was_loaded_still_knows_its_checkpoint(name, bert, tmp_path):
    def ask(task):
        return task.encode(TEXT) if name == "TextEmbedder" else probabilities(task)

    shutil.copytree(bert, tmp_path / "checkpoint")
    options = {"labels": ["no", "yes"]} if name == "TextClassifier" else {}
    task = getattr(txf.tasks, name).from_checkpoint(tmp_path / "checkpoint", **options)
    task.save(tmp_path / "task")
    shutil.rmtree(tmp_path / "checkpoint")
    for _ in range(2):  # the second time from the folder of the first
        again = type(task).load(tmp_path / "task")
        again.save(tmp_path / "exported", format="huggingface")
        again.save(tmp_path / "task")
        exported = type(task).load(tmp_path / "exported")
        np.testing.assert_array_equal(ask(exported), ask(task))
    assert (tmp_path / "exported" / "vocab.txt").is_file()
    if name == "TextClassifier":
        config = json.loads((tmp_path / "exported" / "config.json").read_text())
        assert config["id2label"] == {"0": "no", "1": "yes"} and exported.labels == ["no", "yes"]
