"""Every builder's model keeps the contract, plain, with many options, packed, and with everything returned."""

import functools
import inspect

import pytest
from cases import Case, Tensor, floats, places, segments, token_ids, token_types, visible
from contracts import parameters

import keras_txf as txf
from keras_txf.checkpoints.families.modern_bert import NormedHead
from keras_txf.checkpoints.parts import with_parts

# Dim 12, 3 or 6 heads; 11 tokens, 13 on the target's side, 4 classes. One layer where two show no more.
TOKENS = {"token_ids": token_ids("target", 11)}
PAIR = {"target_ids": token_ids("target", 13), "source_ids": token_ids("source", 11)}
CONTEXT = {"target_ids": token_ids("target", 13), "context": floats("source", 10)}
IMAGES, ANY_IMAGES = {"images": floats(6, 8, 3)}, {"images": floats("target", "source", 3)}
SELF, CROSS = (3, "target", "target"), (3, "target", "source")
EVERYTHING = {"return_hidden_states": True, "return_attention_scores": True}
MANY = dict(
    head_dim=8, num_key_value_heads=3, qk_norm=True, use_bias=False, position="rotary", window=3, norm="rms",
    norm_placement="pre", activation="silu", gated=True, intermediate_dim=14, attention_dropout=0.2,
    feed_forward_dropout=0.3, stochastic_depth=0.4, layer_scale=0.5,
)  # fmt: skip
ALONE = dict(num_heads=3, output_projection=False)
HEADS_ALONE = {
    "encoder_options": {"attention": txf.layers.MultiHeadSelfAttention(**ALONE)},
    "decoder_options": {"attention": txf.layers.MultiHeadSelfAttention(**ALONE, causal=True),
                        "cross_attention": txf.layers.CrossAttention(**ALONE)},
}  # fmt: skip
OTHERS = dict(
    position="alibi", norm_placement="sandwich", logit_soft_cap=4.0, scale=0.3, qk_norm="full", sinks=True,
    residual="parallel", position_encoding="learned", max_length=10,
)  # fmt: skip


def case(name, builder, tensors, *args, **options):
    """A case whose own fields are told from the builder's options by their names."""
    fields = {k: options.pop(k) for k in ("mask", "scores", "shares", "core", "fullest") if k in options}
    named = dict(zip(inspect.signature(builder).parameters, args))
    return Case(name, functools.partial(builder, **with_parts(builder, {**named, **options})), tensors, **fields)


def packed(*prefixes):
    return {
        f"{prefix}{name}": make("source" if prefix == "source_" else "target")
        for prefix in prefixes
        for name, make in (("segment_ids", segments), ("positions", places))
    }


def scores(name, shape, layers=1):
    return {f"{name}_{i}": shape for i in range(layers)}


def image_text(placeholder_id=None, bidirectional=None, **options):
    """An `image_text_generator` with 4 vectors for an image and 11 tokens."""
    encoder = image_encoder((6, 8), (3, 4), 1, 12, 3, class_token=False, name="images_encoder", **options)
    decoder = decoder_generator(11, 1, 10, 2, **options)
    return txf.models.image_text_generator(encoder, decoder, placeholder_id, bidirectional=bidirectional)


def placeholders(length):
    """Ids without the token 10, except for one image in the second row."""

    def fill(random, shape):
        array = random.integers(1, 10, shape)
        array[0, -1], array[1, :4] = 0, 10
        return array

    return Tensor((length,), fill, "int32")


encoder, encoder_classifier = txf.models.encoder, txf.models.encoder_classifier
decoder, decoder_generator = txf.models.decoder, txf.models.decoder_generator
encoder_decoder = txf.models.encoder_decoder
recurrent = txf.models.recurrent_encoder_decoder
masked_language_model, token_classifier = txf.models.masked_language_model, txf.models.token_classifier
PICTURES = {**IMAGES, **TOKENS}
dual_encoder = txf.models.dual_encoder
SCENES = {"token_ids": placeholders("target"), "images": floats("source", 6, 8, 3)}
image_encoder, image_classifier = txf.models.image_encoder, txf.models.image_classifier

CASES = [
    case("encoder", encoder, TOKENS, 11, 1, 12, 3),
    case("encoder-many", encoder, TOKENS, 11, 2, 12, 6, **MANY, fullest=True),
    case("encoder-packed", encoder, {**TOKENS, **packed("")}, 11, 1, 12, 3, packed=True),
    case("encoder-everything", encoder, TOKENS, 11, 1, 12, 3, **OTHERS, **EVERYTHING,
         scores=scores("attention_scores", SELF), fullest=True),
    case("classifier", encoder_classifier, TOKENS, 11, 4, 1, 12, 3, mask="consumed"),
    case("classifier-many", encoder_classifier, TOKENS, 11, 4, 1, 12, 6, **MANY, **EVERYTHING, pooling="attention",
         mask="consumed", scores=scores("attention_scores", (6, "target", "target")), fullest=True),
    case("encoder-types", encoder, {**TOKENS, "token_type_ids": token_types("target", 2)}, 11, 1, 12, 3, token_types=2,
         token_type_ids=True, embedding_norm=True, embedding_dim=10, fullest=True),
    case("classifier-head", encoder_classifier, TOKENS, 11, 4, 1, 12, 3, pooling="first", head=NormedHead("gelu_tanh"),
         head_dropout=0.1, token_types=2, mask="consumed", fullest=True),
    case("token-classifier", token_classifier, TOKENS, 11, 4, 1, 12, 3, head="tanh", head_dropout=0.1,
         fullest=True),
    case("texts", txf.models.encoder_decoder_classifier, TOKENS, 11, 4, 1, 12, 3, mask="consumed"),
    case("texts-everything", txf.models.encoder_decoder_classifier, TOKENS, 11, None, 1, 12, 3, spans=True, start_id=1,
         **EVERYTHING, mask="consumed",
         scores={**scores("encoder_attention_scores", SELF), **scores("decoder_attention_scores", SELF),
                 **scores("decoder_cross_attention_scores", SELF)}),
    case("spans", txf.models.span_classifier, TOKENS, 11, 1, 12, 3, mask="consumed"),
    case("spans-many", txf.models.span_classifier, TOKENS, 11, 2, 12, 6, **MANY, **EVERYTHING, head="tanh",
         head_dropout=0.1, mask="consumed", scores=scores("attention_scores", (6, "target", "target"), 2),
         fullest=True),
    case("next-sentence", masked_language_model, TOKENS, 11, 1, 12, 3, next_sentence=True),
    case("classifier-unbiased", encoder_classifier, TOKENS, 11, 4, 1, 12, 3, logit_bias=False, mask="consumed"),
    case("masked", masked_language_model, TOKENS, 11, 1, 12, 3, head="gelu_sigmoid"),
    case("masked-many", masked_language_model, {**TOKENS, **packed("")}, 11, 2, 12, 6, **MANY, **EVERYTHING,
         packed=True, tie_embeddings=False, head=NormedHead(), logit_bias=False, fullest=True,
         scores=scores("attention_scores", (6, "target", "target"), 2)),
    case("generator", decoder_generator, TOKENS, 11, 2, 12, 3, core=True),
    case("generator-many", decoder_generator, TOKENS, 11, 1, 12, 6, **MANY, tie_embeddings=False),
    case("generator-apart", decoder_generator, TOKENS, 11, 2, 12, 3, norm_placement="pre",
         token_dim=8, logit_scale=0.5, logit_bias=True, final_logit_soft_cap=3.0, attention_bias=True, norm_bias=False,
         attention_output_bias=False, feed_forward_bias=False, embedding_norm=True,
         position_encoding="sinusoidal_halves", fullest=True),
    case("generator-heads-alone", decoder_generator, TOKENS, 11, 2, 12, norm_placement="pre", fullest=True,
         attention=txf.layers.MultiHeadSelfAttention(3, causal=True, output_projection=False, position="rotary")),
    case("generator-packed", decoder_generator, {**TOKENS, **packed("")}, 11, 1, 12, 3, packed=True),
    case("generator-everything", decoder_generator, TOKENS, 11, 1, 12, 3, **OTHERS, **EVERYTHING,
         scores=scores("attention_scores", SELF)),
    case("decoder", decoder, {**CONTEXT, "context_mask": visible("source")}, 13, 1, 12, 3, context_dim=10,
         context_mask=True),
    case("decoder-many", decoder, {**CONTEXT, "context_mask": visible("source")}, 13, 1, 12, 6, **MANY, context_dim=10,
         context_mask=True),
    case("decoder-packed", decoder,
         {**CONTEXT, **packed("target_"), "context_segment_ids": segments("source"), "context_mask": visible("source")},
         13, 1, 12, 3, context_dim=10, packed=True, context_mask=True, fullest=True),
    case("seq2seq", encoder_decoder, PAIR, 11, 13, 1, 12, 3, core=True),
    case("seq2seq-many", encoder_decoder, PAIR, 11, 13, 1, 12, 6, num_decoder_layers=2, **MANY, tie_embeddings=False),
    case("seq2seq-apart", encoder_decoder, {**PAIR, "source_ids": token_ids("source", 13)}, 13, 13, 1, 12, 3,
         start_id=0, share_embeddings="tokens", position_encoding="learned", max_length=10, embedding_norm=True,
         logit_bias=True, decoder_options={"num_heads": 6, "intermediate_dim": 14}, fullest=True),
    case("seq2seq-heads-alone", encoder_decoder, PAIR, 11, 13, 1, 12, fullest=True, **HEADS_ALONE),
    case("seq2seq-packed", encoder_decoder, {**PAIR, **packed("source_", "target_")}, 11, 13, 1, 12, 3, packed=True),
    case("seq2seq-everything", encoder_decoder, {**PAIR, "source_ids": token_ids("source", 13)}, 13, 13, 2, 12, 3,
         **EVERYTHING, position="relative", shares=True,
         scores={**scores("encoder_attention_scores", (3, "source", "source"), layers=2),
                 **scores("decoder_attention_scores", SELF, layers=2),
                 **scores("decoder_cross_attention_scores", CROSS, layers=2)}),
    case("recurrent", recurrent, PAIR, 11, 13, 2, 12, fullest=True),
    case("recurrent-additive", recurrent, PAIR, 11, 13, 1, 12, "gru", "additive", bidirectional=True,
         tie_embeddings=False, fullest=True),
    case("recurrent-scores", recurrent, {**PAIR, "source_ids": token_ids("source", 13)}, 13, 13, 2, 12,
         attention="multiplicative", return_attention_scores=True, fullest=True,
         scores={"decoder_cross_attention_scores_0": (1, "target", "source")}),
    case("image-encoder", image_encoder, IMAGES, (6, 8), (2, 4), 1, 12, 3, mask="none"),
    case("image-encoder-many", image_encoder, ANY_IMAGES, None, 1, 1, 12, 6, **MANY, mask="none", class_token=False,
         patch_bias=False, fullest=True),
    case("image-classifier", image_classifier, IMAGES, (6, 8), (2, 4), 4, 2, 12, 3, **EVERYTHING, mask="none",
         core=True, scores=scores("attention_scores", (3, 7, 7), layers=2)),
    case("image-classifier-relative", image_classifier, IMAGES, (6, 8), (2, 4), 4, 2, 12, 3, position="relative",
         position_encoding="learned", pooling="mean", mask="none", shares=True, fullest=True),
    case("dual-encoder", dual_encoder, PICTURES, (6, 8), (2, 4), 11, 1, 12, 3, projection_dim=7, end_id=9,
         logit_scale=1.5, mask="none"),
    Case("image-text", functools.partial(image_text, bidirectional="images"), {**TOKENS, **IMAGES}),
    Case("image-text-placeholders", functools.partial(image_text, 10, "images"), SCENES, fullest=True),
    case("dual-encoder-many", dual_encoder, PICTURES, (6, 8), (2, 4), 11, 1, 12, 6, **MANY, **EVERYTHING,
         image_pooling=txf.layers.AttentionPooling(2), image_projection=False, projection_bias=True, logit_scale=1.5,
         max_logit_scale=None, logit_bias=-0.5, text_options={"causal": False, "num_layers": 2, "dim": 18}, mask="none",
         fullest=True,
         scores={**scores("image_attention_scores", (6, 6, 6)),
                 **scores("text_attention_scores", (6, "target", "target"), layers=2)}),
]  # fmt: skip


@pytest.mark.drawn(3)
@pytest.mark.parametrize("check, case", parameters(CASES, long=("export", "fit_compiled", "quantization")))
def test_contract(check, case, tmp_path):
    check(case, tmp_path)


def test_every_builder_has_a_case():
    of_models = {"forecaster", "generative", "prefill_model", "step_model"}  # in tests/generation
    of_models.add("image_text_generator")
    assert {case.make.func.__name__ for case in CASES} - {"image_text"} == set(txf.models.__all__) - of_models
