"""Answers questions about scenes of handwritten digits: an encoder of images and a decoder, trained on two cores.

    python examples/read_scenes.py                 # answers about scenes of held-out digits, and those of two baselines
    python examples/read_scenes.py --placeholders  # the image behind the question, in the place of placeholder tokens

A scene has one to four of scikit-learn's digits, see scenes.py. A convolutional net learns to classify quarters of the
scenes first, and the image encoder goes on with its features. The baselines: rules that make answers of the classes of
the quarters, and the same decoder without the image.
"""

import argparse
import pathlib
import time

import classify_digits
import data
import keras
import numpy as np
import scenes
from matplotlib.figure import Figure

import keras_txf as txf

WORDS = ["[PAD]", "[IMAGE]", *scenes.WORDS]
IMAGE, END = WORDS.index("[IMAGE]"), WORDS.index(".")
LONGEST, VECTORS = 11, 36  # words of a question and its answer, and vectors of an image
BLOCKS = dict(num_heads=4, norm_placement="pre", dropout=0.0)


def main():
    options = parse_options()
    keras.utils.set_random_seed(options.seed)
    training, held_out = classify_digits.split(options.seed)
    images, digits = scenes.make_scenes(*training, options.scenes, options.seed)
    fresh, truth = scenes.make_scenes(*held_out, options.tests, "tests")
    questions, asked = scenes.ask(digits, options.seed), scenes.ask(truth, "tests")
    print(f"Training on {len(images):,} scenes; the {len(fresh):,} of the test have none of their digits.", flush=True)
    features = build_features(options.dim)
    classifier, blind = build_classifier(features), build_decoder(options.dim)
    train(classifier, scenes.quarters(images), digits.ravel(), options, "quarters")
    classes = classifier.predict(scenes.quarters(fresh), verbose=0).argmax(axis=-1).reshape(-1, 4)
    train(blind, *encode(questions, digits), options, "blind")
    model = build(features, options.placeholders)  # trains the features on, so that the classifier is of no more use
    ids, targets = encode(questions, digits, options.placeholders)
    rows = images[:, None] if options.placeholders else images  # with placeholders a prompt may have several images
    inputs = {"token_ids": ids, "images": rows, "prefix_length": np.argmax(targets > 0, axis=1) + 1}  # of the question
    train(model, inputs, targets, options, "scenes")
    data.save(model, options.out, "scenes")

    expected, by_rules = ([scenes.answer(*pair) for pair in zip(asked, rows)] for rows in (truth, classes))
    found = read(model, asked, fresh, options.placeholders)
    report("without the image", asked, read(blind, asked), expected, options.out)
    report("rules on classified quarters", asked, by_rules, expected, options.out)
    report("image and question", asked, found, expected, options.out)
    draw(fresh[:8], asked, found, expected).savefig(options.out / "scenes.png")


def encode(questions, digits, placeholders=False):
    """Ids and targets (B, T). Only the words of an answer are targets, and the padding 0 elsewhere."""
    ids, targets = np.zeros((2, len(questions), LONGEST + (VECTORS if placeholders else 0)), "int32")
    for row, question in enumerate(questions):
        prompt, answer = to_ids(question, placeholders), to_ids(scenes.answer(question, digits[row]))
        ids[row, : len(prompt) + len(answer)] = prompt + answer
        targets[row, len(prompt) - 1 : len(prompt) + len(answer) - 1] = answer
    return ids, targets


def to_ids(text, placeholders=False):
    return [WORDS.index(word) for word in text.split()] + [IMAGE] * (VECTORS if placeholders else 0)


def build_features(dim):
    """Convolutions, for images of any size: (B, 4 H, 4 W, 1) -> (B, H, W, dim)."""
    x = images = keras.Input((None, None, 1))
    for filters, pool in ((dim // 2, 2), (dim, 2), (dim, 1)):
        x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = keras.layers.MaxPooling2D(pool)(keras.layers.ReLU()(keras.layers.BatchNormalization()(x)))
    return keras.Model(images, x)


def build_classifier(features):
    x = keras.layers.GlobalMaxPooling2D()(features(images := keras.Input((12, 12, 1))))
    return keras.Model(images, keras.layers.Dense(scenes.NOTHING + 1)(x))


def build(features, placeholders=False):
    """Image and question see each other both ways: a place of the image then knows what is asked of it."""
    dim, positions = features.output_shape[-1], keras.initializers.RandomNormal(stddev=0.5)  # as large as features
    options = dict(channels=dim, class_token=False, embeddings_initializer=positions, **BLOCKS)
    transformer = txf.models.image_encoder(6, 1, 1, dim, **options)
    encoder = keras.Model(images := keras.Input((24, 24, 1)), transformer(features(images)))  # (B, 36, dim)
    placeholder = IMAGE if placeholders else None
    return txf.models.image_text_generator(encoder, build_decoder(dim), placeholder, bidirectional="prefix")


def build_decoder(dim):
    return txf.models.decoder_generator(len(WORDS), 2, dim, position="rotary", **BLOCKS)


def train(model, inputs, targets, options, name):
    pad_id, batch = (0, 32) if targets.ndim == 2 else (None, 128)  # four quarters are a scene
    steps = options.epochs * -(-len(targets) // batch)
    rate = txf.training.warmup_cosine(2e-3, warmup_steps=steps // 20 + 1, total_steps=steps + 2)
    optimizer = keras.optimizers.AdamW(rate, weight_decay=0.05, global_clipnorm=1.0)
    model.compile(optimizer, txf.training.TokenCrossEntropy(pad_id))
    began, log = time.perf_counter(), data.log(options.out, name)
    model.fit(inputs, targets, batch, options.epochs, verbose=2, callbacks=[log])
    print(f"{name}: {model.count_params():,} weights, {time.perf_counter() - began:.0f} s", flush=True)


def read(model, questions, images=None, placeholders=False):
    """The model's answers, texts."""
    prompts = [to_ids(question, placeholders) for question in questions]
    inputs = {} if images is None else {"images": images[:, None] if placeholders else images}
    rows = model.generate(prompts, max_new_tokens=5, stop_ids=END, padded=False, inputs=inputs)
    return [" ".join(WORDS[i] for i in row[len(prompt) :]) for prompt, row in zip(prompts, rows)]


def report(name, questions, found, expected, out):
    """The share of exact answers, of all and for each kind of question."""
    right = np.array(found) == expected
    parts = [f"{kind} {right[np.char.startswith(questions, kind)].mean():.1%}" for kind in scenes.KINDS]
    data.report(out, f"{name}: {right.mean():.1%} of {len(right):,} answers exact ({', '.join(parts)})")


def draw(images, questions, found, expected):
    """Eight scenes with their questions and the model's answers."""
    figure = Figure(figsize=(4.2, 2.7), dpi=200, layout="constrained")
    for axes, image, asked, *answers in zip(figure.subplots(2, 4).flat, images, questions, found, expected):
        axes.imshow(image[..., 0], cmap="gray_r")
        axes.set_title(f"{asked}\n{answers[0]}{' (wrong)' if answers[0] != answers[1] else ''}", fontsize=6)
        axes.set(xticks=[], yticks=[])
    return figure


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="DIR", type=pathlib.Path, default="runs/read_scenes", help="%(default)s")
    parser.add_argument("--placeholders", action="store_true", help="put the image behind the question")
    parser.add_argument("--scenes", type=data.positive, default=20_000, help="to train on (%(default)s)")
    parser.add_argument("--tests", type=data.positive, default=2000, help="scenes of held-out digits (%(default)s)")
    parser.add_argument("--epochs", type=data.positive, default=3, help="for each of the three nets (%(default)s)")
    parser.add_argument("--dim", type=data.positive, default=64, help="width of the nets (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of weights, scenes and what is held out (%(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
