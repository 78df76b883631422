"""Writes Shakespeare, character by character: a decoder-only model trained in minutes on two cores.

python examples/generate_text.py                # train, in nanoGPT's setting for a CPU
python examples/generate_text.py --size gpu     # or in the one for a GPU
python examples/generate_text.py --positions learned        # as nanoGPT has them
python examples/generate_text.py "ROMEO:"       # and have a text continued
"""

import argparse
import math
import types

import data
import keras
import numpy as np

import keras_txf as txf

ADDRESS = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare"
FILES = {"input.txt": "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"}

SIZES = {
    "cpu": dict(layers=4, heads=4, dim=128, dropout=0.0, context=64, batch=12, steps=2000),
    "gpu": dict(layers=6, heads=6, dim=384, dropout=0.2, context=256, batch=64, steps=5000),
}
# Learned positions end with the context. Rotary ones see distances only, and with the window none is new, so that the
# model writes on and on.
POSITIONS = {  # options of the attention, and of the model
    "rotary": lambda context: (dict(position="rotary", window=context), {}),
    "learned": lambda context: ({}, dict(position_encoding="learned", max_length=context)),
}
EVALUATE_EVERY = 500  # steps


def main():
    options = parse_options()
    if options.text is None:
        train(options)
    model, characters = data.load(options.out, "shakespeare", "characters")
    for text in write(model, characters, options):
        print(text, end="", flush=True)
    print()


def train(options):
    size = types.SimpleNamespace(**SIZES[options.size or "cpu"])
    steps = options.steps or size.steps
    keras.utils.set_random_seed(options.seed)
    print(f"Training for {steps:,} steps; the first step compiles for some seconds.", flush=True)

    text = data.find(options.data, ADDRESS, FILES)["input.txt"].read_text(encoding="utf-8")
    characters = "".join(sorted(set(text)))
    ids = encode(text, characters)
    cut = len(ids) * 9 // 10
    validation = txf.training.next_token_windows(ids[cut:], size.context)

    model = build(len(characters), size, steps, options.positions or "rotary")
    evaluations = math.ceil(steps / EVALUATE_EVERY)
    model.fit(
        random_batches(ids[:cut], size.context, size.batch, options.seed),
        steps_per_epoch=steps // evaluations,
        epochs=evaluations,
        shuffle=False,
        validation_data=validation,
        validation_batch_size=64,
        # Like nanoGPT, the end of training is the best of its evaluations.
        callbacks=[
            keras.callbacks.EarlyStopping(patience=evaluations, restore_best_weights=True),
            data.log(options.out),
        ],
    )
    data.save(model, options.out, "shakespeare", characters=characters)
    loss = model.evaluate(*validation, batch_size=64, verbose=0)
    data.report(options.out, f"Validation cross-entropy {loss:.3f}")


def build(vocab_size, size, steps, positions):
    """GPT-2, compiled with nanoGPT's optimizer (whose decay spares the norms, and here does not)."""
    of_attention, of_model = POSITIONS[positions](size.context)
    model = txf.models.decoder_generator(
        vocab_size, size.layers, size.dim,
        attention=txf.layers.MultiHeadSelfAttention(
            size.heads, causal=True, use_bias=False, dropout=size.dropout, **of_attention
        ),
        activation="gelu",
        norm_placement="pre",
        use_bias=False,
        dropout=size.dropout,
        scale_embedding=False,
        pad_id=None,  # every character is text
        **of_model,
    )  # fmt: skip
    rate = txf.training.warmup_cosine(1e-3, warmup_steps=min(100, steps // 2 + 1), total_steps=steps + 1, final=1e-4)
    optimizer = keras.optimizers.AdamW(rate, beta_2=0.99, weight_decay=0.1, global_clipnorm=1.0)
    model.compile(optimizer, txf.training.TokenCrossEntropy(pad_id=None))
    return model


def random_batches(ids, context, batch, seed):
    """Windows from random places of the text, without end."""
    inputs, targets = txf.training.next_token_windows(ids, context, stride=1)
    random = np.random.default_rng(seed)
    while True:
        rows = random.integers(len(inputs), size=batch)
        yield inputs[rows], targets[rows]


def write(model, characters, options):
    """The user's text and what follows as it comes, or what begins after a blank line, as a speech does."""
    prompt = options.text or ("\n\n" if "\n" in characters else characters[0])
    end = model.get_layer("embedding").max_length
    if end is not None and len(prompt) >= end:
        raise SystemExit(f"error: learned positions end at {end} characters; the text has {len(prompt)}.")
    yield prompt
    ids = [encode(prompt, characters)]
    for tokens in model.generate(ids, options.length, options.sampler, max_length=end, seed=options.seed, stream=True):
        yield characters[tokens[0]]


def encode(text, characters):
    unknown = sorted(set(text) - set(characters))
    if unknown:
        raise SystemExit(f"error: the model has never seen {' '.join(unknown)}.")
    ids = {character: i for i, character in enumerate(characters)}
    return np.array([ids[character] for character in text], "int32")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", help="a text to continue; without it, train a model")
    parser.add_argument("--data", metavar="DIR", help="folder with input.txt (default: download it)")
    parser.add_argument("--out", metavar="DIR", default="runs/generate_text", help="%(default)s")
    parser.add_argument("--size", choices=SIZES, help="of the model and its training (default: cpu)")
    parser.add_argument("--positions", choices=POSITIONS, help="of the model (default: rotary)")
    parser.add_argument(
        "--steps", type=data.positive, help="steps of training (default: 2000, or 5000 with --size gpu)"
    )
    parser.add_argument(
        "--length", type=data.positive, default=500, help="characters to write (500); learned positions end sooner"
    )
    parser.add_argument("--temperature", type=float, default=0.8, help="of the sampling (default: 0.8)")
    parser.add_argument("--top-p", type=float, default=0.95, help="draw from the likeliest of this probability (0.95)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.text is not None:
        data.refuse_training_options(parser, options, "data", "size", "positions", "steps")
    try:
        options.sampler = txf.generation.Sampling(options.temperature, top_p=options.top_p)
    except ValueError as error:
        parser.error(str(error))
    return options


if __name__ == "__main__":
    main()
