"""QuestionAnswerer: answers are spans of contexts, the same with windows and after a round trip through a folder."""

import itertools
import json

import keras
import numpy as np
import pandas
import pytest

import keras_txf as txf
from keras_txf.tasks.pairs import AnswerWindows, Window, best_spans, starts, targets, tokens_of

NAMES = ["Ada", "Bo", "Cem", "Dee"]
PAIRS = [(one, other) for one in NAMES for other in NAMES if one != other]
QUESTIONS = ["Who sings?"] * len(PAIRS) + ["Who runs?"] * len(PAIRS)
CONTEXTS = [f"{one} sings, and {other} runs." for one, other in PAIRS] * 2
ANSWERS = [one for one, _ in PAIRS] + [other for _, other in PAIRS]
SMALL = dict(vocab_size=90, num_layers=1, dim=16, num_heads=2, dropout=0.0)
QuestionAnswerer = txf.tasks.QuestionAnswerer


def from_scratch(**options):
    return QuestionAnswerer.from_scratch(QUESTIONS, CONTEXTS, **SMALL, **options)


@pytest.fixture(scope="module")
def task():
    """An untrained task with random answers."""
    return from_scratch(max_length=40)


@pytest.mark.slow
def test_answers_are_parts_of_their_contexts(task):
    found = task.predict(QUESTIONS, CONTEXTS)
    assert all(one["text"] == context[one["start"] : one["end"]] != "" for one, context in zip(found, CONTEXTS))
    assert task.predict(QUESTIONS[0], CONTEXTS[0]) == pytest.approx(found[0])
    best = task.predict(QUESTIONS[0], CONTEXTS[0], k=4)
    assert best[0] == pytest.approx(found[0]) and len({(one["start"], one["end"]) for one in best}) == 4
    scores = [one["score"] for one in best]
    assert scores == sorted(scores, reverse=True) and 0 < scores[-1] and sum(scores) < 1
    answers = [one["text"] for one in found[:6]] + [context.split(".")[0] for context in CONTEXTS[6:]]
    scores = task.evaluate(QUESTIONS, CONTEXTS, answers)
    true = [[answer] for answer in answers]
    assert scores.items() >= txf.training.answer_scores(true, [one["text"] for one in found]).items()
    assert scores["exact_match"] >= 0.25 and scores["loss"] > 0


@pytest.mark.slow
def test_it_learns_the_positions_of_answers_and_no_answer(tmp_path):
    task = from_scratch(max_length=40, null_threshold=0.0)
    questions, contexts = QUESTIONS + ["Who sleeps?"] * len(PAIRS), CONTEXTS + CONTEXTS[: len(PAIRS)]
    answers = ANSWERS + [""] * len(PAIRS)
    held = questions[::5], contexts[::5], answers[::5]
    options = dict(epochs=30, batch_size=6, learning_rate=0.01, verbose=0)
    history = task.fit(questions, contexts, answers, validation_data=held, **options).history
    assert history["val_f1"][-1] > 0.9 > history["val_f1"][0]
    assert task.evaluate(questions, contexts, answers)["exact_match"] > 0.9
    found = task.predict(questions[-1], contexts[-1])
    assert found == {"text": "", "start": 0, "end": 0, "score": pytest.approx(1, abs=0.3)}
    strict = QuestionAnswerer(task.model, task.tokenizer, max_length=40, null_threshold=100.0)
    assert strict.predict(questions[-1], contexts[-1])["text"] != ""
    task.save(tmp_path / "task")
    again = QuestionAnswerer.load(tmp_path / "task")
    for ours, theirs in zip(*(one.predict(QUESTIONS[:3], CONTEXTS[:3]) for one in (task, again))):
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert again.get_config() == task.get_config() and again.record == task.record


def test_rows_hold_question_and_context(task):
    windows = task._windows()
    rows, found, [offsets] = windows.rows([QUESTIONS[0]], [CONTEXTS[0]])
    words = [task.tokenizer.id_to_token(int(id)) for id in rows[0]["token_ids"]]
    assert words[:5] == ["[CLS]", "who", "sings", "?", "[SEP]"] and words[-1] == "[SEP]"
    assert rows[0]["token_type_ids"].tolist() == [0] * 5 + [1] * (len(words) - 5)
    assert found == [Window(0, 0, len(offsets), 5)]
    # The rows equal `sentence_pairs`, which docs/how_to/text.md suggests for a model alone.
    pairs = txf.text.sentence_pairs(([QUESTIONS[0]], [CONTEXTS[0]]), task.tokenizer, token_types=True)
    [expected] = pairs.as_numpy_iterator()
    assert {name: row.tolist() for name, row in rows[0].items()} == {
        name: row.tolist() for name, row in expected.items()
    }


@pytest.mark.parametrize("length, room, overlap", [(3, 5, 2), (5, 5, 2), (6, 5, 2), (17, 5, 2), (17, 5, 4), (9, 4, 0)])
def test_windows_hold_all_tokens_and_overlap(length, room, overlap):
    parts = [range(length)[first : first + room] for first in starts(length, room, overlap)]
    assert sorted(set(itertools.chain(*parts))) == list(range(length))
    assert all(len({*one} & {*other}) == overlap for one, other in zip(parts, parts[1:]))
    assert all(len(part) == room for part in parts[:-1])
    assert len(parts) == 1 or parts[-1][-1] not in parts[-2]  # no superfluous window


def test_a_long_question_leaves_room_for_the_context():
    tokenizer = txf.text.ByteTokenizer(special_tokens=("<pad>", "<s>", "</s>"), start="<s>", end="</s>")
    rows, found, _ = AnswerWindows(tokenizer, 13, 2, ["</s>"], False).rows(["who was it"], ["it was Ada"])
    assert [window.count for window in found] == [5, 5, 4] and {window.before for window in found} == {7}
    assert all(len(row) <= 13 for row in rows)
    assert bytes(int(id) - 3 for id in rows[0] if id > 2) == b"who wit wa"


def test_targets_are_the_tokens_of_the_answer():
    tokenizer = txf.text.ByteTokenizer(special_tokens=("<pad>", "<s>", "</s>"), start="<s>", end="</s>")
    context = "née Ada"
    rows, found, [offsets] = AnswerWindows(tokenizer, 12, 2, ["</s>"], False).rows(["who"], [context])
    span = tokens_of(offsets, 1, 3)  # two characters, three bytes
    assert span == (1, 3)
    inside = 0
    for row, window in zip(rows, found):
        positions = {name: int(position) for name, position in targets(window, span).items()}
        if positions["start_logits"]:
            part = row[positions["start_logits"] : positions["end_logits"] + 1]
            assert bytes(int(id) - 3 for id in part).decode() == "ée"
            inside += 1
        else:
            assert positions == {"start_logits": 0, "end_logits": 0}
    assert 0 < inside < len(found)
    assert targets(found[0], None) == {"start_logits": 0, "end_logits": 0}


def slow_spans(windows, logits, context, offsets, longest):
    """All spans of all windows, one by one: characters without blanks -> the largest score."""
    scores = {}
    for window, rows in zip(windows, logits):
        for first in range(window.count):
            for last in range(first, min(first + longest, window.count)):
                tokens = [window.first + first, window.first + last]
                start, end = (int(offsets[token, side]) for token, side in zip(tokens, (0, 1)))
                if all(context[slice(*offsets[token])].strip() for token in tokens):
                    score = float(rows[window.before + first, 0]) + float(rows[window.before + last, 1])
                    scores[(*tokens, start, end)] = max(score, scores.get((*tokens, start, end), -np.inf))
    return scores


@pytest.mark.parametrize("null_threshold", [None, 0.0, 3.0])
def test_the_best_spans_equal_a_slow_search(null_threshold):
    rng = np.random.default_rng(4)
    context = "ab  cd ef\ngh ij"
    offsets = np.array([(0, 1), (1, 2), (2, 4), (4, 6), (6, 9), (9, 10), (10, 12), (12, 15)])
    windows = [Window(0, 0, 5, 3), Window(0, 3, 5, 3)]
    for _ in range(20):
        logits = rng.normal(size=(2, 9, 2)).astype("float32") * 2
        expected = slow_spans(windows, logits, context, offsets, 3)
        null = min(float(rows[0].sum()) for rows in logits)
        total = sum(np.exp(score) for score in expected.values()) + (null_threshold is not None) * np.exp(null)
        ranked = sorted(((score, context[key[2] : key[3]].strip()) for key, score in expected.items()), reverse=True)
        if null_threshold is not None:
            above = [one for one in ranked if one[0] >= null - null_threshold]
            ranked = [*above, (null, ""), *ranked[len(above) :]]
        found = best_spans(windows, logits, context, offsets, 3, 6, null_threshold)
        assert [one["text"] for one in found] == [text for _, text in ranked[:6]]
        assert all(context[one["start"] : one["end"]] == one["text"] == one["text"].strip() for one in found)
        np.testing.assert_allclose([one["score"] for one in found], [np.exp(s) / total for s, _ in ranked[:6]], 1e-5)


def test_a_context_in_windows_answers_as_in_one_piece(task):
    """Logits depend on a single token, without its neighbours."""
    tokenizer = task.tokenizer
    ids = keras.Input([None], dtype="int32", name="token_ids")
    logits = keras.layers.Embedding(tokenizer.vocab_size, 2, embeddings_initializer="random_normal")(ids)
    model = keras.Model(ids, {"start_logits": logits[..., 0], "end_logits": logits[..., 1]})
    whole = QuestionAnswerer(model, tokenizer, None, 120, max_answer_length=3)
    parts = QuestionAnswerer(model, tokenizer, None, 24, 6, 3)
    context = " ".join(CONTEXTS[:5])
    assert len(parts._windows().rows(["Who sings?"], [context])[0]) > 2
    expected, found = (task.predict("Who sings?", context, k=3) for task in (whole, parts))
    assert [one["text"] for one in found] == [one["text"] for one in expected]
    assert [one["start"] for one in found] == [one["start"] for one in expected]


def squad(impossible=False):
    articles = []
    for question, context, answer in zip(QUESTIONS, CONTEXTS, ANSWERS):
        answers = [{"text": answer, "answer_start": context.index(answer)}]
        item = {"id": "1", "question": question, "answers": [] if impossible else answers}
        articles.append({"title": "t", "paragraphs": [{"context": context, "qas": [item]}]})
    return {"version": "1.1", "data": articles}


def test_files_columns_and_forms_of_answers_are_the_same(task, tmp_path):
    def values(*data):
        return task._checked(task._read(data[0], [*data[1:], None, None][:2], None))

    expected = [QUESTIONS, CONTEXTS, [[(one, text.index(one))] for one, text in zip(ANSWERS, CONTEXTS)]]
    (tmp_path / "data.json").write_text(json.dumps(squad()))
    dicts = [{"text": [one], "answer_start": [text.index(one)]} for one, text in zip(ANSWERS, CONTEXTS)]
    frame = pandas.DataFrame({"question": QUESTIONS, "context": CONTEXTS, "answers": dicts})
    frame.to_parquet(tmp_path / "data.parquet")
    for data in (frame, tmp_path / "data.parquet", tmp_path / "data.json"):
        assert values(data) == expected
    for answers in (ANSWERS, dicts):
        assert values(QUESTIONS, CONTEXTS, answers) == expected
    assert values(QUESTIONS, CONTEXTS, [[one, one] for one in ANSWERS])[2] == [one * 2 for one in expected[2]]
    scratch = QuestionAnswerer.from_scratch(tmp_path / "data.json", **SMALL)
    assert scratch.tokenizer.get_config()["vocabulary"] == task.tokenizer.get_config()["vocabulary"]


def test_the_place_of_an_answer_counts(task):
    values = task._checked([["Who?"], ["Ada saw Ada"], [{"text": ["Ada"], "answer_start": [8]}]])
    [(row, positions)] = task._examples(values)
    assert positions["start_logits"] == len(row["token_ids"]) - 2
    assert task._checked([["Who?"], ["Ada saw Ada"], ["Ada"]])[2] == [[("Ada", 0)]]


@pytest.mark.parametrize("call, parts", [
    (lambda task: task.fit(["a"], ["b"], [""]), ["`answers`", "null_threshold", "index 0"]),
    (lambda task: task.fit(["a"], ["b"], ["c"]), ["`answers`", "'c' at index 0"]),
    (lambda task: task.fit(["a"], ["b"], [{"text": ["b"], "answer_start": [1]}]), ["`answers`", "character 1"]),
    (lambda task: task.fit(["a"], ["b"], [{"text": ["b"]}]), ["`answers`", "answer_start"]),
    (lambda task: task.fit(["a"], ["\x01b"], ["\x01"]), ["`answers` must each have a token"]),
    (lambda task: task.predict(["a"], ["b", "c"]), ["`contexts`", "received 2"]),
    (lambda task: task.predict("a", " "), ["`contexts` must each have a token", "' '"]),
    (lambda task: QuestionAnswerer(task.model, task.tokenizer, max_length=40, overlap=19), ["`overlap`", "18"]),
    (lambda task: QuestionAnswerer(task.model, txf.text.ByteTokenizer(end="</s>")), ["`tokenizer`", "`start`"]),
    (lambda task: QuestionAnswerer(txf.models.encoder(90, 1, 8, 2), task.tokenizer), ["`model`", "start_logits"]),
    (lambda task: task.fit("a.json"), ["`questions`", "a.json"]),
    (lambda task: task.fit("a.json", ["b"]), ["`questions` must be given alone"]),
])  # fmt: skip
def test_wrong_arguments_raise(task, call, parts):
    with pytest.raises(ValueError) as error:
        call(task)
    assert all(part in str(error.value) for part in parts) and "\n" not in str(error.value)


@pytest.mark.parametrize("content", [{}, {"data": []}, {"data": [{"paragraphs": [{"context": "a"}]}]}, {"data": 3}])
def test_files_of_another_form_raise(task, content, tmp_path):
    (tmp_path / "data.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="data.json"):
        task.fit(tmp_path / "data.json")
    (tmp_path / "data.json").write_text(json.dumps(squad(impossible=True)))
    with pytest.raises(ValueError, match="`answers` must hold an answer to each question"):
        task.fit(tmp_path / "data.json")
