"""Teaches a generator which of its own answers are better: DPO, IPO and ORPO with LoRA, next to plain fine-tuning.

A small model writes Shakespeare, character by character. A rule judges pairs of its continuations: the better one has
fewer letters e. Each method trains an adapter on these pairs; then the model continues prompts of held-out text.

python examples/prefer_answers.py
python examples/prefer_answers.py --rate 2e-3     # farther from the text of before
"""

import argparse
import types

import data
import keras
import numpy as np
from generate_text import ADDRESS, FILES, SIZES, build, encode, random_batches

import keras_txf as txf

PROMPT, ANSWER = 16, 32  # characters
METHODS = ("fine-tuning", "dpo", "ipo", "orpo")
BETAS = {"dpo": 0.1, "ipo": 0.5, "orpo": 1.0}


def main():
    options = parse_options()
    keras.utils.set_random_seed(options.seed)
    text = data.find(options.data, ADDRESS, FILES)["input.txt"].read_text(encoding="utf-8")
    characters = "".join(sorted(set(text)))
    ids = encode(text, characters)
    cut = len(ids) * 9 // 10
    size = types.SimpleNamespace(**SIZES["cpu"])
    validation = txf.training.next_token_windows(ids[cut:], size.context)
    print(f"Training for {options.steps:,} steps; the first step compiles for some seconds.", flush=True)
    policy = build(len(characters), size, options.steps, "rotary")
    policy.fit(
        random_batches(ids[:cut], size.context, size.batch, options.seed),
        steps_per_epoch=options.steps,
        shuffle=False,
        callbacks=[data.log(options.out)],
    )

    random = np.random.default_rng(options.seed)
    prompts, held = draw_prompts(ids[:cut], options.pairs, random), draw_prompts(ids[cut:], options.held, random)
    print(f"Sampling two continuations of {len(prompts):,} prompts.", flush=True)
    pairs = judged(sample(policy, prompts, 2, options.seed), characters)
    report(options, "before", policy, held, validation, characters)
    for method in METHODS:
        txf.training.add_adapter(policy, rank=8, name=method)
        train(policy, method, pairs, options)
        report(options, method, policy, held, validation, characters)
        txf.training.use_adapter(policy, None)  # the base is the reference of the next method


def draw_prompts(ids, number, random):
    """Characters from random places of the text, (N, PROMPT)."""
    starts = random.integers(len(ids) - PROMPT, size=number)
    return np.asarray(ids, "int32")[starts[:, None] + np.arange(PROMPT)]


def sample(policy, prompts, number, seed):
    """Prompts with continuations, (N, number, PROMPT + ANSWER)."""
    sampler, found = txf.generation.Sampling(temperature=1.0), []
    for first in range(0, len(prompts), 250):
        rows = prompts[first : first + 250]
        found.append(policy.generate(rows, ANSWER, sampler, seed=seed + first, num_return_sequences=number))
    return np.concatenate(found)


def judged(samples, characters):
    """The inputs of `preference_model`, without ties: the first continuation of a pair has fewer letters e."""
    letters = count_letters(samples, characters)
    order = np.argsort(letters, axis=1, kind="stable")
    pairs = np.take_along_axis(samples, order[..., None], axis=1)[letters[:, 0] != letters[:, 1]]
    mask = np.broadcast_to(np.arange(pairs.shape[-1]) >= PROMPT, pairs.shape)
    return {"token_ids": pairs, "answer_mask": mask}


def count_letters(samples, characters):
    """How many letters e each continuation has, (N, number)."""
    letters = [place for place, character in enumerate(characters) if character in "eE"]
    return np.isin(samples[..., PROMPT:], letters).sum(-1)


def train(policy, method, pairs, options):
    """Trains the adapter of a method on pairs, or on the chosen continuations alone."""
    keras.utils.set_random_seed(options.seed)
    optimizer, fit = keras.optimizers.Adam(options.rate), dict(epochs=options.epochs, batch_size=32, verbose=2)
    print(f"{method}: {len(pairs['token_ids']):,} pairs.", flush=True)
    if method == "fine-tuning":
        chosen, weights = (pairs[name][:, 0] for name in ("token_ids", "answer_mask"))
        policy.compile(optimizer, txf.training.TokenCrossEntropy(pad_id=None))
        policy.fit(chosen[:, :-1], chosen[:, 1:], sample_weight=weights[:, 1:].astype("float32"), **fit)
        return
    model = txf.training.preference_model(policy)
    reference = model.predict(pairs, batch_size=64, verbose=0)  # the adapter is new and changes nothing yet
    loss, accuracy = txf.training.PreferenceLoss(method, BETAS[method]), txf.training.PreferenceAccuracy("preferred")
    model.compile(optimizer, loss, metrics=[accuracy])
    model.fit(pairs, reference, **fit)


def report(options, name, policy, held, validation, characters):
    """Writes down the letters e in continuations of held-out prompts, and how well the model predicts Shakespeare."""
    letters = 100 * count_letters(sample(policy, held, 1, options.seed), characters).mean() / ANSWER
    policy.compile(loss=txf.training.TokenCrossEntropy(pad_id=None))
    loss = policy.evaluate(*validation, batch_size=64, verbose=0)
    data.report(options.out, f"{name}: {letters:.2f} letters e in 100 characters, validation cross-entropy {loss:.3f}")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", help="folder with input.txt (default: download it)")
    parser.add_argument("--out", metavar="DIR", default="runs/prefer_answers", help="%(default)s")
    parser.add_argument("--steps", type=data.positive, default=1000, help="of the first training (%(default)s)")
    parser.add_argument(
        "--pairs", type=data.positive, default=1000, help="prompts with two continuations (%(default)s)"
    )
    parser.add_argument("--held", type=data.positive, default=300, help="held-out prompts (%(default)s)")
    parser.add_argument("--epochs", type=data.positive, default=1, help="of each method (%(default)s)")
    parser.add_argument("--rate", type=float, default=5e-4, help="learning rate of each method (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
