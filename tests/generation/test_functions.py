"""`make_generate_function`: the sequences and scores of `generate`, from tensors of any batch and length."""

import drawing
import keras
import numpy as np
import pytest
from generation.test_generate import KINDS, NEW, PROMPTS, make, on_tensorflow, padded
from refusals import built, refused

from keras_txf.generation import Beam, Contrastive, RepetitionPenalty, Sampling


def called(kind, model, prompts, options):
    """The rows of new tokens and their scores, of a graph that knows no shapes where there is one."""
    generate = model.make_generate_function(**options)
    inputs = [padded(prompts)]
    if kind == "decoder_generator":
        inputs = [padded(prompts, left=True), np.array(list(map(len, prompts)), "int32")]
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        specs = [tf.TensorSpec([None] * x.ndim, "int32") for x in inputs]
        generate = tf.function(generate, [*specs, tf.TensorSpec([2], "int64")], autograph=False)
    seed = np.array([3, 0])  # as `keras.random.SeedGenerator(3)` has it
    tokens, log_probs, scores = map(drawing.array, generate(*inputs, seed))
    np.testing.assert_array_equal(log_probs[tokens < 0], 0)
    return [[token for token in row if token >= 0] for row in tokens.tolist()], scores


def assert_same(model, options, jit_compile=False):
    kind, model, options = model["kind"], make(**model), {"max_new_tokens": NEW, **options}
    expected = model.generate(PROMPTS, **options, seed=3, padded=False, return_scores=True)
    ids, prompts = expected.ids, PROMPTS if kind == "decoder_generator" else [[]] * len(PROMPTS)
    if "num_return_sequences" in options:
        ids = [row for rows in ids for row in rows]
        prompts = [prompt for prompt in prompts for _ in range(options["num_return_sequences"])]
    if kind == "decoder_generator":
        options["longest_prompt"] = max(map(len, PROMPTS))
    tokens, scores = called(kind, model, PROMPTS, {**options, "jit_compile": jit_compile})
    assert tokens == [row[len(prompt) :] for row, prompt in zip(ids, prompts, strict=True)]
    drawing.assert_same(scores, expected.scores.reshape(-1), 1e-4)
    if {"stop_ids", "stop_sequences"} & options.keys():
        assert len(set(map(len, tokens))) > 1  # some row has come to a stop


GENERATOR, PAIR = ({"kind": kind} for kind in KINDS)
# The model, the options, and whether XLA compiles the loop: once for each sampler.
CASES = [
    ({**GENERATOR, "name": "learned"}, {"max_new_tokens": None, "max_length": 6, "stop_ids": [3, 8]}, False),
    (GENERATOR, {"stop_sequences": [[4, 3, 10], [7]]}, True),
    ({**GENERATOR, "name": "without padding"}, {"processors": [RepetitionPenalty(1.3)]}, False),
    ({**GENERATOR, "name": "gemma"}, {"sampler": Beam(3), "num_return_sequences": 2, "stop_ids": [9, 8]}, True),
    ({**GENERATOR, "name": "alibi and window"}, {"sampler": Contrastive(3)}, True),
    ({**GENERATOR, "name": "scores too"}, {}, False),
    ({**PAIR, "name": "llama"}, {"stop_ids": 1, "start_id": 4}, False),
    ({**PAIR, "name": "llama"}, {"sampler": Beam(2)}, True),
    ({**PAIR, "name": "t5", "start_id": 0}, {"max_new_tokens": 6}, False),
]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("model, options", [CASES[0][:2], pytest.param(*CASES[3][:2], marks=drawing.not_on_jax)])
def test_equals_generate(model, options):
    assert_same(model, options)


@pytest.mark.slow
@on_tensorflow
@pytest.mark.parametrize("model, options, jit_compile", CASES)
def test_equals_generate_where_shapes_are_unknown(model, options, jit_compile, compiled):
    assert_same(model, options, jit_compile)


@pytest.mark.slow
@on_tensorflow
@pytest.mark.parametrize("sampler", ["greedy", Beam(2)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_one_that_alone_is_known(kind, sampler, compiled):
    """Inside of the model TensorFlow loses the one."""
    import tensorflow as tf

    model, prompt = make(kind, "llama"), PROMPTS[0]
    inputs = [[prompt], [len(prompt)]] if kind == "decoder_generator" else [[prompt]]
    generate = model.make_generate_function(NEW, sampler=sampler)
    specs = [tf.TensorSpec([1, None], "int32"), tf.TensorSpec([1], "int32")][: len(inputs)]
    generate = tf.function(generate, [*specs, tf.TensorSpec([2], "int64")], autograph=False)
    tokens, *_ = generate(*(np.array(x, "int32") for x in inputs), np.array([3, 0]))
    [expected] = model.generate([prompt], NEW, sampler, padded=False)
    assert tokens.numpy()[0].tolist() == expected[-NEW:]


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="PyTorch compiles nothing")
def test_draws_equal_those_of_generate_where_the_loop_is_compiled(compiled):
    options = {"sampler": Sampling(top_p=0.9), "num_return_sequences": 2}
    assert_same({**GENERATOR, "name": "llama"}, options, jit_compile=True)


def test_bad_calls_raise_errors():
    for options, words in (
        ({"max_length": 8}, ["`longest_prompt`", "None", "max_length=8"]),
        ({"max_length": 8, "longest_prompt": 8}, ["`max_length`", "8"]),
        ({"longest_prompt": 0}, ["`longest_prompt`", "0"]),
        ({"stop_ids": 11}, ["`stop_ids`", "11"]),
        ({"jit_compile": 1}, ["`jit_compile`", "1"]),
    ):
        refused(lambda: built("decoder_generator").make_generate_function(**options), words)
    model = make("decoder_generator", "learned")  # max_length=9
    refused(lambda: model.make_generate_function(), ["`longest_prompt`", "max_length=9"])
    refused(lambda: model.make_generate_function(6, longest_prompt=4), ["max_length=9", "4 prompt", "max_new_tokens=6"])
    refused(lambda: make("encoder_decoder").make_generate_function(start_id=11), ["`start_id`", "11"])
