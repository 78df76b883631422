"""Deep stacks with norms after or before each sublayer, with and without a warm-up of the learning rate.

A decoder learns to repeat six random tokens. Half of each row cannot be guessed, so the best loss is about 1.85; a
model that learned nothing stays at 4.04, the logarithm of 57 tokens.

    python benchmarks/norm_placement.py --layers 12    # the table of docs/explanation/numerics.md
"""

import argparse

import keras
import numpy as np

import keras_txf as txf

PEAK, BATCH, LENGTH, VOCABULARY = 1e-3, 64, 6, 60


def losses(norm_placement, warms_up, layers, epochs, rows):
    """The loss of each epoch, with Adam and the peak of the learning rate."""
    keras.utils.set_random_seed(1)
    first = np.random.default_rng(1).integers(3, VOCABULARY, (rows, LENGTH))
    ids = np.concatenate([first, first], axis=1)
    steps = epochs * -(-rows // BATCH)
    rate = txf.training.warmup_cosine(PEAK, max(1, steps // 4), steps) if warms_up else PEAK
    model = txf.models.decoder_generator(VOCABULARY, layers, 64, 4, norm_placement=norm_placement, dropout=0.0)
    model.compile(keras.optimizers.Adam(rate), txf.training.TokenCrossEntropy())
    return model.fit(ids[:, :-1], ids[:, 1:], batch_size=BATCH, epochs=epochs, verbose=2).history["loss"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--rows", type=int, default=4096)
    options = parser.parse_args()
    lines = []
    for norm_placement, warms_up in (("post", False), ("post", True), ("pre", False)):
        name = f"{norm_placement}, {'a quarter of the steps to warm up' if warms_up else 'no warm-up'}"
        print(f"{options.layers} layers, {name}: {options.epochs} epochs")
        found = losses(norm_placement, warms_up, options.layers, options.epochs, options.rows)
        lines.append(f"{name}: {found[0]:.2f} after one epoch, {found[-1]:.2f} after {len(found)}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
