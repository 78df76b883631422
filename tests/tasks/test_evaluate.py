"""Scores of `evaluate` equal scikit-learn, SciPy, sacreBLEU and NumPy; `fit` continues after a `fit` or a break."""

import functools

import keras
import numpy as np
import pandas
import pytest
import sacrebleu
import scipy.stats
import sklearn.metrics
from tasks.test_tasks import DATA, MAKE

import keras_txf as txf
from keras_txf.tasks.labels import MacroF1OfSets


@pytest.fixture(scope="module")
def of():
    """The untrained task of a name, made once and not compiled, as compiling takes seconds."""
    return functools.cache(lambda name: stepwise(MAKE[name]()))


def stepwise(task):
    task._compile = functools.partial(task._compile, run_eagerly=True)
    task.model.run_eagerly = True
    return task


def softmax(logits):
    logits = keras.ops.convert_to_numpy(logits).astype("float64")
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


@pytest.mark.drawn(6)
def test_scores_of_labels_equal_scikit_learn(of):
    task, (texts, labels) = of("TextClassifier"), DATA["TextClassifier"]
    found = task.evaluate(texts, labels, batch_size=5)
    probabilities, numbers = task.predict(texts, return_probabilities=True), [task.labels.index(x) for x in labels]
    np.testing.assert_allclose(found["loss"], sklearn.metrics.log_loss(numbers, probabilities), rtol=1e-5)
    np.testing.assert_allclose(found["accuracy"], sklearn.metrics.accuracy_score(labels, task.predict(texts)))
    expected = sklearn.metrics.f1_score(labels, task.predict(texts), average="macro")
    np.testing.assert_allclose(found["f1"], expected, atol=1e-6)


def test_scores_of_sets_equal_scikit_learn(of):
    """A batch has fewer rows than there are labels; one label has no example and no prediction."""
    task = of("TextClassifier of sets")
    texts, sets = ["fine", "film", "cast", "a"], [["cast", "fine"], [], ["fine"], ["cast"]]
    rows = np.array([[label in one for label in task.labels] for one in sets])
    found, shares = task.evaluate(texts, sets, batch_size=3), task.predict(texts, return_probabilities=True)
    answers = task.predict(texts)
    assert answers == [[label for label, share in zip(task.labels, row) if share > 0.5] for row in shares]
    entropies = -np.where(rows, np.log(shares), np.log1p(-shares.astype("float64")))
    np.testing.assert_allclose(found["loss"], entropies.mean(), rtol=1e-5)
    guesses = np.array([[label in one for label in task.labels] for one in answers])
    expected = sklearn.metrics.f1_score(rows, guesses, average="macro", zero_division=0)
    np.testing.assert_allclose(found["f1"], expected, atol=1e-6)
    logits = np.random.default_rng(0).normal(size=(9, 4)) - [0, 0, 0, 9]
    rows = np.random.default_rng(1).integers(0, 2, (9, 4)) * [1, 1, 1, 0]
    metric = MacroF1OfSets()
    metric.update_state(rows[:5], logits[:5])
    metric.update_state(rows[5:], logits[5:])
    expected = sklearn.metrics.f1_score(rows, logits > 0, average="macro", zero_division=0)
    np.testing.assert_allclose(metric.result(), expected, atol=1e-6)


def test_scores_of_numbers_equal_scipy(of):
    task, texts, numbers = of("TextClassifier of a number"), ["a fine film", "dull", "what a cast"], [2.5, -30.0, 7.0]
    found, answers = task.evaluate(texts, numbers, batch_size=2), task.predict(texts).astype("float64")
    np.testing.assert_allclose(found["loss"], np.mean((answers - numbers) ** 2), rtol=1e-5)
    correlations(found, answers, numbers)


@pytest.mark.drawn(6)
def test_scores_of_pairs_equal_scipy(of, capsys):
    task, (first, second, scores) = of("PairClassifier of a score"), DATA["PairClassifier of a score"]
    found = task.evaluate(first, second, scores, batch_size=5)
    assert capsys.readouterr().out == ""
    answers, shares = task.predict(first, second).astype("float64"), np.array(scores)
    entropies = -shares * np.log(answers) - (1 - shares) * np.log(1 - answers)
    np.testing.assert_allclose(found["loss"], entropies.mean(), rtol=1e-5)
    correlations(found, answers, scores)


def correlations(found, answers, scores):
    np.testing.assert_allclose(found["spearman"], scipy.stats.spearmanr(answers, scores).statistic, atol=1e-4)
    np.testing.assert_allclose(found["pearson"], scipy.stats.pearsonr(answers, scores).statistic, atol=1e-4)


@pytest.mark.slow
def test_scores_of_similarities_equal_scipy(of, tmp_path):
    task, (anchors, positives) = of("TextEmbedder"), DATA["TextEmbedder"]
    scores = [0.0, 2.5, 5.0] * 8
    found = task.evaluate(anchors, positives, scores)
    assert set(found) == {"spearman", "pearson"}
    one, other = (task.encode(column).astype("float64") for column in (anchors, positives))
    cosines = (one * other).sum(-1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    correlations(found, cosines, scores)
    pandas.DataFrame({"a": anchors, "b": positives, "stars": scores}).to_csv(tmp_path / "scores.csv")
    assert task.evaluate(tmp_path / "scores.csv", columns=("a", "b", "stars")) == pytest.approx(found)
    products = one[:6] @ other[:6].T / task.temperature
    accuracy = np.mean(products.argmax(1) == np.arange(6))
    found = task.evaluate(anchors[:6], positives[:6], batch_size=6)
    nearly_equal = len({round(value, 4) for value in products[0]}) < 6  # one text occurs twice
    assert nearly_equal or found["accuracy"] == pytest.approx(accuracy)
    np.testing.assert_allclose(found["loss"], -np.log(np.diag(softmax(products))).mean(), rtol=1e-4)


@pytest.mark.slow
def test_scores_of_answers_equal_sacrebleu(of):
    task, (sources, targets) = of("TextToText"), DATA["TextToText"]
    found = task.evaluate(sources[:6], targets[:6], batch_size=4)
    answers = task.generate(sources[:6], max_new_tokens=128)
    assert found["bleu"] == pytest.approx(sacrebleu.corpus_bleu(answers, [targets[:6]]).score)
    assert found["chrf"] == pytest.approx(sacrebleu.corpus_chrf(answers, [targets[:6]]).score)
    losses, right = [], []
    for source, target in zip(sources[:6], targets[:6]):
        ids = np.array(task.target_tokenizer(target))
        inputs = {"source_ids": [list(np.array(task.tokenizer(source)))], "target_ids": ids[None, :-1]}
        row = softmax(task.model(inputs))
        losses += (-np.log(row[0, np.arange(len(ids) - 1), ids[1:]])).tolist()
        right += (row[0].argmax(-1) == ids[1:]).tolist()
    np.testing.assert_allclose(found["perplexity"], np.exp(np.mean(losses)), rtol=1e-4)
    np.testing.assert_allclose(found["token_accuracy"], np.mean(right), rtol=1e-4)


@pytest.mark.drawn(6)
def test_perplexity_is_that_of_each_token(of):
    task, lines = of("TextGenerator"), ["the cat sat on the mat", "a bird"]
    found = task.evaluate(lines, batch_size=2)
    losses = []
    for line in lines:
        ids = np.array(task.tokenizer(line))
        row = softmax(task.model(ids[None, :-1]))
        losses += (-np.log(row[0, np.arange(len(ids) - 1), ids[1:]])).tolist()
    np.testing.assert_allclose(found["perplexity"], np.exp(np.mean(losses)), rtol=1e-4)
    answers = task.evaluate(["the cat"], ["sat on"])
    assert set(answers) == {"loss", "perplexity"} and answers["perplexity"] != pytest.approx(found["perplexity"])


@pytest.mark.drawn(6)
def test_the_same_tokens_are_hidden_at_each_call(of):
    task, (lines,) = of("MaskedLanguageModel"), DATA["MaskedLanguageModel"]
    found = task.evaluate(lines, batch_size=4)
    assert found == pytest.approx(task.evaluate(lines, batch_size=4)) and found["perplexity"] > 1


@pytest.mark.drawn(8)
@pytest.mark.parametrize("name", MAKE)
def test_a_second_fit_goes_on_from_the_weights_of_the_first(name):
    task, data = stepwise(MAKE[name]()), [column[:4] for column in DATA[name]]
    begin = task.model.get_weights()
    task.fit(*data, epochs=1, learning_rate=0.01, verbose=0)
    first = task.model.get_weights()
    assert max(np.abs(one - other).max() for one, other in zip(begin, first)) > 1e-3
    task.fit(*data, epochs=1, learning_rate=1e-9, verbose=0)
    for one, other in zip(first, task.model.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("name", ["TextClassifier", "PairClassifier", "TokenClassifier"])
def test_labels_that_a_task_does_not_know_raise(name, of):
    task, data = of(name), [column[:6] for column in DATA[name]]
    before = task.model.get_weights()
    new = [["new"] * len(words) for words in data[0]] if name == "TokenClassifier" else [*data[-1][:5], "new"]
    argument = "tags" if name == "TokenClassifier" else "labels"
    where = "0 of the text at index 0" if name == "TokenClassifier" else 5
    words = rf"^`{argument}` must be of the labels \[.*\]; received 'new' at index {where}\.$"
    for call in (task.fit, task.evaluate):
        with pytest.raises(ValueError, match=words):
            call(*data[:-1], new)
    assert all((one == other).all() for one, other in zip(before, task.model.get_weights()))


def train(file, *callbacks):
    keras.utils.set_random_seed(1)
    task, resume = stepwise(MAKE["TextGenerator"]()), txf.training.Resume(file)
    options = dict(epochs=4, batch_size=2, seed=3, callbacks=[resume, *callbacks], verbose=0)
    lines = ["the cat", "a dog", "the mat", "a rug", "the dog sat", "a cat sat", "the rug"]
    task.fit(lines, initial_epoch=resume.epoch, **options)
    assert task.record[-1]["epochs"] == (2 if callbacks else 4)
    return task.model.get_weights()


@pytest.mark.slow
def test_a_training_that_was_cut_off_ends_like_an_unbroken_one(tmp_path):
    expected = train(tmp_path / "unbroken.npz")
    train(
        tmp_path / "broken.npz", keras.callbacks.EarlyStopping("loss", mode="max")
    )  # stops after two epochs, as the loss falls
    found = train(tmp_path / "broken.npz")
    complete = train(tmp_path / "broken.npz")  # reads the weights, without further training
    for one, other, read in zip(expected, found, complete, strict=True):
        np.testing.assert_allclose(other, one, atol=1e-6)
        np.testing.assert_array_equal(other, read)
