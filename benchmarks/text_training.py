"""The second part of text.py: real tokens per second of training a translation model, padding not counted.

The same pairs, model and number of pairs a step; only the batches differ, and none is left half full at the end of an
epoch. KerasHub's is the recipe of its translation tutorial at the same sizes: WordPiece, `StartEndPacker` to a fixed
length, its encoder and decoder blocks without dropout, much of it before a Dense layer of probabilities, RMSprop.
"""

import keras
import keras_hub
import numpy as np
import tensorflow as tf
from timing import interleaved

import keras_txf as txf

LAYERS, DIM, HEADS, HIDDEN = 4, 128, 4, 256
SPECIAL = ["[PAD]", "[UNK]", "[START]", "[END]"]
LENGTH = 40  # the most tokens of a sentence, the tutorial's fixed length
ROW = 64  # of a packed row's target
WARMUP = 2


def our_model(size, dropout, packed=False):
    model = txf.models.encoder_decoder(
        size,
        size,
        LAYERS,
        DIM,
        HEADS,
        intermediate_dim=HIDDEN,
        dropout=dropout,
        position_encoding="learned",
        max_length=LENGTH,
        share_embeddings=False,
        packed=packed,
    )
    model.compile(keras.optimizers.Adam(1e-4), txf.training.TokenCrossEntropy())
    return model


def hub_model(size):
    def embedded(name):
        ids = keras.Input((None,), dtype="int32", name=name)
        return ids, keras_hub.layers.TokenAndPositionEmbedding(size, LENGTH, DIM)(ids)

    source, context = embedded("source_ids")
    target, x = embedded("target_ids")
    for _ in range(LAYERS):
        context = keras_hub.layers.TransformerEncoder(HIDDEN, HEADS)(context)
    for _ in range(LAYERS):
        x = keras_hub.layers.TransformerDecoder(HIDDEN, HEADS)(x, context)
    outputs = keras.layers.Dense(size, activation="softmax")(keras.layers.Dropout(0.5)(x))
    model = keras.Model({"source_ids": source, "target_ids": target}, outputs)
    model.compile("rmsprop", loss="sparse_categorical_crossentropy")
    return model


def hub_batches(pairs, vocabulary, batch):
    """As the tutorial does it: batches are made once, then shuffled and kept."""
    tokenizer = keras_hub.tokenizers.WordPieceTokenizer(vocabulary, lowercase=True, strip_accents=True)
    source_packer = keras_hub.layers.StartEndPacker(LENGTH, pad_value=0)
    target_packer = keras_hub.layers.StartEndPacker(LENGTH + 1, start_value=2, end_value=3, pad_value=0)

    def prepare(source, target):
        target = target_packer(tokenizer(target))
        return {"source_ids": source_packer(tokenizer(source)), "target_ids": target[:, :-1]}, target[:, 1:]

    return (
        pairs.batch(batch, drop_remainder=True).map(prepare, num_parallel_calls=tf.data.AUTOTUNE).cache().shuffle(2048)
    )


def contenders(pairs, lines, size, dropout, batch):
    tokenizer = txf.text.WordPieceTokenizer.train(lines, size, special_tokens=SPECIAL)
    vocabulary = [tokenizer.id_to_token(id) for id in range(tokenizer.vocab_size)]
    target_tokenizer = type(tokenizer).from_config({**tokenizer.get_config(), "start": "[START]", "end": "[END]"})
    examples = txf.text.translation(pairs, tokenizer, target_tokenizer, max_length=LENGTH).cache()
    shuffled = examples.shuffle(len(lines))
    source, target, longer = mean_lengths(examples)
    rows = txf.text.pack(shuffled, {"source_ids": round(ROW * source / target), "target_ids": ROW}, window=4096).cache()
    batches = {  # as many pairs a step, on the average
        "padded": shuffled.padded_batch(batch, drop_remainder=True),
        "bucketed": txf.text.batch_by_length(
            shuffled, round(batch * longer), txf.text.bucket_lengths(examples), static=False
        ).shuffle(64),
        "packed": rows.shuffle(len(lines)).batch(max(1, round(batch * target / ROW / fill(rows))), drop_remainder=True),
        "KerasHub": hub_batches(pairs, vocabulary, batch),
    }
    models = {name: our_model(len(vocabulary), dropout, name == "packed") for name in batches if name != "KerasHub"}
    models["KerasHub"] = hub_model(len(vocabulary))
    return {name: (models[name], iter(data.repeat().prefetch(4))) for name, data in batches.items()}


def mean_lengths(examples):
    """Of the sources, of the targets, and of the longer of the two."""
    pairs = [(len(inputs["source_ids"]), len(inputs["target_ids"])) for inputs, _ in examples.as_numpy_iterator()]
    return (*np.mean(pairs, axis=0), np.mean(np.max(pairs, axis=1)))


def fill(rows):
    return np.mean([inputs["target_segment_ids"] > 0 for inputs, _ in rows.as_numpy_iterator()])


def steps_of(model, batches, steps, seen):
    """A function that takes some steps, with what tf.data does in between, and keeps what they read."""

    def run():
        for _ in range(steps):
            inputs, targets = next(batches)
            model.train_on_batch(inputs, targets)
            seen.append((inputs["source_ids"], inputs["target_ids"]))

    return run


def main(sources, targets, size, dropout, batch, steps, repeats):
    pairs = tf.data.Dataset.from_tensor_slices((sources, targets))
    found = contenders(pairs, sources + targets, size, dropout, batch)
    seen = {name: [] for name in found}
    seconds = interleaved({name: steps_of(*found[name], steps, seen[name]) for name in found}, repeats, warmup=WARMUP)
    print(f"{len(sources)} pairs, {batch} a step; {LAYERS}+{LAYERS} layers, dim {DIM}, our dropout {dropout}")
    print(f"medians of {repeats} times {steps} steps")
    print(f"{'batches':12}{'real':>8}{'real a step':>13}{'ms a step':>11}{'real tokens/s':>15}{'ratio':>8}")
    real = {name: sum(int(tf.math.count_nonzero(ids)) for pair in seen[name] for ids in pair) for name in found}
    positions = {name: sum(int(tf.size(ids)) for pair in seen[name] for ids in pair) for name in found}
    a_step = {name: real[name] / len(seen[name]) for name in found}
    speed = {name: a_step[name] * steps / seconds[name] for name in found}
    for name in found:
        print(
            f"{name:12}{real[name] / positions[name]:8.1%}{a_step[name]:13,.0f}{1e3 * seconds[name] / steps:11.1f}"
            f"{speed[name]:15,.0f}{speed['packed'] / speed[name]:8.2f}",
            flush=True,
        )
