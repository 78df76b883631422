"""Input that does not fit together. Each row must raise a ValueError that says what, what was expected, what came.

Rows are (function, words of its message, parted by |). Options out of their own range are in `test_bad_options.py`,
and arguments of another kind in `bad_calls.py`.
"""

import json

import drawing
import keras
import numpy as np
import pytest
from keras import ops
from refusals import BUILDERS, CONTEXT, IDS, IMAGE_BUILDERS, IMAGES, SEGMENTS, X, answer, built, generate, refused

import keras_txf as txf
from keras_txf import layers, training

Attention, Cross, Embedding = layers.MultiHeadSelfAttention, layers.CrossAttention, layers.PositionalEmbedding
Encoder, Decoder, Rotary = layers.EncoderBlock, layers.DecoderBlock, layers.Rotary
encoder, classifier, decoder, generator, seq2seq = BUILDERS.values()
image_encoder, image_classifier = IMAGE_BUILDERS.values()


def rotary(type, **numbers):
    return lambda: Rotary(scaling={"type": type, **numbers})


def bools(*shape):
    return np.ones(shape, "bool")


def zeros(*shape):
    return np.zeros(shape, "int32")


def patches(**options):
    """Built for images (6, 8) of 3 channels."""
    return drawing.built(layers.PatchEmbedding(2, 8, **{"image_size": (6, 8), **options}), IMAGES)


YARN = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
LLAMA3 = {**YARN, "type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}

SIZES = [
    (lambda: Attention(3)(X), "`num_heads` must divide `dim`|num_heads=3|dim=8"),
    (lambda: encoder(num_heads=3), "`num_heads` must divide `dim`|num_heads=3"),
    (lambda: Attention(4, num_key_value_heads=3), "`num_key_value_heads` must divide `num_heads`|=3|=4"),
    (lambda: Cross(2, num_key_value_heads=4), "`num_key_value_heads`|=4|=2"),
    (lambda: Embedding(11, 8, combine="concat", position_dim=8), "`position_dim`|position_dim=8|dim=8"),
    (lambda: Embedding(11, 1, combine="concat"), "dim|1"),
    (lambda: Embedding(11, 8, pad_id=11), "`pad_id`|11|received 11"),
    (lambda: training.Perplexity(pad_id=0.5), "`pad_id`|0.5"),
    (lambda: encoder(window=[3, 0]), "`window`|positive integer|0"),
    (lambda: Encoder(2, position=layers.RelativeBias(4)), "`position`|num_heads=4|num_heads=2"),
    (lambda: generator(position=layers.ALiBi(4)), "`position`|num_heads=4|num_heads=2"),
    (lambda: layers.RelativeBias(2, num_buckets=32, max_distance=8), "`max_distance`|max_distance=8|num_buckets=32"),
    (lambda: layers.RelativeBias(2, num_buckets=1), "num_buckets=1"),
]  # fmt: skip

COMBINATIONS = [
    (lambda: Embedding(11, 8, "learned"), "`max_length`|learned|None"),
    (lambda: Embedding(11, 8, position_dim=2), "position_dim=2|concat|add"),
    (lambda: Embedding(11, 8, None, combine="concat"), "concat|position_encoding=None"),
    (lambda: generator(embedding=Embedding(11, 8, combine="concat")), "`tie_embeddings`|concat"),
    (lambda: generator(embedding=Embedding(12, 8)), "`embedding`|vocab_size=11|12"),
    (lambda: generator(embedding=Embedding(11, 6)), "`tie_embeddings`|8|6"),
    (lambda: generator(embedding=keras.layers.Embedding(11, 8)), "`embedding`|PositionalEmbedding|Embedding"),
    (lambda: generator(embedding=Embedding(11, 8), pad_id=3), "`pad_id`|`embedding`|3"),
    (lambda: generator(combine="concat"), "'combine'|embedding=PositionalEmbedding(..., combine=...)"),
    (lambda: Encoder(2, stochastic_depth=0.1), "'stochastic_depth'|residual=Residual(stochastic_depth=...)"),
    (lambda: encoder(qk_norm=True), "'qk_norm'|attention=MultiHeadSelfAttention(num_heads, qk_norm=...)"),
    (lambda: Embedding(11, 8, combine="concat")(X, reverse=True), "`reverse`|concat"),
    (lambda: classifier(packed=True), "'packed'|encoder_classifier"),
    (lambda: generator(causal=True), "'causal'|decoder_generator"),
    (lambda: seq2seq(causal=True), "'causal'|encoder_decoder"),
    *((lambda build=build: build(norm_placment="pre"),
       f"'norm_placment'|{name}|Did you mean 'norm_placement'|docstring")
      for name, build in {**BUILDERS, **IMAGE_BUILDERS}.items()),
    (lambda: seq2seq(encoder_options={"windw": 3}), "'windw'|Did you mean 'window'"),
    (lambda: seq2seq(encoder_options={"num_layers": 3}), "'num_layers' is not an option of encoder_options"),
    (lambda: seq2seq(decoder_options={"cross_attention": True}), "`cross_attention`|None or a layer|True"),
    (lambda: Decoder(2)(X, CONTEXT), "`context`|`cross_attention=False`"),
    (lambda: Decoder(2, cross_attention=True)(X), "`context`|None"),
    (lambda: Attention(2, position=keras.layers.Dense(2)), "`position`|`rotate`|`bias`|Dense"),
    (lambda: built("decoder_generator", packed=True).generate([[1]]), "`generate`|packed"),
    *((lambda name=name: Decoder(2)(X, **{name: bools(2, 5)}), f"`{name}`|`cross_attention=False`")
      for name in ("context_mask", "context_attention_mask", "context_segment_ids")),
    (lambda: generator(position="learned"), "`position`|rotary|position_encoding='learned'"),
    (lambda: Attention(2)(X, positions=np.arange(5)), "`positions`|position=None"),
    (lambda: seq2seq(encoder_options={"position": "rotary"}),
     "`position`|`share_embeddings`|None for the encoder|'sinusoidal' for the decoder"),
    (lambda: encoder(causal=[True, False], position="relative"), "'relative'|`causal`|[False, True]"),
    (lambda: seq2seq(encoder_options={"embedding": Embedding(11, 4)}), "`embedding`|`share_embeddings`"),
    (lambda: Encoder(2, norm=keras.layers.LayerNormalization(), norm_epsilon=1e-3), "`norm_epsilon`|`norm`|0.001"),
    (lambda: Attention(2, position="rotary")(X, positions=np.arange(5.0)), "`positions`|integers|float"),
    (lambda: Attention(2)(X, segment_ids=np.ones((2, 5))), "`segment_ids`|integers|float"),
    (lambda: Embedding(11, 8, None)(IDS, positions=IDS), "`positions`|position_encoding=None"),
]  # fmt: skip

ROTARY = [
    (lambda: Rotary(fraction=1.5), "`fraction`|(0, 1]|1.5"),
    (lambda: Attention(2, head_dim=6, position=Rotary(fraction=0.5))(X), "even|head_dim=6|fraction=0.5"),
    (lambda: Attention(2, head_dim=4, position=Rotary(fraction=0.1))(X), "head_dim=4|fraction=0.1"),
    (rotary("lineal", factor=2.0), "scaling['type']|linear|'lineal'"),
    (rotary("linear"), "'linear'|factor|received"),
    (rotary("llama3", factor=8.0), "'llama3'|low_freq_factor|high_freq_factor"),
    (rotary("linear", factor=2.0, beta_fast=3), "'beta_fast'|linear|factor"),
    (rotary(**YARN, beta_fst=3), "'beta_fst'|Did you mean 'beta_fast'"),
    (rotary("linear", factor=0), "`factor`|positive|0"),
    (rotary(**{**LLAMA3, "original_max_position_embeddings": "64"}), "`original_max_position_embeddings`|'64'"),
    (rotary(**YARN, beta_fast=0.5), "`beta_slow`|beta_slow=1.0|beta_fast=0.5"),
    (lambda: Rotary(base=1, scaling=YARN), "`base`|base=1"),
    (rotary(**{**LLAMA3, "low_freq_factor": 4.0}), "low_freq_factor|4.0"),
]  # fmt: skip

TENSORS = [
    (lambda: Attention(2)(X, attention_mask=bools(5)), "`attention_mask`|(batch, query length, key length)|(5,)"),
    (lambda: Cross(2)(X, CONTEXT, attention_mask=bools(2, 1, 1, 5, 3)), "`attention_mask`|key length)|(2, 1, 1, 5, 3)"),
    (lambda: Attention(2)(X, attention_mask=bools(6, 6)), "`attention_mask`|5|6"),
    (lambda: Attention(2)(X, attention_mask=bools(6, 5)), "`attention_mask`|5, 5|(6, 5)"),
    (lambda: Cross(2)(X, CONTEXT, attention_mask=bools(3, 5, 3)), "`attention_mask`|(2, 5, 3)|(3, 5, 3)"),
    (lambda: Attention(2)(X, attention_mask=bools(2, 3, 5, 5)), "`attention_mask`|(2, 2, 5, 5)|(2, 3, 5, 5)"),
    (lambda: Attention(2)(X, mask=bools(3, 5)), "`mask`|(2, 5)|(3, 5)"),
    (lambda: Attention(2)(X, segment_ids=zeros(2, 4)), "`segment_ids`|(2, 5)|(2, 4)"),
    (lambda: Cross(2)(X, CONTEXT, segment_ids=IDS, context_segment_ids=zeros(2, 2)), "`context_segment_ids`|(2, 3)"),
    (lambda: Cross(2)(X, CONTEXT, context_mask=bools(2, 4)), "`context_mask`|(2, 3)|(2, 4)"),
    (lambda: Cross(2, causal=True)(X, CONTEXT), "`context`|as long as `inputs`|(2, 3, 6) and (2, 5, 8)"),
    (lambda: Cross(2)(X, np.zeros((3, 3, 6), "float32")), "`context`|(2, 3, 6)|(3, 3, 6)"),
    (lambda: Attention(2, position="rotary")(X, positions=np.arange(4)), "`positions`|5|(4,)"),
    (lambda: Attention(2, position="alibi")(X, positions=[0]), "`positions`|5|(1,)"),
    (lambda: Encoder(2, position="rotary")(X, positions=zeros(1, 2, 5)), "`positions`|(batch, length)|(1, 2, 5)"),
    (lambda: Embedding(11, 8)(IDS, positions=zeros(1, 2, 5)), "`positions`|(batch, length)|(1, 2, 5)"),
    (lambda: Embedding(11, 8)(IDS, positions=np.arange(4)), "`positions`|5|(4,)"),
    (lambda: Embedding(11, 8, max_length=6)(IDS, positions=np.arange(2, 7)), "`positions`|from 0 to 5|2 to 6"),
    (lambda: Embedding(11, 8, max_length=6)(IDS, positions=np.arange(-1, 4)), "`positions`|from 0 to 5|-1 to 3"),
    (lambda: drawing.built(Attention(2), X)(X[:, :, None]), "`inputs`|(batch, length, dim)|(2, 5, 1, 8)"),
    (lambda: Embedding(11, 8)(X[..., :7], reverse=True), "`inputs`|dim=8|(2, 5, 7)"),
    (lambda: layers.Pooling()(X, mask=bools(2, 4)), "`mask`|(2, 5)|(2, 4)"),
    (lambda: layers.FeedForward()(keras.Input((5, None))), "`inputs`|dim|None"),
    (lambda: Attention(2)(X, mask=bools(5)), "`mask`|(batch, length)|(5,)"),
    (lambda: Encoder(2)(X, mask=bools(2, 5, 5)), "`mask`|(batch, length)|(2, 5, 5)"),
    (lambda: Cross(2)(X, CONTEXT, context_mask=bools(2, 3, 3)), "mask`|(batch, length)|(2, 3, 3)"),
    (lambda: layers.Pooling()(X, mask=bools(2, 5, 8)), "`mask`|(batch, length)|(2, 5, 8)"),
    (lambda: Attention(2)(X, segment_ids=SEGMENTS[0]), "`segment_ids`|(batch, length)|(5,)"),
    (lambda: Cross(2)(X, CONTEXT, segment_ids=SEGMENTS), "`segment_ids`|`context_segment_ids`|together"),
    (lambda: Cross(2)(X, CONTEXT, context_segment_ids=zeros(2, 3)), "`segment_ids`|together"),
    (lambda: Attention(2)(X[0]), "`inputs`|(batch, length, dim)|(5, 8)"),
    (lambda: Encoder(2)(X[None]), "`inputs`|(batch, length, dim)|(1, 2, 5, 8)"),
    (lambda: Cross(2)(X, CONTEXT[0]), "`context`|(batch, length, dim)|(3, 6)"),
    (lambda: Attention(2)(keras.Input((5, None))), "`inputs`|dim|None"),
    (lambda: layers.Pooling()(X[0]), "`inputs`|(batch, length, dim)|(5, 8)"),
    (lambda: Embedding(11, 8)(IDS[0]), "`inputs`|(batch, length)|(5,)"),
    (lambda: Embedding(11, 8)(IDS - 2), "`inputs`|from 0 to 10|from -2 to 6"),
    (lambda: Embedding(11, 8)(IDS + 3), "`inputs`|from 0 to 10|from 3 to 11"),
    (lambda: Embedding(11, 8, max_length=4)(keras.Input((5,), dtype="int32")), "max_length=4|length 5"),
]  # fmt: skip

VISION = [
    (lambda: layers.PatchEmbedding((2, 3), 8, (6, 8)), "`patch_size` must divide|`image_size`|(2, 3)|(6, 8)"),
    (lambda: patches(image_size=None, position_encoding=None)(IMAGES[:, :5]), "`patch_size` must|`inputs`|(2, 5, 8"),
    (lambda: patches(interpolate_positions=True)(IMAGES[:, :, :7]), "`patch_size` must divide|(2, 6, 7, 3)"),
    (lambda: layers.PatchEmbedding((2, 2, 2), 8), "`patch_size`|a pair|(2, 2, 2)"),
    (lambda: layers.PatchEmbedding((2, 0), 8), "`patch_size`|positive integer|(2, 0)"),
    (lambda: layers.PatchEmbedding(2, 8), "`image_size`|learned|None"),
    (lambda: patches(position_encoding="sinusoidal", interpolate_positions=True), "positions=True|sinusoidal"),
    (lambda: patches()(IMAGES[:, :, :6]), "`inputs`|image_size=(6, 8)|(2, 6, 6, 3)|interpolate_positions"),
    (lambda: patches(position_encoding=None)(IMAGES.swapaxes(1, 2)), "`inputs`|image_size=(6, 8)|(2, 8, 6, 3)"),
    (lambda: patches()(IMAGES.transpose(0, 3, 1, 2)), "(batch, height, width, channels)|(2, 3, 6, 8)"),
    (lambda: patches()(IMAGES[..., :1]), "`inputs`|3 channels|(2, 6, 8, 1)"),
    (lambda: patches()(keras.Input((6, 8, None))), "`inputs`|channels|None"),
    (lambda: patches()(IMAGES[0]), "`inputs`|(batch, height, width, channels)|(6, 8, 3)"),
    (lambda: patches()(IDS), "`inputs`|(batch, height, width, channels)|(2, 5)"),
    (lambda: patches()(IMAGES.astype("uint8")), "`inputs`|floats|uint8"),
    *((lambda build=build, name=name: build(**{name: 4}), f"'{name}'|{builder}|docstring")
      for builder, build in IMAGE_BUILDERS.items()
      for name in ("vocab_size", "pad_id", "max_length", "combine", "position_dim", "scale_embedding", "packed")),
    (lambda: built("image_classifier")(IMAGES[:, :4]), "(None, 6, 8, 3)|(2, 4, 8, 3)"),
]  # fmt: skip

TRAINING = [
    (lambda: training.InverseSquareRoot(8, 30, total_steps=20, cooldown_steps=5), "`warmup_steps`|30|20"),
    (lambda: training.teacher_forcing(IDS[:1], IDS), "`source_ids`|`target_ids`|(1, 5)"),
    (lambda: training.TokenAccuracy()(IDS - 5, np.zeros((2, 5, 9))), "`y_true`|0 to 8|from -5 to -1"),
    (lambda: training.InverseSquareRoot(8, 3, total_steps=9, cooldown_steps=10),
     "`cooldown_steps`|`total_steps`|cooldown_steps=10|total_steps=9"),
    (lambda: training.InverseSquareRoot(8, cooldown_steps=10), "`total_steps`|`cooldown_steps`|total_steps=None"),
    (lambda: training.warmup_cosine(1.0, 9, 9), "`warmup_steps`|`total_steps`|warmup_steps=9|total_steps=9"),
    (lambda: training.warmup_cosine(1.0, 3, 9, final=2.0), "`final`|`peak`|final=2.0|peak=1.0"),
    (lambda: training.warmup_cosine(1.0, 3, 9, final=-0.1), "`final`|0|-0.1"),
    (lambda: txf.training.next_token_windows(np.arange(5), 5), "`ids`|length + 1 = 6|received 5"),
    (lambda: training.next_token_windows(IDS, 2), "`ids`|(number of tokens,)|(2, 5)"),
    (lambda: training.warmup_cosine(1.0, 3, 9, final="0"), "`final`|finite number|'0'"),
    (lambda: training.shift_labels(IDS + 0.0), "`ids` must be integers|float64"),
    (lambda: training.shift_labels(ops.convert_to_tensor(IDS > 2)), "`ids` must be integers|bool"),
    (lambda: training.shift_labels([[1], [2, 3]]), "`ids`|[[1], [2, 3]]"),
    (lambda: training.teacher_forcing(IDS + 0.0, IDS), "`source_ids` must be integers|float64"),
    (lambda: training.teacher_forcing(IDS, IDS + 0.0), "`target_ids` must be integers|float64"),
    (lambda: training.next_token_windows(np.arange(9.0), 3), "`ids` must be integers|float64"),
    (lambda: training.add_adapter(built("encoder"), rank=9), "`rank`|at most 8|9"),
    (lambda: training.layerwise_decay(keras.optimizers.Adam(), blocks=["encoder/*"]), "`blocks`|#|encoder/*"),
    (lambda: training.TokenCrossEntropy(pad_id=2**31), "`pad_id`|2147483648"),
    (lambda: training.shift_labels(IDS[:, :1]), "`ids`|two tokens|(2, 1)"),
    (lambda: training.teacher_forcing(IDS, IDS[:, :1]), "ids`|two tokens|(2, 1)"),
    (lambda: training.TokenCrossEntropy()(IDS, ops.zeros((2, 4, 11))), "target|2, 5|2, 4, 11"),
]  # fmt: skip

GENERATION = [
    (lambda: generate([]), "`prompt_ids`|at least one|none"),
    (lambda: generate(zeros(0, 3)), "`prompt_ids`|at least one|none"),
    (lambda: generate([[1, 2], []]), "`prompt_ids`|at least one token|empty"),
    (lambda: generate(zeros(1, 3)), "`prompt_ids`|at least one token|empty"),
    (lambda: generate([1, 2]), "`prompt_ids`|sequences of ids|()"),
    (lambda: generate(zeros(1, 2, 3)), "`prompt_ids`|sequences of ids|(2, 3)"),
    (lambda: generate([[1.5, 2.0]]), "`prompt_ids`|integer|float"),
    (lambda: generate([[3, -1]]), "`prompt_ids`|from 0 to 10|from -1 to 3"),
    (lambda: generate([[3, 11]]), "`prompt_ids`|from 0 to 10|from 3 to 11"),
    (lambda: answer([[3, 11]]), "`source_ids`|from 0 to 10|from 3 to 11"),
    (lambda: built("encoder_decoder", max_length=5).generate([[1]], max_new_tokens=5), "max_length=5|max_new_tokens=5"),
    (lambda: built("encoder_decoder", max_length=5).generate([[1] * 6], max_new_tokens=1), "max_length=5|6"),
    (lambda: generate([[3]], sampler=txf.generation.Greedy), "`sampler`|class Greedy"),
]  # fmt: skip

TABLE = [*SIZES, *COMBINATIONS, *ROTARY, *TENSORS, *VISION, *TRAINING, *GENERATION]


@pytest.mark.parametrize("call, words", TABLE, ids=[words for _, words in TABLE])
def test_is_refused(call, words):
    refused(call, words.split("|"))


@pytest.mark.parametrize("block", [layers.EncoderBlock, layers.DecoderBlock])
@pytest.mark.parametrize("width", [1, 16])
def test_a_block_stays_with_its_width(block, width):
    layer = block(np.int64(3), norm_placement="pre")
    assert json.loads(json.dumps(layer.get_config()))["num_heads"] == 3
    layer(np.zeros((2, 5, 12), "float32"))
    refused(lambda: layer(np.zeros((2, 5, width), "float32")), ["value 12", f"(2, 5, {width})"])
