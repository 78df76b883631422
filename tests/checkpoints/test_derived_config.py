"""The config.json that `save` derives for a model that was never loaded, and models that raise ValueError."""

import copy

import keras
import numpy as np
import pytest
from checkpoints.test_loading import same
from checkpoints.test_saving import through_file
from refusals import refused

import keras_txf as txf
from keras_txf.checkpoints.parts import with_parts
from keras_txf.layers import (
    GatedDeltaNet,
    Mamba2,
    MixtureOfExperts,
    RelativeBias,
    Rotary,
    ShortConvolution,
    WaveformEmbedding,
)

save = txf.checkpoints.save
GPT2 = dict(position_encoding="learned", max_length=16, norm_placement="pre", activation="gelu_tanh", pad_id=None,
            scale_embedding=False)  # fmt: skip
BERT = dict(position_encoding="learned", max_length=16, token_types=2, pad_id=0, scale_embedding=False,
            embedding_norm=True, activation="gelu", norm_epsilon=1e-12)  # fmt: skip
LLAMA = dict(position=Rotary(5000.0), use_bias=False, norm="rms", norm_epsilon=1e-5, norm_placement="pre", gated=True,
             activation="silu", scale_embedding=False, pad_id=None, intermediate_dim=40)  # fmt: skip
GEMMA = {**LLAMA, "norm": "rms_zero_centered", "activation": "gelu_tanh", "scale_embedding": True, "head_dim": 10}
GEMMA2 = {**GEMMA, "norm_placement": "sandwich", "window": [8, None], "scale": 0.25}
GRANITE = {**LLAMA, "scale_embedding": 3.0, "residual_scale": 0.5, "scale": 0.2, "logit_scale": 0.25}
MIXERS = [Mamba2(6, 8, 5, 2, 3, norm_epsilon=1e-5), None]
LINEAR = Rotary(5000.0, scaling={"type": "linear", "factor": 2.0})
PARALLEL = dict(norm_placement="pre", scale_embedding=False, pad_id=None, tie_embeddings=False)
T5 = dict(use_bias=False, norm="rms", norm_epsilon=1e-6, norm_placement="pre", scale=1.0, position_encoding=None,
          scale_embedding=False, share_embeddings=True, start_id=0, num_decoder_layers=3, target_vocab_size=90,
          encoder_options={"position": RelativeBias(4, name="encoder_position")},
          decoder_options={"position": RelativeBias(4, bidirectional=False, name="decoder_position")})  # fmt: skip
BART = dict(position_encoding="learned", max_length=16, pad_id=1, start_id=5, embedding_norm=True, num_decoder_layers=3,
            share_embeddings="tokens", activation="relu", logit_bias=True, target_vocab_size=90)  # fmt: skip
LFM2 = dict(LLAMA, num_layers=3, attention=[*[ShortConvolution(4, True)] * 2, None], qk_norm=True,
            num_key_value_heads=2, position=[None, None, Rotary(5000.0)])  # fmt: skip
QWEN = dict(LLAMA, attention=[GatedDeltaNet(2, 5, 6, 4, 3, 1e-5), None], norm="rms_zero_centered", head_dim=8,
            qk_norm="head_zero_centered", position=[None, Rotary(5000.0, 0.5)], output_gate=True)  # fmt: skip
OF_NETWORK = ("intermediate_dim", "activation", "gated")
EXPERTS = MixtureOfExperts(4, 2, 12, num_shared_experts=1, shared_gate=True, shared_intermediate_dim=20)
IMAGES = dict(image_size=(8, 12), patch_size=4)
FRONT = WaveformEmbedding(24, [6, 10], [5, 3], [3, 2], position_kernel_size=5, position_groups=4)
SOUNDS = dict(vocab_size=None, input_dim=1, norm_placement="pre", activation="gelu", num_classes=7, embedding=FRONT)
CASES = {
    "gpt2": ("decoder_generator", GPT2), "bert": ("masked_language_model", {**BERT, "head": "gelu"}),
    "gpt2 body": ("encoder", {**GPT2, "causal": True}), "bert tokens": ("token_classifier", {**BERT, "num_classes": 3}),
    "bert spans": ("span_classifier", BERT), "electra": ("encoder", {**BERT, "embedding_dim": 10}),
    "bert classes": ("encoder_classifier",
                     {**BERT, "num_classes": 3, "pooling": "first", "head": "tanh"}),
    "roberta": ("masked_language_model", {**BERT, "head": "gelu", "pad_id": 1, "token_types": 1}),
    "albert": ("encoder", {**BERT, "embedding_dim": 10, "share_blocks": 1}),
    "llama": ("decoder_generator", {**LLAMA, "num_layers": 4, "num_heads": 6, "num_key_value_heads": 2}),
    "llama long": ("decoder_generator", {**LLAMA, "position": LINEAR, "pad_id": 3, "attention_bias": True}),
    "mistral": ("decoder_generator", {**LLAMA, "window": 3, "tie_embeddings": False}),
    "qwen2": ("decoder_generator", {**LLAMA, "attention_bias": True, "attention_output_bias": False, "window": 3}),
    "qwen3": ("decoder_generator", {**LLAMA, "qk_norm": True, "head_dim": 10, "window": [3, None]}),
    "smollm3": ("decoder_generator", {**LLAMA, "position": [Rotary(5000.0), None]}),
    "gemma": ("decoder_generator", GEMMA),
    "gemma2": ("decoder_generator", {**GEMMA2, "logit_soft_cap": 50.0, "final_logit_soft_cap": 20.0}),
    "gemma3_text": ("decoder_generator",
                    {**GEMMA2, "qk_norm": "head_zero_centered", "position": [Rotary(100.0), Rotary(5000.0)]}),
    "glm4": ("decoder_generator", {**LLAMA, "position": Rotary(5000.0, 1 / 3, interleaved=True), "attention_bias": True,
                                   "attention_output_bias": False, "norm_placement": "sandwich"}),
    "granitemoehybrid": ("decoder_generator", {**GRANITE, "attention": MIXERS}),
    "phi": ("decoder_generator", {**PARALLEL, "residual": "parallel_one_norm", "position": Rotary(5000.0, 0.5),
                                  "num_heads": 2, "logit_bias": True, "activation": "gelu_tanh"}),
    "gpt_neox": ("decoder_generator", {**PARALLEL, "residual": "parallel", "position": Rotary(5000.0, 1 / 3),
                                       "activation": "gelu"}),
    "t5": ("encoder_decoder", {**T5, "logit_scale": 24**-0.5}), "t5 untied": ("encoder_decoder",
                                                                               {**T5, "tie_embeddings": False}),
    "lfm2": ("decoder_generator", LFM2), "qwen3_5_text": ("decoder_generator", {**QWEN, "tie_embeddings": False}),
    "qwen3_next": ("decoder_generator", {**{name: value for name, value in QWEN.items() if name not in OF_NETWORK},
                                         "feed_forward": EXPERTS}),
    "bart": ("encoder_decoder", BART), "vit": ("image_encoder", IMAGES),
    "vit classes": ("image_classifier", {**IMAGES, "num_classes": 3}), "wav2vec2": ("token_classifier", SOUNDS),
}  # fmt: skip


def build(builder="decoder_generator", **options):
    sizes = {} if "image" in builder else {f"{'source_' * (builder == 'encoder_decoder')}vocab_size": 90}
    make = getattr(txf.models, builder)
    model = make(**with_parts(make, {**sizes, "num_layers": 2, "dim": 24, "num_heads": 4, **options}))
    random = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(weight + 0.1 * random.normal(size=weight.shape))
    return model


def cloned(model):
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    return clone


@pytest.mark.drawn(3)
@pytest.mark.parametrize("case, copied", [("gpt2", cloned), ("bert tokens", copy.deepcopy), ("vit", through_file)])
def test_a_copy_of_a_model_never_loaded_is_saved(case, copied, tmp_path):
    builder, options = CASES[case]
    model = copied(build(builder, **options))
    refused(lambda: save(model, tmp_path / "new"), ["`config`", "`family`"])
    save(model, tmp_path / "new", family=case.partition(" ")[0])
    same(txf.checkpoints.load(tmp_path / "new", **({"token_type_ids": True} if "bert" in case else {})), model)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("options, words", [
    ({"gated": True}, "asks for gated=False of decoder_0 and 1 other block (received True)"),
    ({"logit_soft_cap": 3.0}, "logit_soft_cap=None of decoder_0 and 1 other block (received 3.0)."),
    ({"norm_placement": "sandwich"}, "norm_placement='pre' of decoder_0 and 1 other block (received 'sandwich')"),
    ({"scale_embedding": True}, "asks for scale=False of embedding (received True)."),
    ({"window": [None, 400]}, "asks for window=None of decoder_1 (received 400)."),
    ({"position": Rotary(7.0)}, "position=None of decoder_0 and 1 other block (received 'Rotary')."),
    ({"attention": [None, ShortConvolution()]}, "of decoder_1 (received None)"),
    ({"share_blocks": 1}, "share_blocks=None (received 1)"),
])  # fmt: skip
def test_a_model_that_the_family_cannot_express_raises_value_error(options, words, tmp_path):
    model = build(**{**GPT2, **options})
    refused(lambda: save(model, tmp_path / "new", family="gpt2"), ["`family` must be able to express", "'gpt2'", words])
    assert not (tmp_path / "new").exists()


def rewired(model, how):
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    embedding, first, second, norm = (
        model.get_layer(name) for name in ("embedding", "decoder_0", "decoder_1", "decoder_norm")
    )
    embedded = embedding(ids)
    x = second(first(embedded))
    x = second(x) if how == "twice" else x
    x = first(second(embedded)) if how == "turned" else x
    x = keras.layers.Add()([x, embedded]) if how == "skip" else x
    logits = embedding(norm(x), reverse=True)
    return keras.Model(ids, logits * 2.0 if how == "scaled" else logits)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("how, words", [
    ("plain", None), ("twice", "(received 2)"), ("turned", "in another way"), ("skip", "in another way"),
    ("scaled", "in another way"),
])  # fmt: skip
def test_a_model_wired_by_hand_is_saved_or_raises_value_error(how, words, tmp_path):
    model = build(**GPT2)
    wired = rewired(model, how)
    if words is None:
        save(wired, tmp_path, family="gpt2")
        same(txf.checkpoints.load(tmp_path), model)
    else:
        refused(lambda: save(wired, tmp_path / "new", family="gpt2"), ["`family` must be able to express", words])


def wired(head=None, final_norm=None, embedding=None, **block):
    """A Llama of layers that a reader would write, with random weights."""
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    options = {"position_encoding": None, "pad_id": None, **(embedding or {})}
    x = txf.layers.PositionalEmbedding(90, 24, name="embedding", **options)(ids)
    for i in range(3):
        options = dict(intermediate_dim=40, position="rotary", gated=True, activation="silu", norm="rms",
                       norm_placement="pre", use_bias=False, norm_epsilon=1e-5, dropout=0.1)  # fmt: skip
        x = txf.layers.DecoderBlock(4, name=f"decoder_{i}", **{**options, **block})(x)
        x = keras.layers.Dropout(0.1)(x)
    norm = final_norm or keras.layers.RMSNormalization(axis=2, epsilon=1e-5, name="decoder_norm")
    head = head or keras.layers.Dense(90, use_bias=False, name="logits", kernel_regularizer="l2")
    model, random = txf.models.generative(keras.Model(ids, head(norm(x)))), np.random.default_rng(0)
    for weight in model.weights:
        if "float" in weight.dtype:
            weight.assign(weight + 0.1 * random.normal(size=weight.shape))
    return model


@pytest.mark.drawn(2)
@pytest.mark.parametrize("activation", ["swish", keras.activations.silu])
def test_a_model_of_keras_own_layers_is_saved_with_its_limit_of_positions(activation, tmp_path):
    model = wired(activation=activation)
    save(model, tmp_path, family="llama")
    again = txf.checkpoints.load(tmp_path)
    same(again, model)
    assert again.get_layer("embedding").max_length is None
    again(np.zeros((1, 2100), "int32"))  # longer than the default of transformers
    save(wired(embedding={"max_length": 77}), tmp_path, family="llama")
    assert txf.checkpoints.load(tmp_path).get_layer("embedding").max_length == 77


def test_a_head_in_float32_under_a_mixed_policy_is_saved(tmp_path):
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = wired(keras.layers.Dense(90, use_bias=False, name="logits", dtype="float32"))
    finally:
        keras.config.set_dtype_policy("float32")
    save(model, tmp_path, family="llama")
    again = txf.checkpoints.load(tmp_path)
    for weight, other in zip(model.weights, again.weights, strict=False):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), keras.ops.convert_to_numpy(other))


PHI = dict(norm="layer", use_bias=True, gated=False, activation="gelu_tanh", residual="parallel_one_norm",
           position=Rotary(5000.0, 1 / 3), norm_epsilon=1e-3)  # fmt: skip


def test_the_bias_of_a_dense_is_the_bias_of_the_family(tmp_path):
    model = wired(keras.layers.Dense(90, name="logits"), keras.layers.LayerNormalization(name="decoder_norm"), **PHI)
    save(model, tmp_path, family="phi")
    again, ids = txf.checkpoints.load(tmp_path), np.array([[5, 6, 7]])
    np.testing.assert_allclose(*(keras.ops.convert_to_numpy(one(ids)) for one in (again, model)), atol=1e-5)
    assert len(again.weights) == len(model.weights)


class Doubled(keras.layers.Dense):
    def call(self, inputs, training=None):
        return 2.0 * super().call(inputs)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("head, words", [
    (lambda: keras.layers.Dense(90, name="logits"), "asks for use_bias=False of logits (received True)"),
    (lambda: keras.layers.Dense(90, use_bias=False, activation="tanh", name="logits"),
     "asks for activation='linear' of logits (received 'tanh')."),
    (lambda: Doubled(90, use_bias=False, name="logits"), "asks for class='Dense' of logits (received 'Doubled')."),
    (lambda: keras.layers.Dense(90, use_bias=False, name="out"), "asks for a layer named 'logits' (received 'out')."),
])  # fmt: skip
def test_a_head_that_computes_otherwise_raises_value_error(head, words, tmp_path):
    refused(lambda: save(wired(head()), tmp_path / "new", family="llama"), [words])


@pytest.mark.slow
def test_one_message_has_all_differences(tmp_path):
    norm = keras.layers.RMSNormalization(epsilon=1e-6, name="decoder_norm")
    model = wired(final_norm=norm, embedding={"scale": True}, gated=False, norm_placement="sandwich")
    words = [
        "scale=False of embedding (received True), ", "epsilon=1e-05 of decoder_norm (received 1e-06), ",
        "gated=True of decoder_0 and 2 other blocks (received False)",
        "norm_placement='pre' of decoder_0 and 2 other blocks (received 'sandwich')", " and 9 weights.",
    ]  # fmt: skip
    refused(lambda: save(model, tmp_path / "new", family="llama"), ["'llama' (LlamaForCausalLM) asks for ", *words])
    save(wired(), tmp_path / "right", family="llama")
    refused(lambda: save(model, tmp_path / "new", tmp_path / "right"), ["`config` must describe the model", *words])
    many = {"gated": False, "norm_placement": "sandwich", "position": None, "norm": "layer"}
    model = wired(final_norm=norm, embedding={"scale": True}, **many)
    refused(lambda: save(model, tmp_path / "new", family="llama"), [" and 1 more and "])
    assert not (tmp_path / "new").exists()


def test_blocks_must_have_the_names_of_a_builder(tmp_path):
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    x = txf.layers.DecoderBlock(2, name="block_0")(txf.layers.PositionalEmbedding(11, 8, name="embedding")(ids))
    model = keras.Model(ids, keras.layers.Dense(11, name="logits")(x))
    refused(lambda: save(model, tmp_path / "new", family="gpt2"), ["`decoder_0`", "`logits`", "received ['block_0']"])


def test_arguments_of_another_kind(tmp_path):
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, keras.layers.Add()([build("encoder", name=name)(ids) for name in ("one", "two")]))
    refused(lambda: save(model, tmp_path, family="bert"), ["`model` must have one weight of each path"])
    refused(lambda: save(build(**GPT2), tmp_path, {"model_type": "gpt2"}, family="gpt2"), ["`family` must be None"])
    refused(lambda: save(build(**GPT2), tmp_path, family="gpt3"), ["`family`", "'gpt3'"])
