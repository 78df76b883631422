"""The end of `generate`, and the forms of its results."""

import dataclasses
import functools

import drawing
import numpy as np
import pytest
from generation.test_generate import FEWER, KINDS, NEW, PROMPTS, VOCABULARY, log_probs_after, make, naive, padded
from keras import ops

import keras_txf as txf
from keras_txf.generation import Beam, Contrastive, ForbiddenTokens, Sampling


def shown(kind, prompt):
    return [] if kind == "encoder_decoder" else prompt


@functools.cache
def answers(kind, new=NEW):
    return [naive(make(kind, "llama"), prompt, new) for prompt in PROMPTS]


def log_probs(model, prompt, tokens):
    """The log-probability of each token of an answer."""
    return [log_probs_after(model, prompt, [tokens[:i]])[0, token] for i, token in enumerate(tokens)]


@pytest.mark.long
@pytest.mark.parametrize("kind", FEWER)
def test_lists_and_scores_have_no_padding(kind):
    model, rows = make(kind, "llama"), answers(kind)
    stop = rows[0][1]
    rows = [row[: row.index(stop) + 1] if stop in row else row for row in rows]
    lists = model.generate(PROMPTS, NEW, stop_ids=stop, return_scores=True, padded=False)
    assert lists.ids == [shown(kind, prompt) + row for prompt, row in zip(PROMPTS, rows, strict=True)]
    assert model.generate(PROMPTS[:1], NEW, stop_ids=stop, padded=False) == lists.ids[:1]
    result = model.generate(PROMPTS, NEW, stop_ids=stop, return_scores=True)
    assert isinstance(result, txf.generation.Scored) and result.log_probs.shape == (3, NEW)  # some rows continue
    for place, prompt in enumerate(PROMPTS):
        expected = log_probs(model, prompt, rows[place])
        np.testing.assert_allclose(lists.log_probs[place], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(result.log_probs[place], lists.log_probs[place] + [0] * (NEW - len(expected)))
        np.testing.assert_allclose(result.scores[place], sum(expected), rtol=1e-5, atol=1e-5)


@drawing.not_on_jax
def test_scores_of_draws_are_before_temperature():
    model = make("decoder_generator", "llama")
    result = model.generate(PROMPTS[:1], 2, Sampling(0.3, top_k=2), seed=1, return_scores=True)
    expected = log_probs(model, PROMPTS[0], result.ids[0, 4:].tolist())
    np.testing.assert_allclose(result.log_probs[0], expected, rtol=1e-5, atol=1e-5)


ASKED = [("greedy", 1), (Sampling(0.3, top_k=2), 2), (Contrastive(3, 0.4), 1), (Beam(3), 3)]


@pytest.mark.drawn(4)
@pytest.mark.parametrize("sampler, each", ASKED, ids=str)
@pytest.mark.parametrize("kind", FEWER)
def test_the_likeliest_tokens_are_those_of_the_full_pass(kind, sampler, each):
    """Log-probabilities before temperature and filters; for a beam, after the tokens of the beam."""
    model, beam = make(kind, "llama"), isinstance(sampler, Beam)
    by_text = dict(stop_strings=["c", "d"], tokenizer=lambda ids: "".join(chr(97 + i) for i in ids))
    options = dict(sampler=sampler, seed=3, num_return_sequences=each, return_scores=True)
    options |= dict(stop_ids=[2, 3]) if beam else by_text
    plain = model.generate(PROMPTS, NEW, padded=False, **options)
    lists, arrays = (model.generate(PROMPTS, NEW, padded=padded, top_logprobs=4, **options) for padded in (False, True))
    assert lists.ids == plain.ids and lists.log_probs == plain.log_probs
    for place, draw in np.ndindex(len(PROMPTS), each):
        ids, tokens, values = (part[place][draw] for part in (lists.ids, lists.top_ids, lists.top_log_probs))
        new = ids[len(shown(kind, PROMPTS[place])) :]
        assert len(tokens) == len(values) == len(new)
        for i in range(len(new)):
            expected = log_probs_after(model, PROMPTS[place], [new[:i]], padding=beam)[0, 1:]
            best = np.argsort(-expected)[:4]
            assert tokens[i] == (best + 1).tolist()
            np.testing.assert_allclose(values[i], expected[best], rtol=1e-4, atol=1e-4)
        after = arrays.log_probs.shape[2] - len(new)
        np.testing.assert_array_equal(arrays.top_ids[place, draw], tokens + after * [[0] * 4])
        np.testing.assert_array_equal(arrays.top_log_probs[place, draw], values + after * [[0] * 4])


@pytest.mark.drawn(3)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_several_draws_for_each_prompt(kind):
    model = make(kind, "llama")
    many = model.generate(PROMPTS, NEW, "sampling", seed=5, num_return_sequences=40)
    assert many.shape[:2] == (3, 40)
    np.testing.assert_array_equal(many, model.generate(PROMPTS, NEW, "sampling", seed=5, num_return_sequences=40))
    for rows, prompt in zip(many, PROMPTS, strict=True):
        start = len(shown(kind, prompt))
        assert (rows[:, :start] == shown(kind, prompt)).all()
        counts = np.bincount(rows[:, start], minlength=VOCABULARY) / 40
        assert np.abs(counts - np.exp(log_probs_after(model, prompt, [[]])[0])).max() < 0.3  # of its own prompt
        assert len({tuple(row) for row in rows.tolist()}) > 5
    assert model.generate(PROMPTS, NEW, num_return_sequences=1).shape[:2] == (3, 1)
    lists = model.generate(PROMPTS, NEW, Beam(2), num_return_sequences=2, padded=False)
    assert [len(rows) for rows in lists] == [2, 2, 2]


@pytest.mark.drawn(4)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sampler", ["greedy", "sampling", Contrastive(2, 0.4)], ids=str)
def test_a_stream_yields_the_tokens_of_generate(kind, sampler):
    model, arguments = make(kind, "alibi and window"), dict(max_new_tokens=5, sampler=sampler, seed=2, stop_ids=[2, 3])
    stream = model.generate(PROMPTS, stream=True, **arguments)
    assert next(stream).shape == (3,)
    columns = list(model.generate(PROMPTS, stream=True, **arguments))
    rows = [[token for token in row if token >= 0] for row in np.stack(columns, axis=1).tolist()]
    expected = model.generate(PROMPTS, padded=False, **arguments)
    assert [shown(kind, prompt) + row for prompt, row in zip(PROMPTS, rows, strict=True)] == expected


def test_a_stream_of_several_draws_and_to_its_end():
    model = make("decoder_generator", "llama")
    columns = list(model.generate(PROMPTS, 3, "sampling", num_return_sequences=2, stream=True))
    assert [column.shape for column in columns] == [(3, 2)] * 3
    stops = sorted({answer[0] for answer in answers("decoder_generator")})
    assert len(list(model.generate(PROMPTS, 9, stop_ids=stops, stream=True))) == 1  # all rows ended with it


def test_a_stream_refuses_before_it_begins():
    model = make("decoder_generator", "llama")
    with pytest.raises(ValueError, match="ids from 99 to 99"):
        model.generate([[99]], stream=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_stop_sequences_end_a_row(kind):
    model, free = make(kind, "llama"), answers(kind, 6)
    for start, length in ((0, 2), (2, 3), (1, 1)):
        sequence = free[1][start : start + length]
        rows = model.generate(PROMPTS, 6, stop_sequences=[sequence, [10, 9, 8, 7]], padded=False)
        for row, prompt, answer in zip(rows, PROMPTS, free, strict=True):
            ends = [i + length for i in range(7 - length) if answer[i : i + length] == sequence]
            assert row == shown(kind, prompt) + answer[: min(ends, default=6)]


@drawing.not_on_jax
def test_stop_sequences_of_any_form():
    model, prompt, [first, *_] = make("decoder_generator", "llama"), PROMPTS[1], answers("decoder_generator")[1]
    for form in (list, np.array, ops.convert_to_tensor):
        for stops in ({"stop_sequences": form([[first], [0]])}, {"stop_ids": form([first, 0])}):
            assert model.generate([prompt], 3, **stops, padded=False) == [[*prompt, first]]
    for nothing in ((), [], None):
        assert len(model.generate([prompt], 3, stop_sequences=nothing, padded=False)[0]) == 4


@drawing.not_on_jax
def test_integers_of_numpy_are_integers():
    model, two = make("decoder_generator", "llama"), np.int64(2)
    for sampler, same in (
        (Beam(two), Beam(2)),
        (Contrastive(two), Contrastive(2)),
        (Sampling(top_k=two), Sampling(top_k=2)),
    ):
        assert sampler == same and repr(sampler) == repr(same)
    many = model.generate(PROMPTS, two, Sampling(top_k=two), seed=two, num_return_sequences=two)
    np.testing.assert_array_equal(many, model.generate(PROMPTS, 2, Sampling(top_k=2), seed=2, num_return_sequences=2))
    assert many.shape == (3, 2, 6)


@drawing.not_on_jax
def test_a_stop_sequence_is_of_new_tokens_alone():
    model, answer = make("decoder_generator", "llama"), answers("decoder_generator")[0]
    across = [PROMPTS[0][-1], answer[0]]
    assert across not in [answer[i : i + 2] for i in range(NEW)]
    assert model.generate(PROMPTS[:1], NEW, stop_sequences=[across], padded=False)[0][4:] == answer


@pytest.mark.drawn(2)
@pytest.mark.parametrize("kind", FEWER)
def test_max_length_is_of_each_row(kind):
    model = make(kind, "llama")
    for most in (None, 3):
        rows = model.generate(PROMPTS, max_new_tokens=most, max_length=6, padded=False)
        for row, prompt in zip(rows, PROMPTS, strict=True):
            room = 6 - (1 if kind == "encoder_decoder" else len(prompt))
            assert row == shown(kind, prompt) + naive(model, prompt, min(most or room, room))


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [Beam(2), Contrastive(num_candidates=2)])
def test_rows_that_end_early_stay_within_the_models_positions(sampler):
    """The other rows continue longer than an ended row could: the model would raise an error for missing positions."""
    model = txf.models.decoder_generator(VOCABULARY, 1, 12, 3, position_encoding="learned", max_length=9, pad_id=None)
    prompts, start = [[5, 3, 8, 1], [7]], model.generate
    rows = start(prompts, max_length=9, sampler=sampler, padded=False)
    assert rows == [start([prompt], max_length=9, sampler=sampler, padded=False)[0] for prompt in prompts]
    assert list(map(len, rows)) == [9, 9]
    function = model.make_generate_function(max_length=9, longest_prompt=4, sampler=sampler)
    ids = np.array([[5, 3, 8, 1], [0, 0, 0, 7]], "int32")
    tokens, *_ = function(ids, np.array([4, 1], "int32"), np.array([3, 0]))
    assert [[t for t in row if t >= 0] for row in drawing.array(tokens).tolist()] == [rows[0][4:], rows[1][1:]]


@drawing.not_on_jax
def test_a_start_token_stands_before_each_prompt_or_alone():
    model = make("decoder_generator", "llama")
    assert model.generate(start_id=2, max_new_tokens=3, padded=False) == [[2, *naive(model, [2], 3)]]
    rows = model.generate([[5, 3], []], 3, start_id=2, padded=False)
    assert rows == [[2, 5, 3, *naive(model, [2, 5, 3], 3)], [2, *naive(model, [2], 3)]]
    rows = model.generate([[3], []], 3, start_id=[2, 5], padded=False)
    assert rows == [[2, 5, 3, *naive(model, [2, 5, 3], 3)], [2, 5, *naive(model, [2, 5], 3)]]


@drawing.not_on_jax
def test_user_functions_change_logits_and_choose():
    model = make("decoder_generator", "llama")

    def only_even(logits, history):
        return ops.where(ops.arange(VOCABULARY) % 2 == 0, logits, -float("inf"))

    def count_up(logits, history):
        """The token that says how many there are, generated so far and in all."""
        total = ops.sum(ops.cast(history.tokens >= 0, "int32"), axis=1)
        wanted = ops.where(history.count % 2 == 0, history.count, total)
        return ops.where(ops.arange(VOCABULARY)[None] == wanted[:, None], 0.0, -float("inf"))

    for sampler in ("greedy", "sampling", Beam(2), Contrastive(2)):
        rows = model.generate(PROMPTS, 2, sampler, processors=[only_even], padded=False)
        assert all(token % 2 == 0 for row, prompt in zip(rows, PROMPTS) for token in row[len(prompt) :])
    rows = model.generate(PROMPTS, NEW, processors=[count_up], padded=False)
    assert [row[len(prompt) :] for row, prompt in zip(rows, PROMPTS)] == [
        [0, len(prompt) + 1, 2, len(prompt) + 3] for prompt in PROMPTS
    ]


@pytest.mark.parametrize("kind", FEWER)
def test_a_search_that_finds_nothing(kind):
    model = make(kind, "llama")
    halves = [ForbiddenTokens(range(3)), lambda logits, history: ops.where(ops.arange(VOCABULARY) < 3, logits, -np.inf)]
    arguments = dict(sampler=Beam(2), processors=halves, return_scores=True)
    ids, log_probs, scores = model.generate([[5, 3]], 3, **arguments)
    assert ids.tolist() == [shown(kind, [5, 3])] and log_probs.shape == (1, 0) and scores.tolist() == [-np.inf]
    ids, log_probs, scores = model.generate([[5, 3]], 3, num_return_sequences=2, **arguments)
    assert ids.tolist() == [[shown(kind, [5, 3])] * 2] and log_probs.shape == (1, 2, 0) and scores.shape == (1, 2)


@dataclasses.dataclass
class Changing:
    """It compares by its numbers, so it has no hash."""

    strength: float = 1.0

    def __call__(self, logits, more):
        return logits


BAD = [
    (dict(max_new_tokens=0), "`max_new_tokens` must be a positive integer; received 0"),
    (dict(max_length=4), "`max_length` must exceed the prompts' lengths; received 4 and a prompt of 4 tokens"),
    (dict(max_length=2.5), "`max_length` must be a positive integer; received 2.5"),
    (dict(stop_ids=-1), "`stop_ids` must hold token ids from 0 to 10; received ids from -1 to -1"),
    (dict(stop_ids=11), "`stop_ids` must hold token ids from 0 to 10; received ids from 11 to 11"),
    (dict(stop_ids=[[1, 2]]), "`stop_ids` must be a token id or several; received"),
    (dict(stop_ids="end"), "`stop_ids` must be a token id or several; received 'end'"),
    (dict(stop_sequences=[[]]), "`stop_sequences` must hold sequences of at least one id"),
    (dict(stop_sequences=[3]), "`stop_sequences` must hold sequences of ids"),
    (dict(stop_sequences=[[12]]), "`stop_sequences` must hold token ids from 0 to 10"),
    (dict(sampler="best"), "`sampler` must be one of .*'beam', 'contrastive', 'greedy', 'sampling'.*; received 'best'"),
    (dict(sampler=Beam), "`sampler` must be a name, a sampler or a function; received the class Beam"),
    (dict(sampler=None), "`sampler` must be one of .*; received None"),
    (dict(sampler=Contrastive(12)), "`num_candidates` must not exceed the vocabulary's size, 11; received 12"),
    (dict(num_return_sequences=2), "`num_return_sequences` must be at most 1 with Greedy"),
    (dict(sampler=Beam(3), num_return_sequences=4), "`num_return_sequences` must be at most 3 with Beam"),
    (dict(sampler="contrastive", num_return_sequences=2), "`num_return_sequences` must be at most 1 with Contrastive"),
    (dict(num_return_sequences=0), "`num_return_sequences` must be a positive integer; received 0"),
    (dict(padded=0), "`padded` must be True or False; received 0"),
    (dict(stream=True, sampler="beam"), "`stream` does not go with a beam search"),
    (dict(stream=True, return_scores=True), "`stream` yields tokens: it does not go with `return_scores`"),
    (dict(top_logprobs=3), "`top_logprobs` is a part of the scores: it needs return_scores=True"),
    (
        dict(top_logprobs=12, return_scores=True),
        "`top_logprobs` must not exceed the vocabulary's size, 11; received 12",
    ),
    (dict(top_logprobs=0, return_scores=True), "`top_logprobs` must be a positive integer; received 0"),
    (dict(processors=[3]), "processor.*received 3"),
    (dict(processors=[Changing()]), "`processors` must be hashable, .*frozen=True.*; received Changing"),
    (dict(sampler=Changing()), "`sampler` must be hashable, .*; received Changing"),
    (dict(stop_sequences=0), "`stop_sequences` must hold sequences of ids"),
]


@pytest.mark.parametrize("arguments, message", BAD, ids=[str(arguments) for arguments, _ in BAD])
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        make("decoder_generator", "llama").generate(PROMPTS, **arguments)


def test_bad_searches():
    for make_sampler, message in (
        (lambda: Beam(0), "`num_beams` must be a positive integer; received 0"),
        (lambda: Beam(2.0), "`num_beams` must be a positive integer; received 2.0"),
        (lambda: Beam(2, length_penalty="long"), "`length_penalty` must be a finite number; received 'long'"),
        (lambda: Beam(2, float("inf")), "`length_penalty` must be a finite number; received inf"),
        (lambda: Beam(2, early_stopping="soon"), "`early_stopping` must be one of .*; received 'soon'"),
        (lambda: Contrastive(0), "`num_candidates` must be a positive integer; received 0"),
        (lambda: Contrastive(2, 1.5), r"`penalty` must be in \[0, 1\]; received 1.5"),
    ):
        with pytest.raises(ValueError, match=message):
            make_sampler()


def test_prompts_and_answers_fit_the_positions_of_the_model():
    model = make("decoder_generator", "learned")
    assert model.generate([[1] * 6], stop_ids=()).shape == (1, 9)
    for prompts, arguments, message in (
        ([[1] * 9], {}, "max_length=9 positions; received 9 prompt tokens"),
        ([[1] * 10], {"max_new_tokens": 2}, "max_length=9 positions; received 10 prompt tokens"),
        (None, {}, "`prompt_ids` or `start_id` must be given"),
        (None, {"start_id": 11}, "`start_id` must be a token id"),
        (None, {"start_id": [2, 11]}, "`start_id` must be a token id"),
    ):
        with pytest.raises(ValueError, match=message):
            model.generate(prompts, **arguments)


@drawing.not_on_jax
def test_results_are_padded_with_the_model_s_padding():
    model = make("decoder_generator", "llama", pad_id=9)
    stop = naive(model, PROMPTS[1], 1)[0]
    rows = []
    for prompt in PROMPTS:
        answer = naive(model, prompt)
        rows.append(prompt + (answer[: answer.index(stop) + 1] if stop in answer else answer))
    assert len(set(map(len, rows))) > 1
    result = model.generate(padded(PROMPTS, pad=9), NEW, stop_ids=stop)
    np.testing.assert_array_equal(result, padded(rows, pad=9))
