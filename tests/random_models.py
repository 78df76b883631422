"""Random causal models wired by hand, as users wire them, and what `generate` must return for each.

A model is drawn from a seed. The oracle is the model itself: its log-probabilities of the sequences that `generate`
returns, read in one pass over each sequence alone, without padding.
"""

import keras
import numpy as np
from keras import ops

import keras_txf as txf

V, D, N = 23, 16, 2  # tokens, width, heads
L = keras.layers


class ValueResidual(L.Layer):
    """An attention of one's own that mixes a second tensor into its values."""

    def __init__(self, rotary=False, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.rotary, self.turn = rotary, txf.layers.Rotary() if rotary else None

    def build(self, inputs_shape, first_shape=None):
        self.qkv = L.Dense(3 * D, name="qkv")
        self.qkv.build(inputs_shape)

    def call(self, inputs, first=None, cache=None):
        query, key, value = (ops.expand_dims(x, 2) for x in ops.split(self.qkv(inputs), 3, -1))
        if first is not None:
            value = 0.5 * value + 0.5 * ops.expand_dims(first, 2)
        length = ops.shape(inputs)[1]
        if self.rotary:
            positions = ops.arange(length, dtype="int32") if cache is None else cache.positions
            query, key = self.turn.rotate(query, positions), self.turn.rotate(key, positions)
        allowed = ops.tril(ops.ones((1, length, length), "bool"))
        if cache is not None:
            key, value = cache.update(key, value)
            allowed = cache.attention_mask[:, 0]
        logits = ops.einsum("btnd,bsnd->bts", query, key) / 4.0
        weights = ops.softmax(ops.where(allowed, logits, -1e9))
        return ops.einsum("bts,bsnd->btd", weights, value)

    def compute_output_spec(self, inputs, first=None, cache=None):
        return keras.KerasTensor(inputs.shape, inputs.dtype)


class Drawn:
    """A model of a seed: `model`, its `inputs` beside the ids, and the `features` that it has."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        keras.utils.set_random_seed(seed)
        self.features, self.inputs, self.shared = [], {}, {}
        self.has_mask = False
        self.ids = keras.Input((None,), dtype="int32", name=self.one_of("token_ids", "target_ids", "token_ids"))
        self.contexts = [self.context(i) for i in range(self.one_of(0, 0, 1, 2))]
        self.first = x = self.embed()
        for _ in range(self.random.integers(1, 5)):
            x = self.step(x)
        logits = L.Dense(V, name="logits")(self.step(x, POSITION_WISE))
        key = self.one_of(self.ids.name, self.ids.name, "prompt") if len(self.inputs) == 0 else self.ids.name
        self.ids_key = key
        given = {key: self.ids, **{name: tensor for name, (tensor, _) in self.inputs.items()}}
        outputs = self.one_of(logits, logits, {"logits": logits, "hidden": x})
        self.model = keras.Model(given if len(given) > 1 or self.random.random() < 0.5 else self.ids, outputs)
        for weight in self.model.weights:
            if "float" in weight.dtype:
                values = self.random.normal(size=weight.shape) / np.sqrt(max(1, np.prod(weight.shape[:-1])))
                weight.assign(values * 1.2 + (1 if "gamma" in weight.name or weight.name == "scale" else 0))

    def one_of(self, *values):
        return values[self.random.integers(len(values))]

    def context(self, number):
        """An encoder's outputs, or float features."""
        name = f"source_{number}"
        if self.random.random() < 0.5:
            self.features.append("encoder")
            tensor = keras.Input((None,), dtype="int32", name=name)
            encoder = txf.models.encoder(V, num_layers=1, dim=D, num_heads=N, dropout=0.0, name=f"encoder_of_{name}")
            length = self.random.integers(2, 6)
            ids = self.random.integers(1, V, (3, length))
            ids[0, length - 1 :] = 0
            self.inputs[name] = tensor, ids
            return encoder(tensor)
        self.features.append("features")
        tensor = keras.Input((4, D), name=name)
        self.inputs[name] = tensor, self.random.normal(size=(3, 4, D)).astype("float32")
        return L.Dense(D, activation="tanh")(tensor)

    def embed(self):
        kind = self.one_of("ours", "ours", "keras", "learned", "masked")
        self.features.append(kind)
        if kind == "keras":
            return L.Embedding(V, D)(self.ids)
        if kind == "masked":
            self.has_mask = True
            return L.Embedding(V, D, mask_zero=True)(self.ids)
        options = {"position_encoding": "learned", "max_length": 40} if kind == "learned" else {}
        pad_id = self.one_of(0, None)
        self.has_mask = pad_id is not None
        return txf.layers.PositionalEmbedding(V, D, pad_id=pad_id, **options)(self.ids)

    def step(self, x, kinds=None):
        kinds = kinds or STEPS
        name = self.one_of(*kinds)
        found = kinds[name](self, x)
        if found is not None:
            self.features.append(name)
        return x if found is None else found


def layer(name, make):
    """A step that calls a layer, sometimes one that was called before."""

    def call(drawn, x):
        known = drawn.shared.setdefault(name, [])
        if known and drawn.random.random() < 0.3:
            drawn.features.append("shared")
            chosen = known[0]
        else:
            chosen = make(drawn)
            known.append(chosen)
        return chosen(x)

    return call


def cross(drawn, x):
    if not drawn.contexts:
        return None
    context = drawn.one_of(*drawn.contexts)
    if drawn.random.random() < 0.5:
        return txf.layers.DecoderBlock(N, cross_attention=True, dropout=0.0)(x, context)
    attend = drawn.one_of(
        txf.layers.CrossAttention(N), L.MultiHeadAttention(N, D // N), L.GroupQueryAttention(D // N, N, 1)
    )
    return L.Add()([x, attend(x, context)])


def earlier(drawn, x):
    """Attention to the output of an earlier layer (YOCO)."""
    attention = txf.layers.CrossAttention(N, causal=True)
    if drawn.random.random() < 0.5:
        return txf.layers.DecoderBlock(N, cross_attention=attention, dropout=0.0)(x, drawn.first)
    return L.Add()([x, attention(x, drawn.first)])


def placed(drawn, x):
    """Positions that the graph counts: the tokens 7 so far, or every second token."""
    of_ids = drawn.one_of(
        ops.cumsum(ops.equal(drawn.ids, 7), axis=1), ops.cumsum(ops.ones_like(drawn.ids), axis=1) // 2
    )
    if drawn.random.random() < 0.5:
        return txf.layers.DecoderBlock(N, position="rotary", dropout=0.0)(x, positions=of_ids)
    return x + txf.layers.PositionalEmbedding(V, D, pad_id=0 if drawn.has_mask else None)(drawn.ids, positions=of_ids)


def masked(drawn, x):
    """A mask by hand that hides a token."""
    return txf.layers.DecoderBlock(N, dropout=0.0)(x, mask=ops.not_equal(drawn.ids, 7))


def nested(drawn, x):
    inner = keras.Input((None, D))
    y = txf.layers.EncoderBlock(N, causal=True, dropout=0.0)(L.Dense(D)(inner))
    model = keras.Model(inner, y)
    y = model(x)
    return model(y) if drawn.random.random() < 0.3 else y


def decoder_of(drawn, x):
    if not drawn.contexts:
        return None
    model = txf.models.decoder(V, num_layers=1, dim=D, num_heads=N, dropout=0.0, pad_id=0 if drawn.has_mask else None)
    logits = model({"target_ids": drawn.ids, "context": drawn.one_of(*drawn.contexts)})
    return x + L.Dense(D)(logits)


def prefix(drawn, x):
    """Float vectors before the tokens, which are taken off again."""
    name = f"prefix_{len(drawn.inputs)}"
    tensor = keras.Input((3, D), name=name)
    drawn.inputs[name] = tensor, drawn.random.normal(size=(3, 3, D)).astype("float32")
    y = L.Concatenate(axis=1)([L.Dense(D)(tensor), x])
    return txf.layers.DecoderBlock(N, dropout=0.0)(y)[:, 3:]


def bidirectional(drawn, x):
    return txf.layers.EncoderBlock(N, dropout=0.0)(x)


def recurrent(drawn, x):
    make = drawn.one_of(
        L.LSTM, L.GRU, L.SimpleRNN, lambda dim, **kwargs: L.RNN([L.GRUCell(8), L.LSTMCell(dim)], **kwargs)
    )
    return make(D, return_sequences=True)(x)


POSITION_WISE = {
    "dense": layer("dense", lambda drawn: L.Dense(D, activation=drawn.one_of("tanh", "gelu"))),
    "norm": layer("norm", lambda drawn: drawn.one_of(L.LayerNormalization, L.RMSNormalization)()),
    "feed forward": layer("ff", lambda drawn: txf.layers.FeedForward(2 * D)),
    "skip": lambda drawn, x: L.Add()([x, drawn.first]),
    "plus": lambda drawn, x: x + 0.5 * drawn.first,
    "concatenation": lambda drawn, x: L.Dense(D)(L.Concatenate()([x, drawn.first])),
    "ids again": lambda drawn, x: x + L.Embedding(V, D)(drawn.ids),
    "gate": lambda drawn, x: x * ops.sigmoid(L.Dense(D)(drawn.first)),
}
ATTENTION = {
    "block": layer("block", lambda drawn: txf.layers.DecoderBlock(
        N, dropout=0.0, norm_placement=drawn.one_of("pre", "post"), position=drawn.one_of(None, "rotary", "alibi"),
        window=drawn.one_of(None, None, 3), num_key_value_heads=drawn.one_of(None, 1),
    )),
    "encoder block": layer("encoder block", lambda drawn: txf.layers.EncoderBlock(N, causal=True, dropout=0.0)),
    "attention": layer("attention", lambda drawn: txf.layers.MultiHeadSelfAttention(
        N, causal=True, position=drawn.one_of(None, "rotary"), window=drawn.one_of(None, 4)
    )),
    "own attention": layer("own", lambda drawn: ValueResidual(drawn.one_of(False, True))),
    "value residual": lambda drawn, x: x + ValueResidual()(x, drawn.first),
    "cross": cross, "mask by hand": masked, "nested": nested, "decoder": decoder_of, "prefix": prefix,
    "earlier": earlier, "placed": placed,
}  # fmt: skip
STATES = {
    "recurrent": recurrent,
    "convolution": lambda drawn, x: L.Conv1D(D, 3, padding="causal", dilation_rate=drawn.one_of(1, 2))(x),
    "keras attention": lambda drawn, x: L.MultiHeadAttention(N, D // N)(x, x, use_causal_mask=True),
}
STEPS = {**POSITION_WISE, **ATTENTION, **ATTENTION, **STATES}


def log_probs_of_model(drawn, row, ids):
    """The log-probabilities of the tokens of a sequence, by the model itself: (T - 1, V) of ids (T,)."""
    inputs = {name: value[row : row + 1] for name, (_, value) in drawn.inputs.items()}
    ids = np.array([ids], "int32")
    given = {drawn.ids_key: ids, **inputs}
    outputs = drawn.model(given if isinstance(drawn.model.input, dict) else ids, training=False)
    logits = outputs["logits"] if isinstance(outputs, dict) else outputs
    return ops.convert_to_numpy(ops.log_softmax(ops.cast(logits, "float32")))[0]


def check(seed, new=5):
    """Returns how a drawn model fares: "refused: why", or the largest error of log-probabilities."""
    drawn = Drawn(seed)
    try:
        model = txf.models.generative(drawn.model)
    except ValueError as error:
        return drawn, f"refused: {error}"
    prompts = [list(drawn.random.integers(1, V, length)) for length in (6, 2, 4)]
    inputs = {name: value for name, (_, value) in drawn.inputs.items()} or None
    worst = 0.0
    for options in ({}, {"sampler": txf.generation.Beam(3, length_penalty=0.0), "num_return_sequences": 3}):
        try:
            found = model.generate(prompts, new, return_scores=True, inputs=inputs, **options)
        except ValueError as error:
            return drawn, f"refused: {error}"
        ids, log_probs = found.ids, found.log_probs
        if not options:
            ids, log_probs = ids[:, None], log_probs[:, None]
        for row, prompt in enumerate(prompts):
            for sequence, scores in zip(ids[row], log_probs[row]):
                whole = sequence[: len(prompt) + new]
                own = log_probs_of_model(drawn, row, whole[:-1])[len(prompt) - 1 :]
                if drawn.has_mask:
                    own[:, 0] = -np.inf  # padding is never chosen
                    if not options:  # a beam search adds what the model says, as in transformers
                        own = own - np.log(np.exp(own).sum(-1, keepdims=True))
                chosen = own[np.arange(new), whole[len(prompt) :]]
                worst = max(worst, np.abs(chosen - scores[:new]).max())
                if not options:
                    worst = max(worst, (own.max(-1) - chosen).max())
    return drawn, worst


def generating(first, number, prompts):
    """Yields drawn models that generate: the seed, the model, and its inputs beside the ids, or None."""
    for seed in range(first, first + number):
        drawn = Drawn(seed)
        inputs = {name: value for name, (_, value) in drawn.inputs.items()} or None
        try:
            model = txf.models.generative(drawn.model)
            model.generate(prompts, 2, inputs=inputs)
        except ValueError:  # see test_random_models.py
            continue
        yield seed, model, inputs
