"""`generate` against a naive loop: one sequence at a time, no padding, the whole prefix for each token."""

import functools

import drawing
import keras
import numpy as np
import pytest
from keras import ops

import keras_txf as txf
from keras_txf.checkpoints.parts import with_parts
from keras_txf.generation import ForbiddenTokens, ForcedTokens
from keras_txf.layers.token_input import target_name, token_input

VOCABULARY, NEW = 11, 4
PROMPTS = [[5, 3, 8, 1], [7], [4, 10, 6]]
OPTIONS = {
    "defaults": {},
    "llama": {"num_layers": 2, "position": "rotary", "norm": "rms", "norm_placement": "pre", "gated": True,
              "use_bias": False, "num_key_value_heads": 1},
    "t5": {"position": "relative", "norm": "rms", "norm_placement": "pre", "scale": 1.0, "tie_embeddings": False},
    "alibi and window": {"num_layers": 2, "position": "alibi", "window": 3},
    "gemma": {"num_layers": 2, "position": "rotary", "norm_placement": "sandwich", "qk_norm": True,
              "logit_soft_cap": 2.0, "window": [2, None], "head_dim": 6, "final_logit_soft_cap": 2.0,
              "logit_scale": 0.5, "logit_bias": True},
    "learned": {"position_encoding": "learned", "max_length": 9, "norm_placement": "pre", "embedding_norm": True},
    "concat": {"embedding": txf.layers.PositionalEmbedding(VOCABULARY, 6, combine="concat"), "tie_embeddings": False,
               "embedding_norm": True},
    "without padding": {"pad_id": None, "position": "rotary"},
    "sinks": {"num_layers": 2, "position": "rotary", "norm_placement": "pre", "num_key_value_heads": 1,
                    "sinks": True},
    "output gate": {"position": "rotary", "norm_placement": "pre", "head_dim": 6, "output_gate": True},
    "scores too": {"return_attention_scores": True, "return_hidden_states": True},
}  # fmt: skip
BIASED = {"logit_adjustment": txf.layers.LogitAdjustment(use_bias=True)}
on_tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="of TensorFlow")
KINDS = ("decoder_generator", "encoder_decoder")
# An encoder-decoder takes three times as long to build: in the short run it answers for itself, not for each option.
FEWER = ["decoder_generator", pytest.param("encoder_decoder", marks=pytest.mark.slow)]


@functools.cache
def make(kind, name="defaults", **more):
    sizes = (VOCABULARY,) * (2 if kind == "encoder_decoder" else 1)
    options = {"num_layers": 1, "dim": 8, "num_heads": 2, **OPTIONS[name], **more}
    if "embedding" in options and "pad_id" in options:
        config = {**options["embedding"].get_config(), "pad_id": options.pop("pad_id")}
        options["embedding"] = txf.layers.PositionalEmbedding.from_config(config)
    build = getattr(txf.models, kind)
    return enliven(build(*sizes, **with_parts(build, options)), 8 if kind == "encoder_decoder" else 4)


def enliven(model, seed):
    """Random weights whose kernels weigh more than biases, so that the model does not repeat one token."""
    random = np.random.default_rng(seed)
    for weight in model.trainable_variables:
        vector, is_scale = len(weight.shape) == 1, weight.path.endswith(("gamma", "scale"))
        weight.assign(random.normal(float(is_scale), 0.2 if vector else 1.0, weight.shape).astype("float32"))
    return model


def log_probs_after(model, prompt, tails, start_id=1, padding=False):
    """The log-probabilities of what follows each of the tails, which are of one length: (tails, V), in float64.

    `padding` tells whether the model's padding may follow.
    """
    tails = np.array(tails, "int32").reshape(len(tails), -1)
    prompts = np.repeat(np.array([prompt], "int32"), len(tails), axis=0)
    if isinstance(model.input, dict):
        targets = np.concatenate([np.full((len(tails), 1), start_id, "int32"), tails], axis=1)
        outputs = model({"source_ids": prompts, "target_ids": targets})
    else:
        outputs = model(np.concatenate([prompts, tails], axis=1))
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs
    logits = drawing.array(logits)[:, -1].astype("float64")
    pad_id = token_input(model, target_name(model)).pad_id
    if pad_id is not None and not padding:
        logits[:, pad_id] = -np.inf
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def naive(model, prompt, new=NEW, start_id=1):
    """What follows a prompt, or the answer to a source, with nothing but the model's own call."""
    ids = []
    for _ in range(new):
        ids.append(int(log_probs_after(model, prompt, [ids], start_id).argmax()))
    return ids


@functools.cache
def follows(kind, name, prompt):
    return naive(make(kind, name), prompt)


def expected(kind, name, prompts, new, stop_ids):
    """Every row is the naive one up to its first stop: what comes later cannot change it."""
    rows = []
    for prompt in prompts:
        tokens = follows(kind, name, tuple(prompt))[:new]
        end = next((i + 1 for i, token in enumerate(tokens) if token in stop_ids), new)
        rows.append(tokens[:end] if kind == "encoder_decoder" else prompt + tokens[:end])
    return padded(rows)


def padded(rows, left=False, pad=0):
    longest = max(map(len, rows))
    return np.array([
        [pad] * (longest - len(row)) + row if left else row + [pad] * (longest - len(row)) for row in rows
    ], "int32")  # fmt: skip


def assert_generates(kind, name, prompts=PROMPTS, given=None, new=NEW, stop_ids=None):
    generated = make(kind, name).generate(prompts if given is None else given, max_new_tokens=new, stop_ids=stop_ids)
    stops = np.atleast_1d([] if stop_ids is None else stop_ids).tolist()
    assert isinstance(generated, np.ndarray) and generated.dtype == np.int32
    np.testing.assert_array_equal(generated, expected(kind, name, prompts, new, stops))


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_equals_the_naive_loop(kind, compiled):
    assert_generates(kind, "llama")


@pytest.mark.drawn(7)
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_equals_the_naive_loop_with_other_options(kind, name):
    one_length = [[5, 3, 8], [7, 2, 2], [4, 10, 6]]  # all that a source without padding can be
    prompts = one_length if (kind, name) == ("encoder_decoder", "without padding") else PROMPTS
    assert_generates(kind, name, prompts)


FORMS = {
    "tuple": tuple,
    "arrays": lambda rows: [np.array(row) for row in rows],
    "right": lambda rows: padded(rows),
    "both sides": lambda rows: np.pad(padded(rows), ((0, 0), (2, 3))).astype("int64"),
    "tensor": lambda rows: ops.convert_to_tensor(padded(rows, left=True)),
}


@pytest.mark.drawn(3)
@pytest.mark.parametrize("form", [*FORMS, pytest.param("ragged", marks=on_tensorflow)])
def test_prompts_in_every_form(form):
    if form == "ragged":
        import tensorflow as tf

        assert_generates("decoder_generator", "llama", given=tf.ragged.constant(PROMPTS))
    else:
        assert_generates("decoder_generator", "llama", given=FORMS[form](PROMPTS))
        assert_generates("encoder_decoder", "llama", given=FORMS[form](PROMPTS))


@pytest.mark.drawn(2)
@pytest.mark.parametrize("kind", FEWER)
def test_each_row_stops_at_its_own_token(kind):
    free = [follows(kind, "llama", tuple(prompt)) for prompt in PROMPTS]
    second, first_of_all = free[0][1], sorted({row[0] for row in free})
    for stop_ids in (second, np.array([second, free[1][2]]), [free[2][-1]], first_of_all, [9, second]):
        assert_generates(kind, "llama", stop_ids=stop_ids)
    assert_generates(kind, "llama", new=1)
    assert_generates(kind, "llama", PROMPTS[:1], new=2)


@pytest.mark.drawn(3)
@drawing.not_on_jax
@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_that_is_the_pad_token_ends_the_row(kind):
    model = make(kind, "defaults")
    forced = model.generate(
        PROMPTS, NEW, sampler=lambda logits, seed: ops.zeros_like(logits[:, 0], "int32"), stop_ids=0
    )
    expected = [[0]] * 3 if kind == "encoder_decoder" else [prompt + [0] for prompt in PROMPTS]
    np.testing.assert_array_equal(forced, padded(expected))


@pytest.mark.drawn(2)
@drawing.not_on_jax
@pytest.mark.parametrize("sampler", ["greedy", "beam", "contrastive", "sampling"])
def test_padding_is_chosen_where_it_is_allowed_alone(sampler):
    """The likeliest token by far is padding. Later tokens see a padding token that is forced, as every other one."""
    model, unpadded = (
        enliven(txf.models.decoder_generator(VOCABULARY, 1, 8, 2, **BIASED, pad_id=pad_id), 4) for pad_id in (0, None)
    )
    for one in (model, unpadded):
        (bias,) = [weight for weight in one.weights if tuple(weight.shape) == (VOCABULARY,)]
        bias.assign(50.0 * np.eye(VOCABULARY)[0])
    options = dict(max_new_tokens=NEW, sampler=sampler, seed=1, padded=False)
    free, forced = model.generate(PROMPTS, **options), ForcedTokens({1: 0})
    assert min(map(min, free)) > 0 and [len(row) - NEW for row in free] == [len(prompt) for prompt in PROMPTS]
    assert all(row.index(0) == len(row) - 1 for row in model.generate(PROMPTS, stop_ids=[0], **options))
    rows = model.generate(PROMPTS, processors=[forced], **options)
    assert [row.index(0) for row in rows] == [len(prompt) + 1 for prompt in PROMPTS]
    assert rows == unpadded.generate(PROMPTS, processors=[ForbiddenTokens([0]), forced], **options)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("kind", FEWER)
def test_stop_ids_in_the_prompt_do_not_count(kind):
    assert_generates(kind, "llama", stop_ids=[prompt[-1] for prompt in PROMPTS])


@pytest.mark.slow
@pytest.mark.parametrize("kind", FEWER)
def test_generate_leaves_everything_as_it_was(kind, compiled):
    sizes = (VOCABULARY,) * (2 if kind == "encoder_decoder" else 1)
    model = getattr(txf.models, kind)(*sizes, 1, 8, 2, dropout=0.3)
    model.compile(keras.optimizers.Adam(0.01), txf.training.TokenCrossEntropy(), run_eagerly=True)
    ids = padded(PROMPTS)
    if kind == "encoder_decoder":
        inputs, targets = txf.training.teacher_forcing(ids, ids)
    else:
        inputs, targets = txf.training.shift_labels(ids)
    model.fit(inputs, targets, verbose=0)
    state = [*model.variables, *model.optimizer.variables]  # the seeds of dropout among them
    before = [drawing.array(variable).copy() for variable in state]
    model.generate(PROMPTS, 3)
    model.generate(PROMPTS, 3, sampler="sampling")
    for variable, value in zip(state, before, strict=True):
        np.testing.assert_array_equal(drawing.array(variable), value, err_msg=variable.path)
    assert len(state) == len([*model.variables, *model.optimizer.variables])
    model.fit(inputs, targets, verbose=0)
    assert any((drawing.array(variable) != value).any() for variable, value in zip(state, before, strict=True))


@pytest.mark.slow
def test_changed_weights_change_the_answers(compiled):
    """A compiled or cached step must not keep old weights."""
    model = txf.models.decoder_generator(VOCABULARY, 1, 8, 2)
    for seed in (1, 2):
        drawing.randomize(model, seed)
        generated = model.generate(PROMPTS[:1], NEW)[0].tolist()
        assert generated == PROMPTS[0] + naive(model, PROMPTS[0])


@pytest.mark.drawn(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", FEWER)
def test_int8_and_lora_generate_the_tokens_of_their_models(kind):
    sizes = (VOCABULARY,) * (2 if kind == "encoder_decoder" else 1)
    model = drawing.randomize(getattr(txf.models, kind)(*sizes, 1, 8, 2), seed=5)

    def assert_follows():
        rows = model.generate(PROMPTS, NEW)
        for row, prompt in zip(rows, PROMPTS, strict=True):
            expected = naive(model, prompt)
            assert row.tolist()[: len(prompt) + NEW] == (expected if kind == "encoder_decoder" else prompt + expected)

    assert_follows()
    model.get_layer("decoder_0").feed_forward.output_dense.enable_lora(2)
    drawing.randomize(model, seed=6)
    assert_follows()
    model.quantize("int8")
    assert_follows()


@pytest.mark.slow
def test_bfloat16_follows_its_own_logits():
    model = drawing.randomize(txf.models.decoder_generator(VOCABULARY, 2, 8, 2, dtype="mixed_bfloat16"), seed=5)
    [row] = model.generate([[3, 1]], 6)
    for length in range(2, 8):
        logits = drawing.array(model(row[None, :length]))[0, -1]
        assert logits[row[length]] > logits.max() - 0.1  # of logits that reach 4: a rounding may swap near equals


@pytest.mark.slow
@pytest.mark.parametrize("start_id", [7, 0])
def test_targets_begin_with_start_id(start_id):
    """Padding too: later tokens then do not see it, in training as here."""
    options = dict(share_embeddings="tokens", position_encoding="learned", max_length=9, embedding_norm=True)
    model = make("encoder_decoder", **options)
    answers = model.generate(PROMPTS, NEW, start_id=start_id)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        np.testing.assert_array_equal(answer, naive(model, prompt, start_id=start_id))


@drawing.not_on_jax
@pytest.mark.parametrize("options", [dict(position="rotary"), dict(position_encoding="learned")])
def test_a_model_of_few_positions_generates_up_to_the_last(options):
    """Prompts are padded to more columns than it has positions."""
    model = txf.models.decoder_generator(11, 1, 12, 3, max_length=9, **options)
    assert model.generate([[5, 6], [7]], max_length=9).shape == (2, 9)
    with pytest.raises(ValueError, match="9"):
        model.generate([[5, 6]], max_new_tokens=8)


@pytest.mark.parametrize("options, words", [
    ({"temperature": 0.7}, r"`temperature` is an option .*: pass sampler=txf.generation.Sampling\(temperature=0.7\)"),
    ({"num_beams": 2}, r"sampler=txf.generation.Beam\(num_beams=2\)"),
    ({"max_tokens": 2}, "'max_tokens' is not an option of `generate`"),
])  # fmt: skip
def test_unknown_options_raise_errors_with_a_suggestion(options, words):
    pair = txf.models.encoder_decoder(9, 9, 1, 8, 2)
    for model in (txf.models.decoder_generator(9, 1, 8, 2), pair):
        with pytest.raises(ValueError, match=words):
            model.generate([[3]], **options)
        with pytest.raises(ValueError, match=words.replace("`generate`", "`make_generate_function`")):
            model.make_generate_function(**options)
