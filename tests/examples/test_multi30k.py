"""The Multi30k recipe: its batches, and a training on a few lines that is killed and goes on."""

import os
import pathlib
import re
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]

if keras.backend.backend() != "tensorflow":
    pytest.skip("tf.data feeds TensorFlow", allow_module_level=True)

import multi30k  # noqa: E402
from script_cases import assert_kept, run  # noqa: E402

LENGTHS = np.random.default_rng(0).integers(2, 30, (700, 2))
PAIRS = [([4] * (source - 1) + [2], [1] + [5] * (target - 1) + [2]) for source, target in LENGTHS]
ENGLISH = ["a dog runs in the sn@@ ow .", "two cats sleep .", "a man sits ."]
GERMAN = ["ein hund rennt im sch@@ nee .", "zwei katzen schlafen .", "ein mann sitzt ."]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(multi30k, "UPDATE_TOKENS", 600)


PUBLISHED, R_DROP = (multi30k.VARIANTS[name] for name in ("published", "r-drop"))


@pytest.mark.parametrize("variant", [PUBLISHED, R_DROP])
def test_batches_hold_each_pair_once(small, variant):
    first, again, second = (multi30k.batches(PAIRS, variant, epoch) for epoch in (0, 0, 1))
    assert first == again != second
    for result in (first, second):
        assert sorted(i for rows in result for i in rows) == list(range(len(PAIRS)))
        assert all(2 * variant.copies * len(rows) * LENGTHS[rows].max() <= 600 for rows in result)
        assert len(result) == len(first)  # so that an epoch of `fit` is a pass
    assert sum(map(tuple, first), ()) != sum(sorted(map(tuple, first), key=lambda rows: LENGTHS[list(rows)].max()), ())


def test_the_stream_begins_where_an_epoch_does(small):
    epoch = len(multi30k.batches(PAIRS, PUBLISHED))
    later = list(multi30k.dataset(PAIRS, PUBLISHED, 1).take(3))
    for (inputs, targets), (other, others) in zip(multi30k.dataset(PAIRS, PUBLISHED).skip(epoch), later):
        for name in inputs:
            np.testing.assert_array_equal(inputs[name], other[name])
        np.testing.assert_array_equal(targets, others)
        assert max(inputs["source_ids"].shape[1], targets.shape[1]) * targets.shape[0] <= 300


def test_copies_are_halves_of_a_batch(small):
    for inputs, targets in multi30k.dataset(PAIRS, R_DROP, passes=1):
        for ids in (inputs["source_ids"], inputs["target_ids"], targets):
            first, second = np.split(ids.numpy(), 2)
            np.testing.assert_array_equal(first, second)


def test_subwords_there_and_back():
    sentences = [line.split() for line in ENGLISH]
    vocabulary = multi30k.Vocabulary(sentences)
    ((source, target),) = vocabulary.pairs([sentences[0]], [["a", "zebra"]])
    assert source[-1] == multi30k.STOP and vocabulary.detokenize(source) == "a dog runs in the snow ."
    assert target == [multi30k.START, vocabulary.index["a"], multi30k.UNKNOWN, multi30k.STOP]
    np.testing.assert_array_equal(multi30k.padded([[1, 2], [3]]), [[1, 2], [3, 0]])


def test_the_published_size_and_rate():
    model = multi30k.build(9712, PUBLISHED, steps=16000)
    assert model.count_params() == 2_568_192  # "2.6M"
    assert model.optimizer.gradient_accumulation_steps == 2
    rate = model.optimizer._learning_rate  # of the batches
    assert float(rate(3999)) == pytest.approx(0.005) and float(rate(15999)) == pytest.approx(0.0025)


def test_r_drop_goes_on_at_the_rate_where_the_published_training_ends():
    rate = multi30k.build(9712, R_DROP, steps=11650).optimizer._learning_rate
    assert float(rate(400)) == pytest.approx(0.0025)
    assert float(rate(400 + 11251 / 2)) == pytest.approx(0.00125, rel=1e-3) and 0 < float(rate(11650)) < 1e-9


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lines")
    for name in ("train", "valid"):
        (folder / f"{name}.en").write_text("\n".join(ENGLISH) + "\n")
        (folder / f"{name}.de").write_text("\n".join(GERMAN) + "\n")
    (folder / "test.2016.en").write_text("\n".join(ENGLISH) + "\n")
    (folder / multi30k.REFERENCE).write_text("\n".join(GERMAN).replace("@@ ", "") + "\n")
    return folder


@pytest.mark.slow
def test_killed_and_started_again(lines, tmp_path):
    command = [sys.executable, ROOT / "examples" / "multi30k.py", "--data", lines, "--out", tmp_path, "--updates", "6"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if "Epoch 4/12" in line:  # of one batch each
                process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Epoch 3/12" not in done.stdout and "Epoch 12/12" in done.stdout
    assert re.search(r"^BLEU \d+\.\d\d, chrF \d+\.\d\d on test 2016$", done.stdout, re.M)
    assert_kept(tmp_path, done.stdout)
    epochs = [line.split(",")[0] for line in (tmp_path / "log.csv").read_text().splitlines()]
    assert epochs[0] == "epoch" and set(epochs[1:]) == set(map(str, range(12)))  # one may be there twice
    assert len(os.listdir(tmp_path / "checkpoints")) == 10
    assert keras.models.load_model(tmp_path / "multi30k.keras").count_params() > 0


@pytest.mark.slow
def test_r_drop_begins_with_a_training_that_is_complete(lines, tmp_path, monkeypatch):
    def train(out, *arguments):
        return run("multi30k", "--data", lines, "--out", tmp_path / out, "--updates", "1", *arguments)

    missing = train("r-drop", "--variant", "r-drop", "--begin", tmp_path)
    assert missing.returncode == 1 and "lacks multi30k.keras" in missing.stderr
    done = train("published")
    assert done.returncode == 0, done.stderr
    first = keras.models.load_model(tmp_path / "published" / "multi30k.keras").get_weights()
    begun, begin_with = [], multi30k.begin_with

    def record(model, *more):
        begin_with(model, *more)
        begun.extend(model.get_weights())

    monkeypatch.setattr(multi30k, "begin_with", record)
    done = train("r-drop", "--variant", "r-drop", "--begin", tmp_path / "published")
    assert_kept(tmp_path / "r-drop", done.stdout, log=2)
    last = keras.models.load_model(tmp_path / "r-drop" / "multi30k.keras").get_weights()
    for a, b in zip(first, begun, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((a != b).any() for a, b in zip(begun, last, strict=True))
    (tmp_path / "published" / "vocabulary.txt").write_text("other\nwords")
    other = train("r-drop", "--variant", "r-drop", "--begin", tmp_path / "published")
    assert other.returncode == 1 and "another vocabulary" in other.stderr
