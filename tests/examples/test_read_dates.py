"""examples/read_dates.py: its data, what it refuses to read, and the script from start to end."""

import datetime
import os
import unicodedata

import dates
import numpy as np
import pytest
import read_dates
from script_cases import assert_kept, run, run_apart


@pytest.fixture(scope="module")
def pairs():
    return dates.make_pairs(4000, read_dates.LONGEST, seed=3)


def test_no_text_and_no_date_is_both_in_training_and_held_out(pairs):
    training, held_out = pairs
    assert len(training) + len(held_out) == 4000 and 320 < len(held_out) < 480
    for part in (1, 2):
        assert not {pair[part] for pair in training} & {pair[part] for pair in held_out}


@pytest.mark.slow
def test_no_text_of_any_form_means_two_dates_and_all_have_year_and_day_in_figures():
    meanings = {}
    for form in dates.all_forms():
        for day in range(366):
            date = datetime.date(2000, 1, 1) + datetime.timedelta(day)
            text = dates.write(date, *form)
            assert meanings.setdefault(text, date) == date, (form, text)
            assert {date.year, date.day} <= dates.figures(text), (form, text)


def test_all_languages_and_many_scripts_are_in_training_and_held_out(pairs):
    assert len({language.split("_")[0] for language in dates.LANGUAGES}) == 72
    training, held_out = pairs
    assert {language for language, *_ in training} == set(dates.LANGUAGES)
    assert len({language for language, *_ in held_out}) > 60  # of 400, so that chance may leave one out
    assert {unicodedata.name(character).split()[0] for _, text, _ in training for character in text} > set(
        "LATIN CYRILLIC GREEK ARMENIAN GEORGIAN HEBREW ARABIC ARABIC-INDIC EXTENDED DEVANAGARI BENGALI GURMUKHI "
        "GUJARATI TAMIL TELUGU KANNADA MALAYALAM SINHALA THAI LAO KHMER MYANMAR ETHIOPIC HANGUL CJK".split()
    )


def test_pairs_are_as_babel_writes_them_within_bounds_and_the_same_for_the_same_seed(pairs):
    assert dates.make_pairs(4000, read_dates.LONGEST, seed=3) == pairs
    assert dates.make_pairs(30, read_dates.LONGEST, seed=4) != dates.make_pairs(30, read_dates.LONGEST, seed=3)
    everything = sum(pairs, [])
    assert max(len(text) for _, text, _ in everything) <= read_dates.LONGEST
    assert {dates.FIRST.year // 100, dates.LAST.year // 100} == {date.year // 100 for *_, date in everything}
    assert dates.write(datetime.date(2018, 3, 3), "fr", "EEEE d MMMM y") == "samedi 3 mars 2018"
    assert dates.write(datetime.date(2018, 3, 3), "bn", "d MMMM, y", "০") == "৩ মার্চ ২০১৮"


def test_a_text_with_two_meanings_is_refused(monkeypatch):
    monkeypatch.setattr(dates, "is_ambiguous", lambda text: False)
    monkeypatch.setattr(dates, "LANGUAGES", ["en", "es"])
    monkeypatch.setattr(dates, "FORMATS", ["yMd"])
    monkeypatch.setattr(dates, "LAST", datetime.date(1900, 12, 31))
    with pytest.raises(ValueError, match="means .* and 1900-.*; take its pattern out"):
        dates.make_pairs(1000, read_dates.LONGEST, seed=3)


@pytest.mark.parametrize("text, cleaned", [
    ("SAMEDI,  3 Mars\u202f2018", "samedi 3 mars 2018"), ("March 3rd,2018", "march 3 2018"),
    ("1er août 2018", "1 août 2018"), ("3\u200f/4\u200f/2018", "3 /4 /2018"),
    ("２０１８年３月３日", "2018年3月3日"),
    ("3 marz\u0327 2018", "3 marz\u0327 2018"),
])  # fmt: skip
def test_clean(text, cleaned):
    assert dates.clean(text) == cleaned


class Oracle:
    """A model that gives one answer, its digits with the probability asked for."""

    def __init__(self, answer, probability=0.99):
        self.ids = np.array([[read_dates.ANSWER.index(character) for character in answer]])
        others = len(read_dates.ANSWER) - 1
        self.logit = np.log(probability * others / (1 - probability))

    def generate(self, source_ids, max_new_tokens):
        return self.ids[:, :max_new_tokens]

    def __call__(self, inputs):
        assert inputs["source_ids"].shape == (1, read_dates.LONGEST)
        return (np.eye(len(read_dates.ANSWER))[self.ids] * self.logit).astype("float32")


CHARACTERS = "".join(sorted(set("samedi 3 mars 2018 le hello/123456789"))) + "०१२३४५६७८९"


def test_reads():
    for text in ("Samedi 3 mars 2018", "3rd Mars, 2018", "३ mars २०१८"):
        assert read_dates.read_date(text, Oracle("2018-03-03"), CHARACTERS) == datetime.date(2018, 3, 3)


@pytest.mark.parametrize("text, answer, probability, reason", [
    ("", "2018-03-03", 0.99, "never seen an empty text"),
    ("3 марта 2018", "2018-03-03", 0.99, "never seen а м р т"),
    ("samedi " * 5, "2018-03-03", 0.99, "34 characters are more than the 32"),
    ("3/4/2018", "2018-04-03", 0.99, "April or in March"),
    ("31 mars 2018", "2018-02-31", 0.99, "the model answered '2018-02-31', which is no date"),
    ("3 mars 2018", "2081-03-03", 0.99, "2081-03-03 has another year or day"),
    ("3 mars 2018", "2018-03-08", 0.99, "2018-03-08 has another year or day"),
    ("3 mars 2018", "2018-03-03", 0.90, "2018-03-03 has a character of 90% probability"),
])  # fmt: skip
def test_refuses(text, answer, probability, reason):
    with pytest.raises(ValueError, match=reason):
        read_dates.read_date(text, Oracle(answer, probability), CHARACTERS)


def test_encode_and_read_are_inverse():
    inputs, targets = read_dates.encode([("fr", "samedi ? 3", datetime.date(2018, 3, 3))], CHARACTERS)
    assert "".join(read_dates.ANSWER[i] for i in targets[0]) == "2018-03-03"
    assert "".join(read_dates.ANSWER[i] for i in inputs["target_ids"][0]) == ">2018-03-0"
    ids = inputs["source_ids"][0]
    assert "".join(CHARACTERS[i - 1] for i in ids if i) == "samedi  3"  # the question mark is unknown
    assert len(ids) == read_dates.LONGEST and ids[8] and not ids[9:].any()


@pytest.mark.slow
def test_the_script_trains_first_then_reads_with_the_saved_model(tmp_path, shallow):
    folder = tmp_path / "new" / "folder"
    first = run("read_dates", "--out", folder, "--pairs", 600, "--epochs", 2, "samedi 3 mars 2018")
    assert f"training a model for {folder}" in first.stdout
    assert "val_token_accuracy" in first.stdout and "Weakest languages: " in first.stdout
    assert first.stdout.count(" right\n") + first.stdout.count(" wrong: ") == 10
    assert "Exact match on " in first.stdout.splitlines()[-1]
    assert_kept(folder, first.stdout, log=2)
    names = ["attention.png", "characters.txt", "dates.keras", "log.csv", "results.txt", "training.png"]
    assert sorted(os.listdir(folder)) == names

    # So little training makes no reader: the same refusal, and the same model, in a fresh process.
    written = (folder / "dates.keras").stat().st_mtime_ns
    second = run_apart("read_dates", "--out", folder, "samedi 3 mars 2018")
    assert second.stdout == "" and (folder / "dates.keras").stat().st_mtime_ns == written
    for done in (first, second):
        assert done.returncode == 1 and "Traceback" not in done.stderr
        assert done.stderr.splitlines()[-1].startswith("error: cannot read 'samedi 3 mars 2018': ")
    assert first.stderr.splitlines()[-1] == second.stderr.splitlines()[-1]
