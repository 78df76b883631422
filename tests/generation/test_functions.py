"""`make_generate_function`: the sequences and scores of `generate`, from tensors of any batch and length."""

import functools

import drawing
import keras
import numpy as np
import pytest
from generation.test_generate import enliven
from refusals import built, refused

import keras_txf as txf
from keras_txf.generation import Beam, Contrastive, RepetitionPenalty, Sampling

VOCABULARY, NEW = 11, 4
PROMPTS = [[5, 3, 8, 1], [7], [4, 10, 6]]
OPTIONS = {
    "defaults": {},
    "llama": {"num_layers": 2, "position": "rotary", "norm": "rms", "norm_placement": "pre", "num_key_value_heads": 1},
    "alibi and window": {"num_layers": 2, "position": "alibi", "window": 3},
    "gemma": {"num_layers": 2, "position": "rotary", "qk_norm": True, "logit_soft_cap": 2.0, "window": [2, None]},
    "learned": {"position_encoding": "learned", "max_length": 9},
    "without padding": {"pad_id": None, "position": "relative"},
    "scores too": {"return_attention_scores": True, "return_hidden_states": True},
    "start": {"start_id": 0, "position": "relative"},
}
SEEDS = {"defaults": 16, "llama": 28, "start": 15}  # with which an encoder-decoder does not say one thing for ever
on_tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="shapes are known elsewhere")
slow = pytest.mark.slow


@functools.cache
def make(kind, options="defaults"):
    sizes = (VOCABULARY,) * (2 if kind == "encoder_decoder" else 1)
    model = getattr(txf.models, kind)(*sizes, **{"num_layers": 1, "dim": 8, "num_heads": 2, **OPTIONS[options]})
    return enliven(model, SEEDS[options] if kind == "encoder_decoder" else 4)


def padded(rows, left=False):
    longest = max(map(len, rows))
    fill = [[0] * (longest - len(row)) for row in rows]
    return np.array([f + row if left else row + f for f, row in zip(fill, rows, strict=True)], "int32")


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


def assert_same(kind, name, jit_compile=False, **options):
    model, options = make(kind, name), {"max_new_tokens": NEW, **options}
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


CASES = [
    ("decoder_generator", "learned", {"max_new_tokens": None, "max_length": 6, "stop_ids": [2, 5]}),
    ("decoder_generator", "defaults", {"stop_sequences": [[4, 3, 10], [7]]}),
    ("decoder_generator", "without padding", {"processors": [RepetitionPenalty(1.3)]}),
    ("decoder_generator", "gemma", {"sampler": Beam(3), "num_return_sequences": 2, "stop_ids": 2}),
    ("decoder_generator", "alibi and window", {"sampler": Contrastive(3)}),
    ("decoder_generator", "scores too", {}),
    ("encoder_decoder", "defaults", {"stop_ids": 2, "start_id": 4}),
    ("encoder_decoder", "llama", {"sampler": Beam(2)}),
    ("encoder_decoder", "start", {"max_new_tokens": 6}),
]


@pytest.mark.usefixtures("uncompiled")
def test_equals_generate():
    kind, name, options = CASES[0]
    assert_same(kind, name, **options)


@slow
@on_tensorflow
@pytest.mark.parametrize(
    "kind, name, options, jit_compile",
    [(*case, i in (1, 3, 4, 7)) for i, case in enumerate(CASES)],  # each sampler
)
def test_equals_generate_where_shapes_are_unknown(kind, name, options, jit_compile):
    assert_same(kind, name, **options, jit_compile=jit_compile)


@pytest.mark.slow
@on_tensorflow
@pytest.mark.parametrize("sampler", ["greedy", Beam(2)])
@pytest.mark.parametrize("kind", ["decoder_generator", "encoder_decoder"])
def test_a_batch_of_one_that_alone_is_known(kind, sampler):
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


@slow
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="PyTorch compiles nothing")
def test_draws_equal_those_of_generate_where_the_loop_is_compiled():
    assert_same("decoder_generator", "llama", sampler=Sampling(top_p=0.9), num_return_sequences=2, jit_compile=True)


@pytest.mark.parametrize("options, words", [
    ({"max_length": 8}, ["`longest_prompt`", "None", "max_length=8"]),
    ({"max_length": 8, "longest_prompt": 8}, ["`max_length`", "8"]),
    ({"longest_prompt": 0}, ["`longest_prompt`", "0"]),
    ({"max_new_tokens": 0}, ["`max_new_tokens`", "0"]),
    ({"stop_ids": 11}, ["`stop_ids`", "11"]),
    ({"sampler": "best"}, ["`sampler`", "best"]),
    ({"num_return_sequences": 2}, ["`num_return_sequences`", "Greedy"]),
    ({"jit_compile": 1}, ["`jit_compile`", "1"]),
])  # fmt: skip
def test_refuses(options, words):
    refused(lambda: built("decoder_generator").make_generate_function(**options), words)


def test_refuses_prompts_beyond_the_models_positions():
    model = make("decoder_generator", "learned")  # max_length=9
    refused(lambda: model.make_generate_function(), ["`longest_prompt`", "max_length=9"])
    refused(lambda: model.make_generate_function(6, longest_prompt=4), ["max_length=9", "4 prompt", "max_new_tokens=6"])
    refused(lambda: make("encoder_decoder").make_generate_function(start_id=11), ["`start_id`", "11"])
