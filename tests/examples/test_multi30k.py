"""The Multi30k recipe: its batches, and a training on a few lines that is killed and goes on."""

import os
import re
import signal
import subprocess

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("tf.data feeds TensorFlow", allow_module_level=True)

import multi30k
from script_cases import assert_kept, process_of, run, run_apart

LENGTHS = np.random.default_rng(0).integers(2, 30, (400, 2))
PAIRS = [([4] * (source - 1) + [2], [1] + [5] * (target - 1) + [2]) for source, target in LENGTHS]
ENGLISH = ["a dog runs in the sn@@ ow .", "two cats sleep .", "a man sits ."]
GERMAN = ["ein hund rennt im sch@@ nee .", "zwei katzen schlafen .", "ein mann sitzt ."]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(multi30k, "UPDATE_TOKENS", 600)


PUBLISHED, DIVERSE, AGAIN = (multi30k.VARIANTS[name] for name in ("published", "diverse", "diverse-2"))


@pytest.mark.parametrize("variant", [PUBLISHED, DIVERSE])
def test_batches_hold_each_pair_once(small, variant):
    first, again, second = (multi30k.batches(PAIRS, variant, epoch) for epoch in (0, 0, 1))
    assert first == again != second
    for result in (first, second):
        assert sorted(i for rows in result for i in rows) == list(range(len(PAIRS)))
        assert all(2 * variant.copies * len(rows) * LENGTHS[rows].max() <= 600 for rows in result)
        assert len(result) == len(first)  # so that an epoch of `fit` is a pass
    assert sum(map(tuple, first), ()) != sum(sorted(map(tuple, first), key=lambda rows: LENGTHS[list(rows)].max()), ())


def test_the_stream_begins_where_an_epoch_does(small):
    shorter = [(source, [*target[:-3], 2]) for source, target in PAIRS]
    for versions, variant in (([PAIRS], PUBLISHED), ([PAIRS, shorter, PAIRS], DIVERSE)):
        steps = len(multi30k.batches(multi30k.mixed(versions, variant), variant))
        later = list(multi30k.dataset(versions, variant, steps, 1).take(3))
        assert later
        for (inputs, targets), (other, others) in zip(multi30k.dataset(versions, variant, steps).skip(steps), later):
            for name in inputs:
                np.testing.assert_array_equal(inputs[name], other[name])
            np.testing.assert_array_equal(targets, others)
            assert max(inputs["source_ids"].shape[1], targets.shape[1]) * targets.shape[0] <= 300


@pytest.mark.parametrize(("variant", "thirds"), [(DIVERSE, [1, 1, 1]), (AGAIN, [1, 0.5, 0.5, 1])])
def test_versions_are_drawn_for_each_pair_in_each_epoch(variant, thirds):
    versions = [[(version, i) for i in range(3000)] for version in range(len(thirds))]
    first, again, second = (multi30k.mixed(versions, variant, epoch) for epoch in (0, 0, 1))
    assert first == again != second
    for drawn in (first, second):
        assert [i for _, i in drawn] == list(range(3000))
        np.testing.assert_allclose(np.bincount([version for version, _ in drawn]) / 1000, thirds, atol=0.1)
    assert multi30k.mixed(versions[:1], variant, 5) == versions[0]


def test_copies_are_halves_of_a_batch(small):
    for inputs, targets in multi30k.dataset([PAIRS], DIVERSE, 5, passes=1):
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


@pytest.mark.slow
def test_the_published_size_and_rate_where_diverse_goes_on():
    model = multi30k.build(9712, PUBLISHED, steps=16000)
    assert model.count_params() == 2_568_192  # "2.6M"
    assert model.optimizer.gradient_accumulation_steps == 2
    rate = model.optimizer._learning_rate  # of the batches
    assert float(rate(3999)) == pytest.approx(0.005) and float(rate(15999)) == pytest.approx(0.0025)
    rate = multi30k.build(9712, DIVERSE, steps=11650).optimizer._learning_rate
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
    call = ["multi30k", "--data", lines, "--out", tmp_path, "--updates", 6]
    command, environment = process_of(*call, PYTHONUNBUFFERED="1")
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if "Epoch 4/12" in line:  # of one batch each
                process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    done = run_apart(*call)
    assert done.returncode == 0, done.stderr
    assert "Epoch 3/12" not in done.stdout and "Epoch 12/12" in done.stdout
    assert re.search(r"^BLEU \d+\.\d\d, chrF \d+\.\d\d on test 2016$", done.stdout, re.M)
    assert_kept(tmp_path, done.stdout)
    epochs = [line.split(",")[0] for line in (tmp_path / "log.csv").read_text().splitlines()]
    assert epochs[0] == "epoch" and set(epochs[1:]) == set(map(str, range(12)))  # one may be there twice
    assert len(os.listdir(tmp_path / "checkpoints")) == 10
    assert keras.models.load_model(tmp_path / "multi30k.keras").count_params() > 0


@pytest.fixture
def train(lines, tmp_path):
    def call(out, *arguments):
        return run("multi30k", "--data", lines, "--out", tmp_path / out, "--updates", "1", *arguments)

    return call


@pytest.mark.slow
@pytest.mark.drawn(9)  # four trainings: four minutes
def test_diverse_begins_with_trainings_that_are_complete(train, tmp_path, monkeypatch):
    published, reverse = ("--published", tmp_path / "published"), ("--reverse", tmp_path / "reverse")
    missing = train("reverse", "--variant", "reverse", *published)
    assert missing.returncode == 1 and f"{tmp_path / 'published'} lacks multi30k.keras" in missing.stderr
    assert train("published").returncode == 0
    done = train("reverse", "--variant", "reverse", *published)
    assert_kept(tmp_path / "reverse", done.stdout, log=2)
    assert re.search(r"^BLEU \d+\.\d\d, chrF \d+\.\d\d on the validation captions$", done.stdout, re.M)

    models, seen, build, dataset = [], [], multi30k.build, multi30k.dataset

    def record(versions, *more, **options):  # between the start weights and `fit`
        seen.append((versions, models[-1].get_weights()))
        return dataset(versions, *more, **options)

    monkeypatch.setattr(multi30k, "build", lambda *sizes: models.append(build(*sizes)) or models[-1])
    monkeypatch.setattr(multi30k, "dataset", record)
    done = train("diverse", "--variant", "diverse", *published, *reverse)
    assert_kept(tmp_path / "diverse", done.stdout, log=2)
    assert train("diverse-2", "--variant", "diverse-2", "--diverse", tmp_path / "diverse").returncode == 0
    for (versions, begun), first in ((seen[0], "published"), (seen[2], "diverse")):  # the others: of the validation
        for a, b in zip(keras.models.load_model(tmp_path / first / "multi30k.keras").get_weights(), begun, strict=True):
            np.testing.assert_array_equal(a, b)
        assert any((a != b).any() for a, b in zip(begun, models[first == "diverse"].get_weights()))
        original, forward, *others, backward = versions
        for i, (source, target) in enumerate(original):
            assert backward[i][1] == target and backward[i][0] != source
            for version in (forward, *others):
                assert version[i][0] == source and version[i][1] != target
    assert [len(versions) for versions, _ in seen] == [3, 1, 4, 1]
    assert seen[2][0][1] == seen[0][0][1] and seen[2][0][3] == seen[0][0][2]  # translated once
    for file in ("diverse/published.de", "diverse/reverse.en", "diverse-2/diverse.de"):
        assert len((tmp_path / file).read_text().split("\n")) == len(ENGLISH)
    assert len(list((tmp_path / "diverse-2").glob("*.??"))) == 1
    (tmp_path / "diverse" / "reverse.en").unlink()
    lacking = train("other", "--variant", "diverse-2", "--diverse", tmp_path / "diverse")
    assert lacking.returncode == 1 and "lacks reverse.en" in lacking.stderr
    wrong = train("other", "--variant", "diverse", *published, "--reverse", tmp_path / "published")
    assert wrong.returncode == 1 and "holds a training of --variant published" in wrong.stderr
    (tmp_path / "published" / "vocabulary.txt").write_text("other\nwords")
    other = train("other", "--variant", "reverse", *published)
    assert other.returncode == 1 and "another vocabulary" in other.stderr
    assert not (tmp_path / "other").exists()  # a right call can still take the name
