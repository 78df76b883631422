"""Trains a classifier, and exports it as TensorFlow Serving reads it: strings in, labels and probabilities out.

    python examples/serve/export_classifier.py        # writes runs/serve/models/language/1

The classifier names the language of a date: 72 languages of Unicode's CLDR, Chinese in two scripts. Tokenizer,
model and labels are in the SavedModel; the process that serves it does not need this package.
"""

import argparse
import pathlib
import random
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # of data.py and dates.py
import data

# isort: split
import dates
import keras
import tensorflow as tf

import keras_txf as txf

NAME = "language"
WORD = re.compile(r"[^\W\d_]{2}")  # dates without a word, such as 2018-03-03, are those of several languages


def main():
    options = parse_options()
    classifier = train(options)
    folder = pathlib.Path(options.out) / NAME / str(options.version)
    classifier.export(folder, overwrite=True)
    print(f"Wrote {folder}, with the signature:")
    served = tf.saved_model.load(folder)
    signature = served.signatures["serving_default"]
    for name, spec in signature.structured_input_signature[1].items():
        print(f"  input  {name}: {spec.dtype.name} {spec.shape}")
    for name, spec in signature.structured_outputs.items():
        print(f"  output {name}: {spec.dtype.name} {spec.shape}")


def train(options):
    """The classifier, and the accuracy of dates that it never saw."""
    keras.utils.set_random_seed(options.seed)
    print(f"Writing {options.count:,} dates with {len(dates.LANGUAGES)} labels ...", flush=True)
    training, held_out = (
        [(text, language) for language, text, _ in pairs if WORD.search(text)]
        for pairs in dates.make_pairs(options.count, 60, options.seed)
    )
    random.Random(options.seed).shuffle(training)
    texts, labels = map(list, zip(*training))
    print(f"Training on {len(texts):,} of them ...", flush=True)
    classifier = txf.tasks.TextClassifier.from_scratch(
        texts, labels, vocab_size=2000, num_layers=1, dim=64, max_length=48
    )
    classifier.fit(texts, labels, epochs=options.epochs, batch_size=64, learning_rate=3e-3, verbose=2)
    scores = classifier.evaluate(*map(list, zip(*held_out)), batch_size=256)
    print(f"Accuracy {scores['accuracy']:.4f} on {len(held_out):,} held-out dates")
    return classifier


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="DIR", default="runs/serve/models", help="%(default)s")
    parser.add_argument("--version", type=data.positive, default=1, help="the server takes the highest (default: 1)")
    parser.add_argument("--count", type=data.positive, default=20000, help="dates to write (default: 20000)")
    parser.add_argument("--epochs", type=data.positive, default=3)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
