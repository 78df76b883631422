"""A layer that decoding cannot know is tried on random weights: its steps are correct, or an error names the layer."""

import drawing
import keras
import numpy as np
import pytest
from keras import ops
from naive import NEW, PROMPTS, VOCABULARY, ids_input, naive

import keras_txf as txf

layers = txf.layers


class TwoTokens(keras.layers.Layer):
    """Mixes a token with the one before it: no attention that decodes."""

    def __init__(self, gate=1.0, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.gate = self.add_weight(name="gate", shape=(), initializer=keras.initializers.Constant(gate))

    def call(self, x):
        return x + self.gate * ops.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]


class Separators(keras.layers.Layer):
    """An embedding that counts the tokens 2."""

    def build(self, shape):
        self.table = self.add_weight(name="table", shape=(8, 8))

    def call(self, ids):
        return ops.take(self.table, ops.minimum(ops.cumsum(ops.cast(ids == 2, "int32"), axis=1), 7), axis=0)


class Causal(keras.layers.Layer):
    """An attention with a cache, and its fault."""

    def __init__(self, fault=None, **kwargs):
        super().__init__(**kwargs)
        self.fault, self.qkv, self.turn = fault, keras.layers.Dense(24), layers.Rotary()

    def build(self, shape):
        self.qkv.build(shape)

    def call(self, x, mask=None, cache=None):
        length = ops.shape(x)[1]
        query, key, value = (ops.expand_dims(y, 2) for y in ops.split(self.qkv(x), 3, -1))
        if self.fault == "mixes":
            key = key + ops.pad(key, ((0, 0), (1, 0), (0, 0), (0, 0)))[:, :-1]
        positions = ops.arange(length) if cache is None or self.fault == "arange" else cache.positions
        query, key = self.turn.rotate(query, positions), self.turn.rotate(key, positions)
        allowed = ops.ones((1, length, length), "bool")
        allowed = allowed if self.fault == "leaks" else ops.tril(allowed)
        if mask is not None:
            allowed = ops.logical_and(allowed, mask[:, None])
        if cache is not None:
            key, value = cache.update(key, value)
            allowed = cache.attention_mask[:, 0]
        logits = ops.where(allowed, ops.einsum("btnd,bsnd->bts", query, key), -1e9)
        return ops.einsum("bts,bsnd->btd", ops.softmax(logits), value)


class Sum(keras.layers.Layer):
    """A sum of all tokens so far, whose alternatives in a step of a beam search share one state if `split` is False."""

    def __init__(self, split=True, **kwargs):
        super().__init__(**kwargs)
        self.split = split

    def call(self, x, cache=None):
        if cache is None:
            return ops.cumsum(x, axis=1)
        x = cache.split(x) if self.split else x
        x = x if cache.mask is None else ops.where(cache.mask[..., None], x, 0)
        x = ops.cumsum(x, axis=1) + cache.read_state("sum", ops.zeros_like(x[:, 0]))[: len(x), None]
        cache.write_state("sum", ops.repeat(x[:, -1], 1 if self.split else ops.shape(x)[1], axis=0))
        return cache.join(x) if self.split else x


class HubBlock(keras.layers.Layer):
    """An attention that is called as the `TransformerDecoder` of KerasHub: with keys and values in one tensor."""

    num_heads = 2

    def build(self, shape):
        self.qkv = keras.layers.Dense(24)
        self.qkv.build(shape)

    def call(
        self, decoder_sequence, encoder_sequence=None, decoder_padding_mask=None, decoder_attention_mask=None,
        self_attention_cache=None, self_attention_cache_update_index=None, cross_attention_cache=None,
        use_causal_mask=True,
    ):  # fmt: skip
        shape = ops.shape(decoder_sequence)
        heads = ops.reshape(self.qkv(decoder_sequence), (*shape[:2], 3, 2, 4))
        pairs, allowed = ops.swapaxes(heads[:, :, 1:], 1, 2), decoder_attention_mask
        if use_causal_mask:
            allowed = ops.tril(ops.ones((1, shape[1], shape[1]), "bool"))
        if self_attention_cache is not None:
            start = [0, 0, self_attention_cache_update_index, 0, 0]
            pairs = ops.slice_update(self_attention_cache, start, pairs)
        logits = ops.where(allowed[:, None], ops.einsum("btnh,bsnh->bnts", heads[:, :, 0], pairs[:, 0]), -1e9)
        x = decoder_sequence + ops.reshape(ops.einsum("bnts,bsnh->btnh", ops.softmax(logits), pairs[:, 1]), shape)
        return x if self_attention_cache is None else (x, pairs)

    def compute_output_shape(self, shape):
        return shape


class MeanOfContext(keras.layers.Layer):
    """An attention to a context that takes no cache."""

    def call(self, x, context):
        return x + ops.mean(context, axis=1, keepdims=True)


MIXING = {
    "mine": (lambda x: TwoTokens(name="mine")(x), "mine"),
    "behind a gate that begins at 0": (lambda x: TwoTokens(0.0, name="gated")(x), "gated"),
    "average": (lambda x: x - ops.mean(x, axis=1, keepdims=True), "mean"),
    "sees all": (lambda x: layers.EncoderBlock(2, name="sees_all")(x), "sees_all"),
    "in a block": (lambda x: layers.DecoderBlock(2, feed_forward=TwoTokens(name="within"))(x), "within"),
    "far back": (lambda x: layers.DecoderBlock(2, feed_forward=keras.layers.Conv1D(
        8, 2, dilation_rate=100, padding="causal", name="far"))(x), "far"),
    "keys mixed": (lambda x: Causal("mixes", name="mixes")(x), "mixes"),
    "positions from 0": (lambda x: Causal("arange", name="arange")(x), "arange"),
    "no causal mask": (lambda x: Causal("leaks", name="leaks")(x), "leaks"),
    "beams in one state": (lambda x: Sum(False, name="one_state")(x), "one_state"),
    "separators": (lambda x: x + Separators(name="separators")(ids_of(x)), "separators"),
}  # fmt: skip


def ids_of(x):
    """The ids of the model of `test_a_layer_that_mixes_positions_is_an_error_that_names_it`."""
    return next(tensor for tensor in keras.utils.get_source_inputs(x))


@pytest.mark.parametrize("case", MIXING)
def test_a_layer_that_mixes_positions_is_an_error_that_names_it(case):
    mix, name = MIXING[case]
    ids = ids_input()
    x = layers.DecoderBlock(2)(layers.PositionalEmbedding(VOCABULARY, 8, pad_id=None)(ids))
    model = keras.Model(ids, keras.layers.Dense(VOCABULARY)(mix(x)))
    with pytest.raises(ValueError, match=f"layer .*'{name}"):
        txf.models.generative(model)


@drawing.not_on_jax
def test_layers_that_pass_the_trial_generate():
    ids = ids_input()
    x = keras.layers.Embedding(VOCABULARY, 8)(ids)
    model = drawing.randomize(
        keras.Model(ids, keras.layers.Dense(VOCABULARY)(Causal()(x) + Sum()(x) + HubBlock()(x))), seed=5
    )
    found = txf.models.generative(model).generate(PROMPTS, NEW)
    np.testing.assert_array_equal(found[:, -NEW:], naive(model, PROMPTS, {}))


@drawing.not_on_jax
def test_an_attention_of_the_users_may_hide_padding():
    model = txf.models.decoder_generator(VOCABULARY, 1, 8, attention=Causal(), position_encoding="sinusoidal")
    found = model.generate([*PROMPTS, [4]], NEW)
    np.testing.assert_array_equal(found[:2, 3:], naive(model, PROMPTS, {}))


class Wrapped(keras.layers.Layer):
    def build(self, shape):
        self.attention = keras.layers.MultiHeadAttention(2, 4)
        self.attention.build(shape, shape)

    def call(self, x):
        return x + self.attention(x, x, use_causal_mask=True)


def test_keras_attention_within_a_layer_is_sent_into_the_graph():
    ids = ids_input()
    x = Wrapped(name="mine")(keras.layers.Embedding(VOCABULARY, 8)(ids))
    with pytest.raises(ValueError, match="'mine' .*MultiHeadAttention.* decodes in the graph of the model, not within"):
        txf.models.generative(keras.Model(ids, keras.layers.Dense(VOCABULARY)(x)))


def test_a_block_whose_attention_takes_no_cache_is_named():
    model = txf.models.decoder_generator(VOCABULARY, 1, 8, attention=TwoTokens())
    with pytest.raises(ValueError, match="'decoder_0' .*: `cache` must be an argument of the `call` of .*'attention'"):
        model.generate([[5]], 2)
    context = keras.Input((None, 8), name="context")
    ids = ids_input()
    x = layers.PositionalEmbedding(VOCABULARY, 8)(ids)
    x = layers.DecoderBlock(2, cross_attention=MeanOfContext(), name="looks")(x, context)
    message = "'looks' .*MeanOfContext.* has no attribute 'project_context'; see `txf.layers.Cache`"
    with pytest.raises(ValueError, match=message):
        txf.models.generative(keras.Model([ids, context], keras.layers.Dense(VOCABULARY)(x)))
