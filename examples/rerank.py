"""Scores how near two sentences are in meaning, read together: a cross-encoder, fine-tuned on the STS benchmark.

    python examples/rerank.py --checkpoint DIR --data DIR      # fine-tune, and score STS-B dev
    python examples/rerank.py lines.txt "a dog runs outside"   # then order the lines of a file
    python examples/rerank.py --checkpoint DIR --data DIR --quick

A search of words (TF-IDF) finds the 100 lines that share most words with the query, and the cross-encoder orders them.
The checkpoint is a Hugging Face folder, or a repository of the Hub (pip install '.[examples,hub]').
examples/semantic_search.py scores the same pairs by an embedding for each sentence, which is faster.
"""

import argparse
import pathlib
import sys

import data
import keras
import numpy as np
import scipy.stats
import semantic_search
from sklearn.feature_extraction.text import TfidfVectorizer

import keras_txf as txf

HIGHEST = 5.0  # points of STS-B
LONGEST = 128  # tokens of a pair
QUICK = 256  # pairs
FOUND = 100  # lines of the search of words
QUERY = "A dog is running outside."


def main():
    options = parse_options()
    folder = pathlib.Path(options.out) / "ranker"
    if options.file is not None:
        lines = semantic_search.read_lines(options.file)
        show(load(folder), options.query or lines[0], lines, options.count)
        return
    keras.utils.set_random_seed(options.seed)
    print(f"Loading {options.checkpoint} and training it; the first step compiles for some seconds.", flush=True)
    files = data.find(options.data, None, dict.fromkeys(("sts-train.csv", "sts-dev.csv")))
    training, held = (columns(path, QUICK if options.quick else None) for path in files.values())
    ranker = txf.tasks.PairClassifier.from_checkpoint(options.checkpoint, max_length=LONGEST)
    ranker.fit(
        *training, validation_data=held, epochs=1 if options.quick else options.epochs, batch_size=options.batch,
        learning_rate=options.rate, seed=options.seed, callbacks=[data.log(options.out)], verbose=2,
    )  # fmt: skip
    data.report(options.out, correlations(ranker, *held))
    ranker.save(folder)
    show(ranker, QUERY, [*held[0], *held[1]], options.count)


def columns(path, most=None):
    """First sentences, second sentences, and their points from 0 to 1."""
    first, second, points = zip(*semantic_search.read(path)[:most])
    return list(first), list(second), [value / HIGHEST for value in points]


def correlations(ranker, first, second, points):
    scores = ranker.predict(first, second)
    spearman = 100 * scipy.stats.spearmanr(scores, points).statistic
    pearson = 100 * scipy.stats.pearsonr(scores, points).statistic
    return f"Spearman {spearman:.2f}, Pearson {pearson:.2f} on {len(points):,} pairs of STS-B dev"


def show(ranker, query, lines, count):
    """Prints the best lines, by the ranker, of those that share most words with the query."""
    print(f"{query}\n  score  place by words")
    found = by_words(query, lines, FOUND)
    for text, score in ranker.rank(query, found)[:count]:
        print(f"  {score:.3f}  {found.index(text) + 1:5d}  {text}")


def by_words(query, lines, count):
    """The lines that are nearest to the query by their words, the best first, none twice and none the query."""
    lines = [line for line in dict.fromkeys(lines) if line != query] or lines[:1]
    table = TfidfVectorizer(token_pattern=r"\S+").fit([query, *lines])
    near = (table.transform(lines) @ table.transform([query]).T).toarray()[:, 0]
    return [lines[i] for i in np.argsort(-near, kind="stable")[:count]]


def load(folder):
    if not (folder / "task.json").is_file():
        sys.exit(f"error: {folder} lacks task.json, written when a training ends: train a model first.")
    return txf.tasks.PairClassifier.load(folder)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=pathlib.Path, help="text file, a line each, for a trained ranker")
    parser.add_argument("query", nargs="?", help="what to look for (default: the file's first line)")
    parser.add_argument(
        "--checkpoint",
        metavar="DIR",
        default=semantic_search.HUB,
        help="folder, or repository of the Hub (%(default)s)",
    )
    parser.add_argument("--data", metavar="DIR", help="folder of the STS benchmark, with sts-train.csv and sts-dev.csv")
    parser.add_argument("--out", metavar="DIR", default="runs/rerank", help="%(default)s")
    parser.add_argument("--epochs", type=data.positive, default=5, help="%(default)s")
    parser.add_argument("--batch", type=data.positive, default=32, help="pairs a batch (%(default)s)")
    parser.add_argument("--rate", type=float, default=1e-4, help="highest learning rate (%(default)s)")
    parser.add_argument("--count", type=data.positive, default=10, help="lines to print (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help=f"an epoch of {QUICK} pairs, to see that it runs")
    options = parser.parse_args()
    if options.file is not None:
        names = ("checkpoint", "data", "epochs", "batch", "rate", "seed", "quick")
        data.refuse_training_options(parser, options, *names)
    elif options.data is None:
        parser.error("expected --data to train on, or a file to order")
    return options


if __name__ == "__main__":
    main()
