"""Logits processors, each against plain Python code for one row."""

import dataclasses
import functools

import drawing
import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops
from refusals import refused

import keras_txf as txf
from keras_txf.backend.compilers import compiled
from keras_txf.generation import processors
from keras_txf.generation.loop import History
from keras_txf.generation.penalties import FrequencyPenalty, PresencePenalty, RepetitionPenalty
from keras_txf.generation.processors import (
    ForbiddenTokens,
    ForcedTokens,
    MinimumLength,
    NoRepeatNgrams,
    check_processors,
)

VOCABULARY, LENGTH = 6, 9
STOPS = [(2,), (0, 3), (4, 1, 5)]
TABLE = np.array([[-2, -2, 2], [-2, 0, 3], [4, 1, 5], [-3, -3, -3]], "int32")


# The logit of one token after each processor. `tokens` are the tokens of the columns so far, -1 for no token.


def repetition_penalty(penalty, logit, token, tokens, prompt_length):
    if token not in tokens:
        return logit
    return logit / penalty if logit > 0 else logit * penalty


def presence_penalty(penalty, logit, token, tokens, prompt_length):
    return logit - penalty if token in tokens[prompt_length:] else logit


def frequency_penalty(penalty, logit, token, tokens, prompt_length):
    return logit - penalty * tokens[prompt_length:].count(token)


def no_repeat_ngrams(size, logit, token, tokens, prompt_length):
    ngrams = [tokens[start : start + size] for start in range(len(tokens) - size + 1)]
    new = tokens[len(tokens) - size + 1 :] + [token]
    return -np.inf if -1 not in new and new in ngrams else logit


def minimum_length(length, logit, token, tokens, prompt_length):
    answer = tokens[prompt_length:]
    ends = any(ends_with([*answer, token], stop) for stop in STOPS)
    return -np.inf if ends and len(answer) < length else logit


def forced_tokens(forced, logit, token, tokens, prompt_length):
    place = len(tokens) - prompt_length
    if place not in forced:
        return logit
    if isinstance(forced[place], list):
        return logit if token in forced[place] else -np.inf
    return 0.0 if forced[place] == token else -np.inf


def forbidden_tokens(ids, logit, token, tokens, prompt_length):
    sequences = [entry if isinstance(entry, list) else [entry] for entry in ids]
    return -np.inf if any(ends_with([*tokens, token], sequence) for sequence in sequences) else logit


def ends_with(tokens, end):
    return len(tokens) >= len(end) and list(tokens[-len(end) :]) == list(end)


def forbidden_at(ids, logit, token, tokens, prompt_length):
    here = len(tokens) - prompt_length in AT
    return forbidden_tokens(ids, logit, token, tokens, prompt_length) if here else logit


AT = (0, 2)
ForbiddenAt = functools.partial(ForbiddenTokens, positions=AT)
ForbiddenAt.__name__ = "ForbiddenTokens at positions"
CASES = [
    (RepetitionPenalty, 1.7, repetition_penalty),
    (RepetitionPenalty, 0.5, repetition_penalty),
    (PresencePenalty, 0.6, presence_penalty),
    (PresencePenalty, -0.6, presence_penalty),
    (FrequencyPenalty, 0.4, frequency_penalty),
    (FrequencyPenalty, -2, frequency_penalty),
    *((NoRepeatNgrams, size, no_repeat_ngrams) for size in (1, 20, 3, 2)),
    *((MinimumLength, length, minimum_length) for length in (1, 20, 3)),
    (ForcedTokens, {0: 5}, forced_tokens),
    (ForcedTokens, {3: 0, 1: [2, 5]}, forced_tokens),
    (ForbiddenTokens, [0, 3], forbidden_tokens),
    (ForbiddenTokens, [[5, 1, 2], [1, 0], 4, [1, 1]], forbidden_tokens),
    (ForbiddenAt, [[1, 0], 3], forbidden_at),
]
IDS = [f"{processor.__name__} {argument}" for processor, argument, _ in CASES]
LAST = {case[0].__name__: case for case in CASES}  # one of each kind


@st.composite
def situations(draw, rows=12):
    """Logits, tokens of few kinds, so that they repeat, the lengths of prompts and of what has been generated."""
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    prompt_length = draw(st.integers(1, 5))
    count = draw(st.integers(0, LENGTH - prompt_length))
    kinds = draw(st.sampled_from([2, VOCABULARY]))
    tokens = random.integers(VOCABULARY - kinds, VOCABULARY, (rows, prompt_length + count))
    padding = random.integers(0, prompt_length, rows)
    tokens[np.arange(prompt_length + count) < padding[:, None]] = -1
    tokens[random.random(tokens.shape) < draw(st.sampled_from([0.0, 0.1]))] = -1  # padding may be generated
    tokens = np.pad(tokens, ((0, 0), (0, LENGTH - tokens.shape[1])), constant_values=-1)
    logits = random.normal(size=(rows, VOCABULARY))
    logits[:, draw(st.integers(0, VOCABULARY - 1))] = draw(st.sampled_from([0.0, -np.inf]))
    return logits.astype("float32"), tokens.astype("int32"), prompt_length, count


def make_history(tokens, prompt_length, count):
    return History(ops.convert_to_tensor(tokens), prompt_length, ops.convert_to_tensor(count, "int32"), TABLE)


def expect(reference, argument, logits, tokens, prompt_length, count):
    return np.array([
        [reference(argument, logit, token, row, prompt_length) for token, logit in enumerate(of_row)]
        for row, of_row in zip(tokens[:, : prompt_length + count].tolist(), logits)
    ], "float32")  # fmt: skip


@pytest.mark.parametrize("processor, argument, reference", CASES, ids=IDS)
@drawing.few(12)
@given(situation=situations())
def test_a_processor_equals_its_reference(processor, argument, reference, situation):
    logits, *place = situation
    actual = processor(argument)(ops.convert_to_tensor(logits), make_history(*place))
    assert keras.backend.standardize_dtype(actual.dtype) == "float32"
    np.testing.assert_allclose(drawing.array(actual), expect(reference, argument, logits, *place), rtol=1e-6)


RANDOM = np.random.default_rng(2)
LOGITS = RANDOM.normal(size=(40, VOCABULARY)).astype("float32")
TOKENS = np.pad(RANDOM.integers(0, VOCABULARY, (40, 8)), ((0, 0), (0, 3)), constant_values=-1).astype("int32")


def test_situations_are_telling():
    """In these something changes, and something does not: but for what never or always applies."""
    for processor, argument, reference in CASES:
        changed = [expect(reference, argument, LOGITS, TOKENS[:, :8], 8 - count, count) != LOGITS for count in range(6)]
        assert np.any(changed) == ((processor, argument) != (NoRepeatNgrams, 20))
        assert not np.all(changed)


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("processor, argument, reference", LAST.values(), ids=LAST)
def test_compiled(processor, argument, reference):
    """Another number, given as a tensor, and another count of tokens need no other compilation."""
    instance = processor(argument)
    name = dataclasses.fields(instance)[0].name
    is_number = isinstance(getattr(instance, name), float)
    traces = []

    def run(logits, tokens, prompt_length, count, values):
        traces.append(logits.shape)
        history = History(tokens, prompt_length, count, ops.convert_to_tensor(TABLE))
        return dataclasses.replace(instance, **values)(logits, history)

    function = compiled(run, [])
    for factor, count in [(1.0, 5), (1.5, 4)]:
        tokens = np.where(np.arange(11) < 3 + count, TOKENS, -1)
        value = factor * argument if is_number else argument
        arguments = (LOGITS, tokens, np.int32(3), np.int32(count), {name: np.float32(value)} if is_number else {})
        actual = function(*keras.tree.map_structure(ops.convert_to_tensor, arguments))
        expected = expect(reference, value, LOGITS, tokens, 3, count)
        np.testing.assert_allclose(drawing.array(actual), expected, rtol=1e-5)
    assert len(traces) == 1 or keras.backend.backend() == "torch"


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the only one with unknown shapes")
@pytest.mark.drawn(3)
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("processor, argument, reference", CASES, ids=IDS)
def test_shapes_unknown_before_the_call(processor, argument, reference):
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((None, VOCABULARY)), tf.TensorSpec((None, None), "int32"),
                                  tf.TensorSpec((), "int32"), tf.TensorSpec((), "int32")])  # fmt: skip
    def function(logits, tokens, prompt_length, count):
        return processor(argument)(logits, History(tokens, prompt_length, count, TABLE))

    expected = expect(reference, argument, LOGITS, TOKENS, 6, 2)
    np.testing.assert_allclose(function(LOGITS, TOKENS, 6, 2), expected, rtol=1e-6)


@drawing.few(8)
@given(situation=situations())
def test_one_after_the_other_without_nan(situation):
    """What is forbidden stays so, whatever penalties and reasons come after."""
    logits, *place = situation
    chain = [processor(argument) for processor, argument, _ in CASES if processor is not ForcedTokens]
    outcomes = []
    for order in (chain, chain[::-1]):
        actual, history = ops.convert_to_tensor(logits), make_history(*place)
        for processor in order:
            before, actual = actual, processor(actual, history)
            assert (drawing.array(actual)[drawing.array(before) == -np.inf] == -np.inf).all()
        outcomes.append(drawing.array(actual))
        assert not np.isnan(outcomes[-1]).any()
    np.testing.assert_array_equal(outcomes[0] == -np.inf, outcomes[1] == -np.inf)


def test_a_forced_token_overrides_a_forbidden_one():
    logits, history = np.zeros((2, VOCABULARY), "float32"), make_history(TOKENS[:2], 8, 0)
    forbidden = ForbiddenTokens([4])(logits, history)
    assert drawing.array(ForcedTokens({0: 4})(forbidden, history)).argmax(axis=-1).tolist() == [4, 4]


def test_a_stop_counts_where_all_of_it_is_generated():
    """[0, 3] is a stop: the prompt's 0 before a generated 3 is none."""
    for prompt_length, expected in [(1, -np.inf), (2, 0.0)]:
        history = make_history(np.array([[5, 0, -1]], "int32"), prompt_length, 2 - prompt_length)
        actual = MinimumLength(9)(np.zeros((1, VOCABULARY), "float32"), history)
        assert drawing.array(actual)[0, [2, 3]].tolist() == [-np.inf, expected]


def test_equal_processors_share_a_compilation():
    def all_of_them(number=float, sequence=list, order=1):
        return (
            RepetitionPenalty(number(2)), PresencePenalty(number(1)), FrequencyPenalty(number(1)),
            NoRepeatNgrams(int(number(2))), MinimumLength(int(number(2))),
            ForcedTokens(dict([(0, 1), (4, sequence([2, 3][::order]))][::order])),
            ForbiddenTokens(sequence([3, sequence([1, 2])][::order])),
        )  # fmt: skip

    first = all_of_them()
    for other in (all_of_them(int), all_of_them(np.float32), all_of_them(sequence=tuple), all_of_them(order=-1)):
        assert first == other and hash(first) == hash(other)
    assert len(set(first)) == len(first)  # the two penalties of 1 as well
    assert ForcedTokens({1: [4, 2, 4], 0: [3]}) == ForcedTokens({0: 3, 1: (2, 4)}) != ForcedTokens({0: 3, 1: 2})
    assert ForbiddenTokens(range(0, 900, 9)) == ForbiddenTokens(range(891, -1, -9))
    assert ForbiddenTokens(np.array([3, 1])) == ForbiddenTokens([[1], [3], 3])
    at = ForbiddenTokens([3], [4, 0])
    assert at == ForbiddenTokens([3], np.array([0, 4, 4])) != ForbiddenTokens([3]) and eval(repr(at)) == at
    assert {type(getattr(one, "penalty", 1.0)) for one in all_of_them(np.float32)} == {float}
    for one in first:
        assert dataclasses.replace(one) == one
        assert eval(repr(one)) == one


EMPTY = [None, [], (), {}]
NOT_POSITIVE_INTEGERS = [0, -1, 2.0, True, "2", None]
BAD = [
    *((RepetitionPenalty, value, "positive number") for value in (0, -1.5, np.nan, np.inf, True, "1", None, 1e-60)),
    *((PresencePenalty, value, "finite number") for value in (np.nan, -np.inf, False, "1", None, 1e60)),
    *((FrequencyPenalty, value, "finite number") for value in (np.nan, np.inf, True, "1", None, -1e60)),
    *((NoRepeatNgrams, value, "positive integer") for value in NOT_POSITIVE_INTEGERS),
    *((MinimumLength, value, "positive integer") for value in NOT_POSITIVE_INTEGERS),
    *((ForcedTokens, value, "dict of positions and ids") for value in (*EMPTY, 5, [5], "ab", [1, 2])),
    *((ForcedTokens, value, f"from 0 on; received {received}") for value, received in (
        ({-1: 5}, "-1"), ({True: 5}, "True"), ({"0": 5}, "'0'"), ({0: -5}, "-5"), ({0: [5, -1]}, "-1"), ({0: []}, "[]"),
        ({0: None}, "None"))),
    *((ForbiddenTokens, value, "list of token ids") for value in (*EMPTY, 5, "ab", np.array(5))),
    *((ForbiddenTokens, [3, value], f"none empty; received {value}") for value in ([], None)),
    *((ForbiddenTokens, value, f"from 0 on; received {received}") for value, received in (
        ([3, -1], "-1"), ([[3, -1]], "-1"), ([1.0], "1.0"), ([True], "True"), (["a"], "'a'"), ([[[1]]], "[1]"))),
]  # fmt: skip
NAMES = {RepetitionPenalty: "penalty", PresencePenalty: "penalty", FrequencyPenalty: "penalty", NoRepeatNgrams: "size",
         MinimumLength: "min_new_tokens", ForcedTokens: "tokens", ForbiddenTokens: "ids"}  # fmt: skip


def test_bad_arguments_raise_errors():
    for processor, value, words in BAD:
        received = "received" if "received" in words else f"received {value!r}"
        refused(lambda: processor(value), [f"`{NAMES[processor]}`", words, received])
    for positions, words in (([], "none empty; received []"), ([-1], "from 0 on; received -1"),
                             ([True], "from 0 on; received True"), (3, "received 3")):  # fmt: skip
        refused(lambda: ForbiddenTokens([3], positions), ["`positions`", words])


def own(logits, history):
    return logits


def test_a_bad_processor_raises_an_error():
    for value, words in (
        (RepetitionPenalty(2.0), ["list of logits processors", "RepetitionPenalty(penalty=2.0)"]),
        ("repetition", ["list of logits processors", "'repetition'"]),
        ([own, RepetitionPenalty], ["instances or functions", "the class RepetitionPenalty"]),
        ([own, 1.5], ["functions of logits and history", "1.5"]),
        ([None], ["functions of logits and history", "None"]),
        ([ForcedTokens({0: 2, 3: 6})], ["`ForcedTokens`", "from 0 to 5", "from 2 to 6"]),
        ([own, ForbiddenTokens([1, 6])], ["`ForbiddenTokens`", "from 0 to 5", "from 1 to 6"]),
        ([ForbiddenTokens(range(5)), ForbiddenTokens([5], [2])], ["`ids`", "received all 6"]),
        ([ForbiddenTokens([[7, 2]])], ["`ForbiddenTokens`", "from 0 to 5", "from 2 to 7"]),
    ):
        refused(lambda: check_processors(value, VOCABULARY), words)


def test_processors_become_a_tuple():
    chain = [own, ForcedTokens({9: 5}), ForbiddenTokens([5, [0, 5]]), functools.partial(own)]
    assert check_processors(chain, VOCABULARY) == tuple(chain) == check_processors(tuple(chain), VOCABULARY)
    halves = (ForbiddenTokens(range(3), [0]), ForbiddenTokens(range(3, 6), [1]))
    assert check_processors(halves, VOCABULARY) == halves
    assert check_processors(None, VOCABULARY) == check_processors([], VOCABULARY) == ()
    assert all(cls in NAMES for cls in vars(processors).values() if dataclasses.is_dataclass(cls))


def test_an_error_within_a_processor_names_the_processor():
    def own_rule(logits, history):
        raise TypeError("not on a symbol")

    model = txf.models.decoder_generator(VOCABULARY, 1, 8, 2)
    with pytest.raises(TypeError, match="not on a symbol") as error:
        model.generate([[1, 2]], 2, processors=[own_rule])
    assert "`processors`" in error.value.__notes__[0] and "own_rule" in error.value.__notes__[0]
