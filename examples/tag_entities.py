"""Finds the names of diseases in abstracts of medicine: a tagger of words, trained on the NCBI disease corpus.

    python examples/tag_entities.py                                   # train from nothing, and see how good it is
    python examples/tag_entities.py --checkpoint DIR --out runs/tuned # or from an encoder in Hugging Face's format
    python examples/tag_entities.py "A deletion causes colon cancer." # the diseases in a text, with their places

The corpus (Dogan et al. 2014, https://doi.org/10.1016/j.jbi.2013.12.006) has 5,424 sentences to train on, and is shared
under CC BY 4.0 by Crichton et al. (2017, https://github.com/cambridgeltl/MTL-Bioinformatics-2016). Any other corpus in
the format of CoNLL will do, one word and its tag on each line: --data DIR with train.tsv, devel.tsv and test.tsv.

An entity counts as found if its first word, its last word and its label are right. The epoch with the best F1 on
devel.tsv is kept; test.tsv is looked at once.
"""

import argparse
import json
import pathlib
import sys

import data
import keras

import keras_txf as txf

ADDRESS = "https://raw.githubusercontent.com/cambridgeltl/MTL-Bioinformatics-2016/master/data/NCBI-disease-IOB"
FILES = {
    "train.tsv": "58379baf4614b8d757d93dd7a21b202849ca99f9b9d71b49185523ff5443300c",
    "devel.tsv": "b4e1e7efcc2a35047bf2f3d281648357470e674f555d4a26a0049ac37d59cc61",
    "test.tsv": "8f088ce45dc4746592188f9e69de3d89d87f3bb8f0ed8c4a287d018123fa148d",
}
TEXT = "Mutations of BRCA1 cause familial breast cancer, but not Huntington's disease."


def main():
    options = parse_options()
    folder = pathlib.Path(options.out) / "tagger"
    if options.text is None:
        train(options, folder)
    elif not (folder / "task.json").is_file():
        sys.exit(f"error: {folder} lacks task.json, written when a training ends: train a model first.")
    tagger = txf.tasks.TokenClassifier.load(folder)
    for entity in tagger.entities(options.text or TEXT):
        print("{start:4d}-{end:<4d} {label:10} {score:6.1%}  {text}".format(**entity))


def train(options, folder):
    keras.utils.set_random_seed(options.seed)
    print("Reading words and tags, and training; the first step compiles for some seconds.", flush=True)
    paths = data.find(options.data, ADDRESS, FILES)
    tagger = build(options, paths["train.tsv"])
    best = Best()
    tagger.fit(
        paths["train.tsv"], validation_data=paths["devel.tsv"], epochs=options.epochs, batch_size=options.batch,
        learning_rate=options.rate, seed=options.seed, callbacks=[best, data.log(options.out)], verbose=2,
    )  # fmt: skip
    tagger.model.set_weights(best.weights)
    tagger.save(folder)
    scores = tagger.evaluate(paths["test.tsv"])
    data.write(pathlib.Path(options.out) / "scores.json", json.dumps(scores, indent=1))
    numbers = ", ".join(f"{name} {scores[name]:.4f}" for name in ("precision", "recall"))
    data.report(options.out, f"Test F1 {scores['f1']:.4f} of entities ({numbers}), epoch {best.epoch + 1}")


def build(options, path):
    if options.checkpoint is None:
        return txf.tasks.TokenClassifier.from_scratch(
            path, vocab_size=options.vocab, num_layers=2, dim=128, num_heads=4, position="rotary",
            position_encoding=None, norm_placement="pre", dropout=0.3, max_length=128,
        )  # fmt: skip
    scratch = txf.tasks.TokenClassifier.from_scratch(path, num_layers=1, dim=8, num_heads=2)  # which knows the tags
    return txf.tasks.TokenClassifier.from_checkpoint(options.checkpoint, labels=scratch.labels)


class Best(keras.callbacks.Callback):
    """Keeps the weights of the epoch with the best F1 of held-out entities."""

    f1, epoch, weights = -1.0, 0, None

    def on_epoch_end(self, epoch, logs=None):
        if logs["val_f1"] > self.f1:
            self.f1, self.epoch, self.weights = logs["val_f1"], epoch, self.model.get_weights()


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", help="a text to find entities in; without it, train a model")
    parser.add_argument("--data", metavar="DIR", help=f"folder with {', '.join(FILES)} (default: download them)")
    parser.add_argument("--out", metavar="DIR", default="runs/tag_entities", help="%(default)s")
    parser.add_argument(
        "--checkpoint", metavar="DIR", help="folder of an encoder to begin with (default: from nothing)"
    )
    parser.add_argument("--epochs", type=data.positive, default=10)
    parser.add_argument("--batch", type=data.positive, default=32, help="sentences a batch (default: 32)")
    parser.add_argument("--rate", type=float, help="highest learning rate (default: 0.001, of a checkpoint 0.00005)")
    parser.add_argument("--vocab", type=data.positive, default=6000, help="pieces of words (default: 6000)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.text is not None:
        names = ("data", "checkpoint", "epochs", "batch", "rate", "vocab", "seed")
        data.refuse_training_options(parser, options, *names)
    return options


if __name__ == "__main__":
    main()
