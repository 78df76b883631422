"""The prefill and step models: cached logits equal uncached ones at every position, whatever the options."""

import drawing
import keras
import numpy as np
import pytest
from hypothesis import given
from keras import ops

import keras_txf as txf
from keras_txf.generation.compilers import compiled
from keras_txf.models import prefill_model, step_model

VOCABULARY, COLUMNS, PROMPT = 11, 14, 5  # columns in all, and of the padded prompts
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


def cached(model, steps):
    """The logits after the prompt and after each of the next tokens, (steps + 1, B, V), and the last cache."""
    prefill, step = (callable_model(part) for part in (prefill_model(model), step_model(model)))
    seq2seq = isinstance(model.input, dict)
    name = "target_ids" if seq2seq else "token_ids"
    prompts = [row[:length] for row, length in zip(ROWS, LENGTHS, strict=True)]
    attention_mask = np.zeros((len(ROWS), COLUMNS), "bool")
    for row, length in enumerate(LENGTHS):
        attention_mask[row, PROMPT - length : PROMPT] = True
    inputs = {name: padded(prompts, PROMPT, left=True), "attention_mask": attention_mask}
    if seq2seq:
        inputs["source_ids"] = padded(SOURCES, 6)
    known = {**inputs, **prefill(inputs)}
    logits = [drawing.array(known["logits"])]
    for count in range(steps):
        attention_mask[:, PROMPT + count] = True
        known[name] = np.array([[row[length + count]] for row, length in zip(ROWS, LENGTHS, strict=True)], "int32")
        known["cache_position"] = np.array([PROMPT + count], "int32")
        known |= step(known)
        logits.append(drawing.array(known["logits"]))
    return np.stack(logits), known


def callable_model(model):
    """The model as a function of a dict that may hold more than its inputs; on JAX compiled, as that is faster."""
    names = [tensor.name for tensor in model.inputs]
    run = compiled(model, model.variables) if keras.backend.backend() == "jax" else model
    return lambda known: run({name: ops.convert_to_tensor(known[name]) for name in names})


def make(kind, options):
    options = dict(options)
    num_heads = options.pop("num_heads", 2)
    options.setdefault("tie_embeddings", options.get("combine") != "concat")
    sizes = (VOCABULARY,) * (2 if kind == "encoder_decoder" else 1)
    return drawing.randomize(getattr(txf.models, kind)(*sizes, 2, drawing.DIM, num_heads, **options))


def assert_cached_equals_uncached(model):
    logits, known = cached(model, steps=6)
    for row in range(len(ROWS)):
        drawing.assert_same(logits[:, row], uncached(model, row)[:7], 2e-5)
    return known


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["decoder_generator", "encoder_decoder"])
@drawing.few(4)
@given(drawing.model_options())
def test_cached_logits_equal_uncached(kind, options):
    assert_cached_equals_uncached(make(kind, options))


RARE = {  # what no draw has
    "electra": {"embedding_dim": 6, "embedding_norm": True, "tie_embeddings": False},
    "gemma": {"final_logit_soft_cap": 2.0, "logit_scale": 0.5, "logit_bias": True},
    "opt": {"token_dim": 6, "position_encoding": "learned", "max_length": 20},
    "modern": {"norm_placement": "pre", "norm_attention": [False, True], "embedding_norm": True},
}


@pytest.mark.parametrize("name", RARE)
def test_cached_logits_equal_uncached_with_options_of_checkpoints(name):
    assert_cached_equals_uncached(make("decoder_generator", RARE[name]))


@pytest.mark.slow
def test_cached_logits_equal_uncached_where_tokens_alone_are_shared():
    options = {"share_embeddings": "tokens", "position_encoding": "learned", "max_length": 20, "embedding_norm": True}
    assert_cached_equals_uncached(make("encoder_decoder", options))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["decoder_generator", "encoder_decoder"])
@drawing.few(12)
@given(drawing.model_options())
def test_cached_logits_equal_uncached_over_many_options(kind, options):
    assert_cached_equals_uncached(make(kind, options))


@pytest.mark.parametrize("window", [1, 3, 8, 20])
def test_a_cache_is_no_longer_than_the_window(window):
    model = make("decoder_generator", {"window": [window, None], "position": "rotary"})
    known = assert_cached_equals_uncached(model)
    assert known["decoder_0_key"].shape == (3, 2, min(window, COLUMNS), 4)
    assert known["decoder_1_value"].shape == (3, 2, COLUMNS, 4)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="the names are those of Keras on every backend")
@pytest.mark.parametrize("share_embeddings", [True, "tokens"])
def test_names_are_their_own_though_keras_counts_anew(share_embeddings):
    sizes = dict(num_layers=1, dim=8, num_heads=2, max_length=9)
    for _ in range(3):
        model = txf.models.encoder_decoder(VOCABULARY, VOCABULARY, share_embeddings=share_embeddings, **sizes)
    for used in range(12):  # one of which would give an operation of the encoder's a second time
        keras.backend.clear_session()
        x = keras.Input((2,))
        for _ in range(used):
            ops.not_equal(x, 0)
            keras.layers.Add()([x, x])
        prefill_model(model)


def test_a_step_is_a_model_that_shares_its_weights():
    model = make("decoder_generator", {})
    step = step_model(model)
    assert {id(weight) for weight in step.weights} == {id(weight) for weight in model.weights}
    assert isinstance(step, keras.Model) and "decoder_0_step" in [layer.name for layer in step.layers]


@pytest.mark.parametrize("part", [prefill_model, step_model])
def test_other_models_are_refused(part):
    classifier, encoder = txf.models.encoder_classifier(VOCABULARY, 3, 1, 8, 2), txf.models.encoder(VOCABULARY, 1, 8, 2)
    with pytest.raises(ValueError, match="`model` must return logits"):
        part(classifier)
    with pytest.raises(ValueError, match="layer 'encoder_0' has causal=False"):
        part(encoder)
    with pytest.raises(ValueError, match="packed=False"):
        part(txf.models.encoder_decoder(VOCABULARY, VOCABULARY, 1, 8, 2, packed=True))
