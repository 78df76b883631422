"""Classifies handwritten digits: a Vision Transformer and a convolutional net, trained alike on two cores.

python examples/classify_digits.py     # the accuracy of both on held-out images, and what the transformer looks at
"""

import argparse
import pathlib
import time

import data
import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import keras_txf as txf

SIZE, PATCH = 8, 2  # pixels
BATCH = 64


def main():
    options = parse_options()
    keras.utils.set_random_seed(options.seed)
    training, held_out = load(options.seed)
    print(f"Training on {len(training[0])} images, shifts included; {len(held_out[0])} are held out.", flush=True)
    results = []
    transformer = build_transformer()
    for name, model in {"transformer": transformer, "convolutions": build_convolutions()}.items():
        seconds = train(model, training, options, name)
        accuracy = np.mean(model.predict(held_out[0], verbose=0).argmax(axis=-1) == held_out[1])
        results.append(f"{name} {accuracy:.2%} ({model.count_params():,} weights, {seconds:.0f} s)")
        data.save(model, options.out, name)
    data.report(options.out, f"Accuracy on {len(held_out[0])} held-out images: {', '.join(results)}")
    draw_attention(transformer, *held_out, options.out / "attention.png")


def load(seed):
    """What `split` returns, and the training images also shifted."""
    (images, labels), held_out = split(seed)
    return (with_shifts(images), np.tile(labels, 9)), held_out


def split(seed):
    """(images, labels) of the training and of a fifth that is held out; images (B, 8, 8, 1) from -1 to 1."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 8 - 1).reshape(-1, SIZE, SIZE, 1).astype("float32")
    images, others, labels, held_out = train_test_split(
        images, labels, test_size=0.2, stratify=labels, random_state=seed
    )
    return (images, labels), (others, held_out)


def with_shifts(images):
    """Each image as it is and moved by a pixel in eight directions; what comes in is background."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=-1)
    return np.concatenate([padded[:, y : y + SIZE, x : x + SIZE] for y in range(3) for x in range(3)])


def build_transformer():
    # A patch of four pixels means little without its place: positions start as large as patches, not at the usual 0.02.
    positions = keras.initializers.RandomNormal(stddev=0.5)
    return txf.models.image_classifier(
        SIZE, PATCH, num_classes=10, num_layers=4, dim=64, num_heads=4, channels=1, pooling="mean", dropout=0.0,
        embeddings_initializer=positions, name="transformer",
    )  # fmt: skip


def build_convolutions():
    """As many weights in the usual place: two convolutions at full size, two at half, the mean over places."""
    net = keras.Sequential([keras.Input((SIZE, SIZE, 1))], name="convolutions")
    for layer, filters in enumerate((32, 64, 128, 96)):
        if layer == 2:
            net.add(keras.layers.MaxPooling2D())
        net.add(keras.layers.Conv2D(filters, 3, padding="same", use_bias=False))
        net.add(keras.layers.BatchNormalization())
        net.add(keras.layers.ReLU())
    for layer in (keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(10)):
        net.add(layer)
    return net


def train(model, training, options, name):
    """Returns the seconds that it took."""
    steps = options.epochs * -(-len(training[0]) // BATCH)
    rate = txf.training.warmup_cosine(2e-3, warmup_steps=steps // 10 + 1, total_steps=steps + 2)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(rate, weight_decay=0.05), loss, metrics=["accuracy"])
    start = time.perf_counter()
    model.fit(*training, BATCH, options.epochs, verbose=2, callbacks=[data.log(options.out, name)])
    return time.perf_counter() - start


def draw_attention(model, images, labels, path):
    """The first held-out digit of each kind, with attention rollout over it."""
    chosen = images[[np.flatnonzero(labels == digit)[0] for digit in range(10)]]
    scores = txf.visualize.attention_scores(model, chosen)
    txf.visualize.plot_attention_on_image(chosen, scores, PATCH, layers=list(scores)).savefig(path)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="DIR", type=pathlib.Path, default="runs/classify_digits", help="%(default)s")
    parser.add_argument("--epochs", type=data.positive, default=5, help="for each of the two (default: 5)")
    parser.add_argument("--seed", type=int, default=1, help="of the weights and of what is held out (default: 1)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
