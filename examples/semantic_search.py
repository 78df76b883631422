"""Finds the lines of a text file that mean the same as a query, by the sentence embeddings of a checkpoint.

    python examples/semantic_search.py --checkpoint DIR lines.txt "who won the game?"
    python examples/semantic_search.py --checkpoint DIR --data DIR            # how good the embeddings are: STS-B
    python examples/semantic_search.py --checkpoint DIR --data DIR --epochs 1 # after contrastive fine-tuning

The checkpoint is a Hugging Face folder, or a repository of the Hub (pip install '.[examples,hub]').
"""

import argparse
import csv
import pathlib

import data
import keras
import numpy as np
import scipy.stats
from keras import ops

import keras_txf as txf

HUB = "sentence-transformers/all-MiniLM-L6-v2"
LONGEST = 128  # tokens
CLOSE = 4.0  # points of 5 from which two sentences of STS-B mean the same
TEMPERATURE = 0.05


def main():
    options = parse_options()
    lines = [] if options.file is None else read_lines(options.file)
    keras.utils.set_random_seed(options.seed)
    print(f"Loading {options.checkpoint}.", flush=True)
    folder = txf.checkpoints.find(options.checkpoint)
    tokenizer = txf.text.from_checkpoint(folder, length=LONGEST)
    encoder = txf.checkpoints.load(folder, "encoder")
    model = embedder(encoder)
    if options.data is not None:
        files = data.find(options.data, None, dict.fromkeys(("sts-train.csv", "sts-dev.csv")))
        print(score(model, tokenizer, files["sts-dev.csv"]))
        if options.epochs:
            tune(model, tokenizer, files["sts-train.csv"], options)
            data.report(options.out, score(model, tokenizer, files["sts-dev.csv"]))
            txf.checkpoints.save(encoder, options.out)
            print(f"Wrote {options.out}, a folder for --checkpoint.")
    if options.file is not None:
        similarities = embed(model, tokenizer, lines) @ embed(model, tokenizer, [options.query or lines[0]])[0]
        for i in np.argsort(-similarities)[: options.count]:
            print(f"{similarities[i]:.3f}  {lines[i]}")


def embedder(encoder):
    """Token ids (B, T) -> embeddings (B, dim) of length 1: the mean of the hidden states."""
    pooled = txf.layers.Pooling("mean")(encoder.output)
    return keras.Model(encoder.input, keras.layers.UnitNormalization(name="embedding_norm")(pooled))


def embed(model, tokenizer, texts):
    """(texts, dim), computed in order of length, so that short texts are not padded to long ones."""
    order = np.argsort([len(text) for text in texts], kind="stable")
    batches = np.array_split(order, -(-len(texts) // 64))
    bar = keras.utils.Progbar(len(batches), unit_name="batch", verbose=len(batches) > 10)
    result = np.empty((len(texts), model.output.shape[-1]), "float32")
    for batch in batches:
        ids = tokenizer([texts[i] for i in batch]).numpy()
        used = max(1, int((ids != tokenizer.pad_id).sum(axis=1).max()))
        result[batch] = ops.convert_to_numpy(model(ids[:, : -(-used // 16) * 16]))
        bar.add(1)
    return result


def tune(model, tokenizer, path, options):
    """Sentences that mean the same come together, against all others of their batch."""
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("anchor_ids", "positive_ids")}
    anchors, positives = map(model, inputs.values())
    towers = keras.Model(inputs, ops.matmul(anchors, ops.transpose(positives)) / TEMPERATURE)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    towers.compile(keras.optimizers.AdamW(options.rate, weight_decay=0.01), loss, metrics=["accuracy"])
    pairs = [(first, second) for first, second, points in read(path) if points >= CLOSE]
    logs = [data.log(options.out)]
    towers.fit(pair_batches(pairs, tokenizer, options), epochs=options.epochs, shuffle=False, callbacks=logs)


def pair_batches(pairs, tokenizer, options):
    examples = (
        txf.text.contrastive_pairs(tuple(map(list, zip(*pairs))), tokenizer)
        .cache()
        .shuffle(len(pairs), seed=options.seed)
    )
    padding = dict.fromkeys(examples.element_spec, np.int32(tokenizer.pad_id))
    rows = examples.padded_batch(options.batch, padding_values=padding, drop_remainder=True)
    return rows.map(txf.text.contrastive_targets)


def read_lines(path):
    """Those that are not empty."""
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise SystemExit(f"error: cannot read {path}: {error}.") from None
    if not lines:
        raise SystemExit(f"error: {path} has no line with a text.")
    return lines


def score(model, tokenizer, path):
    first, second, points = zip(*read(path))
    left, right = embed(model, tokenizer, first), embed(model, tokenizer, second)
    rank = scipy.stats.spearmanr((left * right).sum(axis=1), points).statistic
    return f"Spearman {100 * rank:.2f} on STS-B dev"


def read(path):
    """(sentence, sentence, points from 0 to 5) of each line."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row[5], row[6], float(row[4])) for row in rows]


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=pathlib.Path, help="text file, a line each")
    parser.add_argument("query", nargs="?", help="what to look for (default: the file's first line)")
    parser.add_argument(
        "--checkpoint", metavar="DIR", default=HUB, help="folder, or repository of the Hub (%(default)s)"
    )
    parser.add_argument("--data", metavar="DIR", help="folder of the STS benchmark, with sts-train.csv and sts-dev.csv")
    parser.add_argument(
        "--out", metavar="DIR", default="runs/semantic_search", help="of what is fine-tuned (%(default)s)"
    )
    parser.add_argument("--epochs", type=data.positive, default=0, help="of contrastive fine-tuning (default: none)")
    parser.add_argument("--batch", type=data.positive, default=64, help="pairs a batch (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=2e-5, help="learning rate (default: %(default)s)")
    parser.add_argument("--count", type=data.positive, default=5, help="lines to print (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if not options.epochs:
        data.refuse_training_options(parser, options, "out", "batch", "rate", "seed")
    if options.data is None and options.epochs:
        parser.error("argument --epochs: fine-tuning needs --data")
    if options.data is None and options.file is None:
        parser.error("expected a file to search, or --data")
    if options.file is None and options.count != parser.get_default("count"):
        parser.error("argument --count: there is no file to search")
    return options


if __name__ == "__main__":
    main()
