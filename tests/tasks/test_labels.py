"""Labels of each type; an error names a wrong label and its index."""

import json
import shutil

import keras
import numpy as np
import pytest
import sklearn.metrics
import tensorflow as tf

import keras_txf as txf
from keras_txf.tasks.labels import label_list, numbers_of


@pytest.mark.parametrize("labels, values, numbers", [
    ([1, 3], ["3", 1], [1, 0]), ([-1, 1], ["-1", 1], [0, 1]), (["0", "1"], [1, "0", 0], [1, 0, 0]),
    ([False, True], [True, "False"], [1, 0]), (["b", "a"], ["a", "b"], [1, 0]),
])  # fmt: skip
def test_labels_have_numbers(labels, values, numbers):
    assert numbers_of("labels", values, labels) == numbers


@pytest.mark.parametrize("labels, value", [
    ([0, 1], True), ([0, 1], 1.0), ([0, 1], "\u00b2"), ([False, True], 1), (["a", "b"], {"a"}), (["a", "b"], None),
    (["a", "b"], ["a"]),
])  # fmt: skip
def test_other_values_than_labels_raise_with_the_index(labels, value):
    with pytest.raises(ValueError, match="`tags` must be of the labels .* at index 1 of the text at index 7"):
        numbers_of("tags", [labels[0], value], labels, row=7)


def test_labels_may_be_booleans():
    assert label_list(np.array([True, False, True])) == [False, True]
    with pytest.raises(ValueError, match="of one type"):
        label_list([0, 1, True])


LABELS = ["no", "yes", "maybe"]


def probabilities(folder, labels):
    task = txf.tasks.TextClassifier.from_checkpoint(folder, labels=labels)
    return task.predict("A moving film.", return_probabilities=True)


@pytest.fixture(scope="module")
def folder(bert, tmp_path_factory):
    """A checkpoint with the labels "no", "yes" and "maybe"."""
    path = tmp_path_factory.mktemp("labels") / "task"
    txf.tasks.TextClassifier.from_checkpoint(bert, labels=LABELS).save(path, format="huggingface")
    return path


@pytest.fixture(scope="module")
def own(folder):
    return probabilities(folder, None)


def test_labels_in_another_order_keep_the_head_and_other_labels_get_a_new_head(own, folder):
    np.testing.assert_allclose(own[[2, 0, 1]], probabilities(folder, ["maybe", "no", "yes"]), atol=1e-6)
    keras.utils.set_random_seed(1)
    assert np.abs(own - probabilities(folder, ["a", "b", "c"])).max() > 1e-4


def test_labels_of_a_checkpoint_without_names_keep_its_head(own, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "task")
    config = json.loads((folder / "config.json").read_text())
    config |= {"id2label": {str(i): f"LABEL_{i}" for i in range(3)}, "label2id": {}}
    (tmp_path / "task" / "config.json").write_text(json.dumps(config))
    np.testing.assert_array_equal(own, probabilities(tmp_path / "task", ["a", "b", "c"]))


MULTI, NUMBER = "multi_label_classification", "regression"


@pytest.mark.parametrize("problem_type, labels, options, words", [
    (MULTI, [["a"], ["c"]], {}, "`labels` must be of the labels .*'c' at index 0 of the text at index 1"),
    (MULTI, [["a"], "b"], {}, "`labels` must be a list of labels for each text; received 'b' at index 1"),
    (MULTI, [["a"], []], {"class_weight": "balanced"}, "`class_weight` must be None for .*multi_label"),
    (NUMBER, [1.0, float("nan")], {}, "`labels` must hold finite numbers; received nan at index 1"),
    (NUMBER, [1e39, 1.0], {}, r"`labels` must hold finite numbers; received 1e\+39 at index 0"),
    (NUMBER, [1.0, 2.0], {"class_weight": {"a": 2.0}}, "`class_weight` must be None for .*regression"),
])  # fmt: skip
def test_other_values_than_sets_of_labels_and_numbers_raise(problem_type, labels, options, words, tasks_of_problems):
    with pytest.raises(ValueError, match=words):
        tasks_of_problems[problem_type].fit(["x", "y"], labels, verbose=0, **options)


@pytest.fixture(scope="module")
def tasks_of_problems():
    columns = {MULTI: [["a"], ["b", "a"], []], NUMBER: [1, 2.5, -3]}
    make = txf.tasks.TextClassifier.from_scratch
    small = dict(vocab_size=30, num_layers=1, dim=8, num_heads=2)
    return {kind: make(["x", "y", "z"], labels, problem_type=kind, **small) for kind, labels in columns.items()}


@pytest.mark.slow
def test_thresholds_of_labels_decide_in_predictions_scores_files_and_exports(tasks_of_problems, tmp_path):
    multi = tasks_of_problems[MULTI]
    task = txf.tasks.TextClassifier(multi.model, multi.tokenizer, multi.labels, problem_type=MULTI, thresholds=0.5)
    texts, labels = ["x", "y", "z", "x y"], [["a"], ["b", "a"], [], ["b"]]
    assert task.predict(texts) == multi.predict(texts) and multi.thresholds is None and task.thresholds == [0.5, 0.5]
    assert task.evaluate(texts, labels)["f1"] == pytest.approx(multi.evaluate(texts, labels)["f1"])
    shares = task.predict(texts, return_probabilities=True)
    task.thresholds = [float(np.median(shares[:, 0])), float(shares[:, 1].max() + 1) / 2]
    found = task.predict(texts)
    assert found == [["a"] * bool(share > task.thresholds[0]) for share in shares[:, 0]] and 0 < found.count(["a"]) < 4
    targets, predicted = (np.array([[one in row for one in "ab"] for row in rows]) for rows in (labels, found))
    expected = sklearn.metrics.f1_score(targets, predicted, average="macro", zero_division=0)
    assert task.evaluate(texts, labels)["f1"] == pytest.approx(expected)
    task.save(tmp_path / "task")
    assert txf.tasks.TextClassifier.load(tmp_path / "task").thresholds == task.thresholds
    task.export(tmp_path / "served")
    served = tf.saved_model.load(str(tmp_path / "served"))
    rows = served.serve(tf.constant(texts))["labels"].numpy()
    assert [[one.decode() for one in row if one] for row in rows] == found


@pytest.mark.parametrize("kind, thresholds, words", [
    (NUMBER, 0.5, "`thresholds` must be None for .*regression"),
    (MULTI, [0.5], "`thresholds` must be a number, or a list of 2"),
    (MULTI, [0.5, 1.0], "`thresholds` must be between 0 and 1; received 1.0 at index 1"),
    (MULTI, "high", "`thresholds` must be a number, or a list of 2"),
])  # fmt: skip
def test_other_thresholds_raise_value_errors(kind, thresholds, words, tasks_of_problems):
    with pytest.raises(ValueError, match=words):
        tasks_of_problems[kind].thresholds = thresholds


def test_a_problem_refuses_what_belongs_to_another(tasks_of_problems, bert):
    task, cls = tasks_of_problems[NUMBER], txf.tasks.TextClassifier
    with pytest.raises(ValueError, match="`return_probabilities` must be False"):
        task.predict("x", return_probabilities=True)
    with pytest.raises(ValueError, match="`labels` must be None for `problem_type=.regression"):
        cls(task.model, task.tokenizer, ["a", "b"], problem_type=NUMBER)
    with pytest.raises(ValueError, match="`problem_type` must be one of .*received 'ranking'"):
        cls.from_checkpoint(bert, labels=["a", "b"], problem_type="ranking")


@pytest.mark.parametrize("kind, labels", [(MULTI, LABELS), (NUMBER, None)])
def test_a_folder_says_its_problem(kind, labels, bert, tmp_path):
    cls = txf.tasks.TextClassifier
    cls.from_checkpoint(bert, labels=labels, problem_type=kind).save(tmp_path / "task", format="huggingface")
    path = tmp_path / "task" / "config.json"
    assert json.loads(path.read_text())["problem_type"] == kind
    found = cls.load(tmp_path / "task")
    assert (found.problem_type, found.labels) == (kind, labels)
    if kind == MULTI:
        with pytest.raises(ValueError, match="`labels` must be given: the checkpoint gives a text several labels"):
            txf.tasks.PairClassifier.from_checkpoint(tmp_path / "task")
    found = cls.from_checkpoint(tmp_path / "task", labels=["a", "b"], problem_type="single_label_classification")
    assert isinstance(found.predict("x"), str)
