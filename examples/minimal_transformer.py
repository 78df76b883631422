"""The Transformer of "Attention Is All You Need" in plain sight: it learns to add numbers, as "58+67" -> "125".

    python examples/minimal_transformer.py

No builder: layers of this package, Keras' own, and a residual stream. `encoder_block` and `decoder_block` below compute
what the layers `EncoderBlock` and `DecoderBlock` do; `--blocks` puts these in their place.
"""

import argparse

import keras_txf as txf  # before Keras: the package keeps TensorFlow's start-up lines away

# isort: split
import keras
import numpy as np
from keras import layers, ops

TOKENS = ["<pad>", "<start>", "<end>", "+", *"0123456789"]  # ids are places in this list
PAD, START, END = 0, 1, 2


def feed_forward(x, name):
    """(B, T, D) -> (B, T, D), each token by itself."""
    hidden = layers.Dense(4 * x.shape[-1], activation="relu", name=f"{name}_hidden")(x)  # (B, T, 4 D)
    return layers.Dense(x.shape[-1], name=f"{name}_output")(hidden)


def add_and_norm(x, update, name):
    """LayerNorm(x + Dropout(update)): the residual stream of the paper. Both layers keep the padding mask."""
    x = layers.Add(name=f"{name}_add")([x, layers.Dropout(0.1, name=f"{name}_dropout")(update)])
    return layers.LayerNormalization(epsilon=1e-5, name=f"{name}_norm")(x)


def encoder_block(x, heads, name):
    """Every token of the source looks at all others, (B, S, D) -> (B, S, D)."""
    attended = txf.layers.MultiHeadSelfAttention(heads, name=f"{name}_attention")(x)
    x = add_and_norm(x, attended, f"{name}_attention")
    return add_and_norm(x, feed_forward(x, f"{name}_feed_forward"), f"{name}_feed_forward")


def decoder_block(x, context, heads, name):
    """Every token looks at those before it, then at the source: (B, T, D) and (B, S, D) -> (B, T, D)."""
    attended = txf.layers.MultiHeadSelfAttention(heads, causal=True, name=f"{name}_attention")(x)
    x = add_and_norm(x, attended, f"{name}_attention")
    attended = txf.layers.CrossAttention(heads, name=f"{name}_cross_attention")(x, context)
    x = add_and_norm(x, attended, f"{name}_cross_attention")
    return add_and_norm(x, feed_forward(x, f"{name}_feed_forward"), f"{name}_feed_forward")


def transformer(num_layers=2, dim=64, heads=4, blocks=False):
    """A functional model: {"source_ids": (B, S), "target_ids": (B, T)} -> logits of the next token (B, T, V)."""
    source = keras.Input((None,), dtype="int32", name="source_ids")
    target = keras.Input((None,), dtype="int32", name="target_ids")
    # Tokens times sqrt(D), plus sinusoids. The mask of the padding goes along with the vectors.
    context = txf.layers.PositionalEmbedding(len(TOKENS), dim, scale=True, name="source_embedding")(source)
    for i in range(num_layers):
        name = f"encoder_{i}"
        context = txf.layers.EncoderBlock(heads, name=name)(context) if blocks else encoder_block(context, heads, name)
    embedding = txf.layers.PositionalEmbedding(len(TOKENS), dim, scale=True, name="target_embedding")
    x = embedding(target)
    for i in range(num_layers):
        name = f"decoder_{i}"
        if blocks:
            x = txf.layers.DecoderBlock(heads, cross_attention=True, name=name)(x, context)
        else:
            x = decoder_block(x, context, heads, name)
    logits = embedding(x, reverse=True)  # the same table: token · hidden state
    return txf.models.generative(keras.Model({"source_ids": source, "target_ids": target}, logits))


def sums(seed=1):
    """All additions of two numbers below 100, in a random order, and their results, as texts."""
    pairs = np.random.default_rng(seed).permutation(10_000)
    return [f"{pair // 100}+{pair % 100}" for pair in pairs], [str(pair // 100 + pair % 100) for pair in pairs]


def encode(texts, length, end=()):
    """Texts -> ids int32 (B, length), with the token END if asked for, padded with PAD."""
    rows = [[*map(TOKENS.index, text), *end] for text in texts]
    return np.array([row + [PAD] * (length - len(row)) for row in rows], "int32")


def decode(rows):
    """Ids -> texts, up to END."""
    return ["".join(TOKENS[token] for token in row if token not in (PAD, START, END)) for row in rows]


def loss(targets, logits):
    """The mean cross-entropy of the tokens that are not padding."""
    each = ops.sparse_categorical_crossentropy(targets, logits, from_logits=True)  # (B, T)
    real = ops.cast(targets != PAD, each.dtype)
    return ops.sum(each * real) / ops.sum(real)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", action="store_true", help="EncoderBlock and DecoderBlock")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--held-out", type=int, default=1000, help="additions that training does not see")
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    questions, answers = sums()
    source, target = encode(questions, 5), encode(answers, 4, end=[END])
    # Teacher forcing: the decoder reads START 1 2 5 and learns 1 2 5 END.
    inputs = np.pad(target[:, :-1], ((0, 0), (1, 0)), constant_values=START)
    seen = slice(options.held_out, None)
    model = transformer(blocks=options.blocks)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    data = {"source_ids": source[seen], "target_ids": inputs[seen]}
    print("Training on sums; the first step compiles for some seconds.", flush=True)
    model.fit(data, target[seen], batch_size=64, epochs=options.epochs)

    asked, wanted = questions[: options.held_out], answers[: options.held_out]
    written = decode(model.generate(encode(asked, 5), max_new_tokens=4, start_id=START, stop_ids=END))
    print(*[f"{question} = {result}" for question, result in zip(asked[:5], written)], sep="\n")
    print(f"{np.mean(np.array(written) == wanted):.1%} of {len(asked):,} new sums are right")


if __name__ == "__main__":
    main()
