"""The prefill and step models: cached logits equal uncached logits at every position, for all options."""

import drawing
import keras
import numpy as np
import pytest
from hypothesis import given
from keras import ops

import keras_txf as txf
from keras_txf.backend.compilers import compiled
from keras_txf.checkpoints.parts import with_parts
from keras_txf.models import prefill_model, step_model

VOCABULARY, STEPS = 11, 6
ROWS = [[5, 3, 8, 1, 2, 9, 4, 7, 6, 1], [7, 2, 2, 3, 3, 4, 5, 1, 8, 10], [4, 10, 6, 1, 1, 1, 9, 8, 2, 3]]
LENGTHS = (4, 1, 3)  # of the rows that are prompts
SOURCES = [[3, 4, 5, 6], [3], [9, 8, 7]]


def padded(rows, width, left=False):
    fill = [[0] * (width - len(row)) for row in rows]
    return np.array([f + row if left else row + f for f, row in zip(fill, rows, strict=True)], "int32")


def uncached(model, row):
    """The logits after the last token, the row alone and without padding."""
    length = LENGTHS[row]
    sequence = np.array([ROWS[row]], "int32")
    if isinstance(model.input, dict):
        logits = model({"source_ids": np.array([SOURCES[row]], "int32"), "target_ids": sequence})
    else:
        logits = model(sequence)
    return drawing.array(logits)[0, length - 1 :]


def decoded(prefill, step, prompts, inputs, steps, width=1, follow=None):
    """The logits after the prompts and each of the next tokens, (B, steps + 1, V), and what the last step returned.

    Args:
        prefill, step: functions of dicts that may hold more than their inputs.
        follow: the next tokens, (B, steps), or None for the likeliest. All alternatives of a step are the same token,
            and so are their logits; the first is what goes on.
    """
    name = "target_ids" if "source_ids" in inputs else "token_ids"
    length = -(-max(map(len, prompts)) // width) * width
    attention_mask = np.zeros((len(prompts), length + steps * width), "bool")
    for row, prompt in enumerate(prompts):
        attention_mask[row, length - len(prompt) : length] = True
    known = {name: padded(prompts, length, left=True), "attention_mask": attention_mask, **inputs}
    known["prompt_length"] = np.array([length], "int32")
    known |= prefill(known)
    logits = [drawing.array(known["logits"])]
    for count, index in enumerate(range(length, length + steps * width, width)):
        own = np.repeat(attention_mask[:, None], width, axis=1)
        own[:, range(width), range(index, index + width)] = True
        tokens = logits[-1].argmax(-1) if follow is None else follow[:, count]
        known[name] = np.repeat(tokens[:, None].astype("int32"), width, axis=1)
        known["cache_position"] = np.array([index], "int32")
        known["attention_mask"] = own[:, 0] if width == 1 else own
        attention_mask[:, index] = True
        known |= step(known)
        new = drawing.array(known["logits"]).reshape(len(prompts), width, VOCABULARY)
        drawing.assert_same(new, np.repeat(new[:, :1], width, axis=1))
        logits.append(new[:, 0])
    return np.stack(logits, axis=1), known


def callable_model(model):
    """The model as a function of a dict that may hold more than its inputs; on JAX compiled, as that is faster."""
    names = [tensor.name for tensor in model.inputs]
    run = compiled(model, model.variables) if keras.backend.backend() == "jax" else model
    return lambda known: run({name: ops.convert_to_tensor(known[name]) for name in names})


def make(kind, options):
    options = dict(options)
    options.setdefault("num_heads", 2)
    options.setdefault("tie_embeddings", options.get("combine") != "concat")
    sizes = (VOCABULARY,) * (2 if kind == "encoder_decoder" else 1)
    build, options = getattr(txf.models, kind), drawing.with_embedding(options, VOCABULARY)
    return drawing.randomize(build(*sizes, **with_parts(build, {"num_layers": 2, "dim": drawing.DIM, **options})))


def assert_cached_equals_uncached(model):
    prompts = [row[:length] for row, length in zip(ROWS, LENGTHS, strict=True)]
    follow = np.array([row[length : length + STEPS] for row, length in zip(ROWS, LENGTHS, strict=True)])
    inputs = {"source_ids": padded(SOURCES, 6)} if isinstance(model.input, dict) else {}
    parts = map(callable_model, (prefill_model(model), step_model(model)))
    logits, known = decoded(*parts, prompts, inputs, STEPS, follow=follow)
    for row in range(len(ROWS)):
        drawing.assert_same(logits[row], uncached(model, row)[: STEPS + 1], 2e-5)
    return known


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["decoder_generator", "encoder_decoder"])
@drawing.few(12)
@given(drawing.model_options())
def test_cached_logits_equal_uncached(kind, options):
    assert_cached_equals_uncached(make(kind, options))


@pytest.mark.drawn(4)
@pytest.mark.parametrize("window", [1, 3, 8, 20])
def test_a_cache_is_no_longer_than_the_window(window):
    model = make("decoder_generator", {"window": [window, None], "position": "rotary"})
    known = assert_cached_equals_uncached(model)
    columns = max(LENGTHS) + STEPS
    assert known["decoder_0_key"].shape == (3, 2, min(window, columns), 4)
    assert known["decoder_1_value"].shape == (3, 2, columns, 4)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the names are those of Keras on every backend")
@pytest.mark.parametrize("share_embeddings", [True, "tokens"])
def test_names_are_their_own_though_keras_counts_anew(share_embeddings):
    sizes = dict(num_layers=1, dim=8, num_heads=2, max_length=9)
    for _ in range(3):
        model = txf.models.encoder_decoder(VOCABULARY, VOCABULARY, share_embeddings=share_embeddings, **sizes)
    for used in range(12):  # one of these names would repeat the name of an operation of the encoder
        keras.backend.clear_session()
        x = keras.Input((2,))
        for _ in range(used):
            ops.not_equal(x, 0)
            keras.layers.Add()([x, x])
        prefill_model(model)


def test_a_step_is_a_model_that_shares_its_weights():
    model = make("decoder_generator", {})
    step = step_model(model)
    step.summary(print_fn=lambda *_, **__: None)
    assert {id(weight) for weight in step.weights} == {id(weight) for weight in model.weights}
    assert isinstance(step, keras.Model)
