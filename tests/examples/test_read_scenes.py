"""examples/read_scenes.py: its scenes and answers, what it trains on, and the script from start to end."""

import re

import numpy as np
import pytest
import script_cases

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

import classify_digits
import read_scenes
import scenes


def parts(scene):
    """The four quarters of a scene, (12, 12) each, by slices."""
    return [scene[top : top + 12, left : left + 12, 0] for top in (0, 12) for left in (0, 12)]


def test_each_quarter_has_its_digit_of_the_split_somewhere():
    (images, labels), _ = classify_digits.split(seed=3)
    made, digits = scenes.make_scenes(images, labels, 30, seed=5)
    assert made.shape == (30, 24, 24, 1) and set(np.sum(digits < 10, axis=1)) == {1, 2, 3, 4}
    for scene, row in zip(made, digits):
        for part, digit in zip(parts(scene), row, strict=True):
            windows = [part[y : y + 8, x : x + 8].tobytes() for y in range(5) for x in range(5)]
            found = {int(label) for image, label in zip(images, labels) if image.tobytes() in windows}
            assert found == ({digit} if digit < 10 else set()) and (digit < 10 or (part == -1).all())
    np.testing.assert_array_equal(scenes.quarters(made)[..., 0], [part for scene in made for part in parts(scene)])
    np.testing.assert_array_equal(scenes.make_scenes(images, labels, 30, seed=5)[0], made)


@pytest.mark.parametrize("question, answer", [
    ("what is at top left ?", "7 ."), ("what is at top right ?", "nothing ."), ("what is at bottom left ?", "3 ."),
    ("what is at bottom right ?", "7 ."), ("how many 7 ?", "2 ."), ("how many 5 ?", "0 ."),
    ("which is the largest ?", "7 ."), ("read ?", "7 3 7 ."),
])  # fmt: skip
def test_answers_follow_from_the_digits(question, answer):
    assert scenes.answer(question, np.array([7, 10, 3, 7])) == answer


def test_questions_are_of_all_kinds_and_known_words():
    digits = np.tile([7, 10, 3, 7], (200, 1))
    asked = scenes.ask(digits, seed=1)
    assert {next(kind for kind in scenes.KINDS if text.startswith(kind)) for text in asked} == set(scenes.KINDS)
    assert {f"what is at {place} ?" for place in scenes.PLACES} < set(asked)
    answers = [scenes.answer(*pair) for pair in zip(asked, digits)]
    assert set(" ".join(asked + answers).split()) <= set(scenes.WORDS)
    assert max(len(f"{text} {answer}".split()) for text, answer in zip(asked, answers)) <= read_scenes.LONGEST


@pytest.mark.parametrize("placeholders", [False, True])
def test_only_answers_are_targets(placeholders):
    [ids], [targets] = read_scenes.encode(["how many 7 ?"], np.array([[7, 10, 3, 7]]), placeholders)
    count = 36 if placeholders else 0
    words = [read_scenes.WORDS[i] for i in ids]
    assert words == ["how", "many", "7", "?", *["[IMAGE]"] * count, "2", ".", *["[PAD]"] * 5]
    expected = ["[PAD]"] * (3 + count) + ["2", "."] + ["[PAD]"] * 6
    assert [read_scenes.WORDS[i] for i in targets] == expected


@pytest.mark.slow
@pytest.mark.parametrize("placeholders", [False, True])
def test_the_script_trains_compares_and_draws(placeholders, tmp_path, uncompiled):
    small = ["--scenes", 64, "--tests", 9, "--epochs", 1, "--dim", 8, *["--placeholders"] * placeholders]
    printed = script_cases.output("read_scenes", *small, "--out", tmp_path)
    shares = re.findall(r"([\d.]+)% of 9 answers exact \(what is at ", printed)
    assert len(shares) == 3 and all(0 <= float(share) <= 100 for share in shares)
    script_cases.assert_kept(tmp_path, printed, scenes=1, blind=1, quarters=1)
    assert (tmp_path / "scenes.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "scenes.keras").exists()
