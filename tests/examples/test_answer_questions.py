"""examples/answer_questions.py: its stories, what it refuses to answer, and the script from start to end."""

import functools
import os
import re

import answer_questions
import pytest
import script_cases
import stories


def solve(story, question):
    """The answer by another way than `stories.answer`: sentence after sentence, each by its words."""
    inside, holder, place = {}, {}, {}
    for sentence in story.rstrip(" .").split(" . "):
        match sentence.split():
            case [person, "went", "to", "the", where]:
                place[person] = where
            case [person, "took", "the", item]:
                assert item not in holder
                holder[item] = person
            case ["the", thing, "is", "in", "the", container]:
                assert thing not in inside
                inside[thing] = container
            case _:
                raise AssertionError(sentence)
    *_, subject, mark = question.split()
    assert mark == "?"
    if subject == "everyone":
        return " ".join(f"{person} went to the {place[person]} ." for person in sorted(place)), len(place)
    asked, found = subject, []
    while subject not in place:
        known = subject in inside
        found.append(
            f"the {subject} is in the {inside[subject]} ." if known else f"{holder[subject]} took the {subject} ."
        )
        subject = inside[subject] if known else holder[subject]
    found.append(f"{subject} went to the {place[subject]} . so in the {place[subject]}")
    return " ".join([f"{asked} :", *found]), len(found)


def test_answers_follow_from_their_stories():
    examples = stories.make_stories(2000, seed=3)
    for story, question, answer, facts in examples:
        assert solve(story, question) == (answer, facts)
        assert 3 <= story.count(".") <= 13
        assert set(f"{story} {question} {answer}".split()) <= set(stories.WORDS)
    assert {facts for *_, facts in examples} == {1, 2, 3, 4, 5}


@pytest.mark.slow
def test_no_example_is_longer_than_the_rows_of_a_batch():
    """`padded_batch` raises where one is."""
    tokenizer = answer_questions.make_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *stories.WORDS])
    examples = stories.make_stories(2000, seed=3)
    batches = list(answer_questions.make_batches(examples, tokenizer).as_numpy_iterator())
    assert sum(len(targets) for inputs, targets in batches) == 2000
    assert not any(
        (ids == tokenizer.token_to_id("[UNK]")).any() for inputs, targets in batches for ids in inputs.values()
    )


def test_the_last_place_counts_and_not_the_last_of_anyones():
    """In many stories: so neither is a rule that would do."""
    examples = [example for example in stories.make_stories(1000, seed=3) if "so" in example[2].split()]
    moves = [re.findall(r"(\w+) went to the (\w+)", story) for story, *_ in examples]
    places = [answer.split()[-1] for _, _, answer, _ in examples]
    assert sum(went[-1][1] != place for went, place in zip(moves, places)) > 300
    people = [[person for person, place in went] for went in moves]
    assert sum(len(set(names)) < len(names) for names in people) > 300


def test_held_out_stories_are_not_trained_on_and_a_seed_repeats_them():
    held_out = stories.make_stories(300, seed=0)
    taboo = {story for story, *_ in held_out[:200]}
    again = stories.make_stories(300, seed=0, taboo=taboo)  # which alone would begin with the same 200
    assert again[:100] == held_out[200:]
    assert not taboo & {story for story, *_ in again}
    assert stories.make_stories(300, seed=0) == held_out
    assert len({story for story, *_ in held_out}) == 300


@pytest.mark.parametrize("text, reason", [
    ("Where is Zoe?", "know no zoe; they know"),
    ("Ben went to the hall.", "end with a question such as"),
    ("Ben went to the hall. Where is?", "end with a question such as"),
    ("Ben went to the hall. Where is Anna?", "says nothing of anna"),
    ("Where is everyone?", "end with a question such as"),
    ("", "end with a question such as"),
])  # fmt: skip
def test_refuses(text, reason):
    with pytest.raises(ValueError, match=reason):
        answer_questions.answer_text(text, model=None, tokenizer=None)


@pytest.mark.slow
def test_the_script_trains_first_then_answers_with_the_saved_model(tmp_path, shallow, monkeypatch):
    monkeypatch.setattr(answer_questions, "EPOCHS", 2)  # each is followed by all of the validation
    run = functools.partial(script_cases.run, "answer_questions", "--out", tmp_path)
    question = "The key is in the box. Ben took the box. Ben went to the hall. Where is the key?"
    first = run("--stories", "200", "--steps", "10", "--dim", "16", question)
    assert first.returncode == 0, first.stderr
    assert len(re.findall(r"\((right|wrong: .*)\)$", first.stdout, re.M)) == 10
    assert [f"{facts} of the story's facts: " in first.stdout for facts in (1, 2, 3, 4, 5)] == [True] * 5
    *_, exact, answer = first.stdout.splitlines()
    assert 0 <= float(re.fullmatch(r"Exact answers on 1000 fresh stories: (\S+)%", exact)[1]) < 50
    assert sorted(os.listdir(tmp_path)) == [
        "answers.keras", "attention.png", "log.csv", "results.txt", "training.png", "vocabulary.txt",
    ]  # fmt: skip
    script_cases.assert_kept(tmp_path, first.stdout, log=2)
    assert run(question).stdout == answer + "\n"
    useless = run("--steps", "7", question)
    assert useless.returncode == 2 and "--steps: is for training" in useless.stderr
    refused = run("Where is Zoe?")
    assert refused.returncode == 1 and "error: cannot answer 'Where is Zoe?': " in refused.stderr.splitlines()[-1]
