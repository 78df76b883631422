"""What attention and the blocks must not depend on, over drawn options. Of padding see test_model_invariances.py.

Legend: B batch, T length, S context length.
"""

import drawing
import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keras_txf as txf
from keras_txf.backend.keras_private import layers_by_attribute, own_trainable_by_nature
from keras_txf.checkpoints.parts import block_parts
from keras_txf.ops import attention as kernel

B, T, S, DIM = 2, 7, 5, drawing.DIM

# A sequence padded on the right, and one padded on the left.
MASK = np.array([[1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1]], "bool")
CONTEXT_MASK = np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]], "bool")
HIDDEN = drawing.normal(B, T, DIM)


@drawing.few(6)
@given(drawing.attention_options(), st.booleans(), st.sampled_from(["TT", "BTT", "B1TT", "BNTT"]))
def test_all_masks_together_equal_their_and(options, causal, rank):
    if options["position"] == "relative":  # whose buckets would depend on `causal`
        options["position"] = txf.layers.RelativeBias(options["num_heads"], num_buckets=8, max_distance=5)
    layer = txf.layers.MultiHeadSelfAttention(**options, causal=causal)
    drawing.built(layer, HIDDEN)
    plain = drawing.built(txf.layers.MultiHeadSelfAttention(**{**options, "window": None}), HIDDEN)
    plain.set_weights(layer.get_weights())
    lengths = {"B": B, "T": T, "N": options["num_heads"], "1": 1}
    explicit = np.random.default_rng(4).random([lengths[letter] for letter in rank]) < 0.7
    segments = np.array([[1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 3, 3]])
    distance = np.subtract.outer(np.arange(T), np.arange(T))
    full = np.ones((B, options["num_heads"], T, T), "bool")
    full &= explicit[:, None] if rank == "BTT" else explicit
    full &= MASK[:, None, None] | (causal & (distance == 0))  # so that padding does not attend to later tokens
    full &= segments[:, None, :, None] == segments[:, None, None]
    full &= (distance >= 0) | (not causal)
    full &= np.abs(distance) < (options["window"] or T)
    masks = {"mask": MASK, "attention_mask": explicit, "segment_ids": segments}
    output, scores = layer(HIDDEN, **masks, return_attention_scores=True)
    expected, expected_scores = plain(HIDDEN, attention_mask=full, return_attention_scores=True)
    drawing.assert_same(output, expected)
    drawing.assert_same(scores, expected_scores)
    drawing.assert_same(layer(HIDDEN, **masks), expected)
    assert not drawing.array(scores)[~full].any()
    sums = drawing.array(scores).sum(-1)
    if options["sinks"]:  # they take the rest
        assert (sums <= full.any(-1) + 1e-5).all()
    else:
        np.testing.assert_allclose(sums, full.any(-1), atol=1e-5)


@drawing.few(6)
@given(drawing.attention_options(exclude=["window", "position"]))
def test_a_fully_masked_context_has_no_influence(options):
    context = drawing.normal(B, S, 6, seed=2)
    layer = drawing.built(txf.layers.CrossAttention(**options), HIDDEN, context)
    nothing = np.array([[True] * S, [False] * S])
    other = context.copy()
    other[1] *= -20
    before, scores = layer(HIDDEN, context, context_mask=nothing, return_attention_scores=True)
    drawing.assert_same(layer(HIDDEN, other, context_mask=nothing), before)
    bias = layer.output_dense.bias if options["use_bias"] else np.zeros(DIM)
    drawing.assert_same(before[1], np.broadcast_to(drawing.array(bias), (T, DIM)), 1e-6)
    assert not drawing.array(scores)[1].any()


@pytest.mark.slow
@drawing.few(6)
@given(drawing.block_options(), st.sampled_from(["encoder", "causal encoder", "decoder", "cross decoder"]))
def test_inference_has_no_dropout(options, kind):
    inputs, cls = [HIDDEN], txf.layers.DecoderBlock if "decoder" in kind else txf.layers.EncoderBlock
    options |= {"causal": True} if "causal" in kind else {}
    if "cross" in kind:
        inputs.append(drawing.normal(B, S, 6, seed=9))
        options["cross_attention"] = True
    rates = dict.fromkeys(["dropout", "attention_dropout", "feed_forward_dropout", "stochastic_depth"], 0.5)
    none = dict.fromkeys(rates, 0.0)

    def build(rates):
        """Order and paths of the weights depend on which parts are passed: equal attributes get equal values."""
        own = block_parts({**options, **rates}, cls is txf.layers.DecoderBlock, "cross" in kind)
        layer = drawing.built(cls(**own), *inputs)
        for attribute, inner in layers_by_attribute(layer).items():
            for weight in own_trainable_by_nature(inner):
                weight.assign(values.setdefault((attribute, weight.name), drawing.array(weight)))
        return layer

    values = {}
    block, still = map(build, (rates, none))
    expected, *expected_scores = still(*inputs, return_attention_scores=True)
    for call in ({}, {"training": False}):
        output, *scores = block(*inputs, return_attention_scores=True, **call)
        drawing.assert_same(output, expected, 1e-6)
        for own, other in zip(scores, expected_scores, strict=True):
            drawing.assert_same(own, other, 1e-6)
        drawing.assert_same(block(*inputs, **call), expected)
    for name in rates:
        alone = build({**none, name: 0.5})
        differences = [drawing.difference(alone(*inputs, training=True), expected) for _ in range(4)]
        assert max(differences) > 1e-3, name  # a depth of one or two rows may stay as it is


def test_stochastic_depth_leaves_out_whole_sublayers_sample_by_sample():
    residual = txf.layers.Residual(stochastic_depth=0.5)
    block = txf.layers.EncoderBlock(2, norm_placement="pre", dropout=0.0, residual=residual)
    x = np.repeat(drawing.normal(1, 5, 8), 64, axis=0)
    rows = drawing.array(block(x, training=True)).reshape(64, -1)
    assert len(np.unique(rows.round(4), axis=0)) == 4  # both sublayers, either, none


@pytest.mark.parametrize("attention_dropout", [0.0, 0.5])
def test_inference_uses_the_fused_kernel(monkeypatch, attention_dropout):
    """Keras' own attention leaves it as soon as it has a dropout rate, even at inference."""
    taken = []
    original = kernel._fused
    monkeypatch.setattr(kernel, "_fused", lambda *args: taken.append(1) or original(*args))
    options = dict(num_heads=2, attention_dropout=attention_dropout, position="rotary", cross_attention=True)
    block = txf.layers.DecoderBlock(**block_parts(options, causal=True, cross_attention=True))
    context = drawing.normal(B, S, 6)
    block(HIDDEN, context)
    block(HIDDEN, context, mask=MASK, context_mask=CONTEXT_MASK, training=False)
    assert len(taken) == (4 if drawing.fused_backend() else 0)
    block(HIDDEN, context, return_attention_scores=True)
    assert len(taken) == (4 if drawing.fused_backend() else 0)
    block(HIDDEN, context, training=True)  # active dropout needs the plain path
    assert len(taken) == (4 if attention_dropout else 6) * drawing.fused_backend()


def test_dropout_leaves_the_scores_and_the_mean():
    keras.utils.set_random_seed(0)
    many = np.repeat(HIDDEN[:1], 1000, axis=0)
    layer = drawing.built(txf.layers.MultiHeadSelfAttention(2, dropout=0.5), many)
    still, scores = layer(many, return_attention_scores=True)
    moved, moved_scores = layer(many, return_attention_scores=True, training=True)
    drawing.assert_same(moved_scores, scores, 1e-6)
    spread = drawing.array(moved).std(axis=0)
    assert spread.min() > 0.1
    # Six standard errors of a mean over 1,000 draws.
    assert (np.abs(drawing.array(moved).mean(axis=0) - drawing.array(still)[0]) < 6 * spread / 1000**0.5).all()


@pytest.mark.parametrize("cls, options", [
    (txf.layers.MultiHeadSelfAttention, {"position": "rotary"}), (txf.layers.EncoderBlock, {"position": "relative"}),
    (txf.layers.DecoderBlock, {}),
])  # fmt: skip
def test_build_makes_every_weight(cls, options):
    layer = cls(2, **options)
    layer.build((B, T, DIM))
    before = [weight.path for weight in layer.weights]
    layer(HIDDEN)
    assert [weight.path for weight in layer.weights] == before


@pytest.mark.parametrize("position", ["rotary", "alibi", "relative"])
def test_unsigned_positions_are_accepted(position):
    """The distance to what came before is negative, which such integers do not know."""
    layer = txf.layers.MultiHeadSelfAttention(2, position=position, causal=True)
    expected = layer(HIDDEN, positions=np.arange(T, dtype="int32"))
    for dtype in ("uint8", "int64"):
        drawing.assert_same(layer(HIDDEN, positions=np.arange(T, dtype=dtype)), expected, 1e-6)
