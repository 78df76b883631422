"""How long a sentence takes when a translation model is trained and when it translates: a Transformer and an LSTM.

    python examples/translation_time.py            # lengths 8 to 128, a minute or two on two cores
    python examples/translation_time.py --quick    # lengths 8 and 16, small models

One sentence at a time; the source is as long as the target. Both models have about as many parameters. Their weights
are random: the time does not depend on them.
docs/tutorials/translation_at_training_and_inference.md explains what is measured.
"""

import argparse
import json
import logging
import pathlib

import costs
import data
import keras
import numpy as np
from keras import ops
from matplotlib.figure import Figure

import keras_txf as txf

START, FIRST_WORD = 1, 4
SIZES = {  # lengths, vocabulary, layers, and the width of each model
    "full": ((8, 16, 32, 64, 128), 8000, 2, 256, 280),
    "quick": ((8, 16), 50, 1, 16, 18),
}
TRAINING = {"Transformer, step": "C0o-", "Transformer, forward": "C0o:", "LSTM, step": "C1s-", "LSTM, forward": "C1s:"}
INFERENCE = {"Transformer, no cache": "C3^-", "Transformer, cache": "C0o-", "LSTM, state": "C1s-"}  # label -> line
EXAMPLE = ["START", "Ein", "Hund", "rennt", "im", "Schnee"]  # its last word is an answer only


class NaiveLoop(keras.Model):
    """Translates without a cache: for each token the decoder reads all positions again. The encoder runs once.

    The target has its full length from the start, padded, so that one program serves all steps. The causal mask hides
    what is not generated yet.
    """

    def __init__(self, model, num_layers, length):
        super().__init__()
        context, target_ids = model.get_layer(f"encoder_{num_layers - 1}").output, model.input["target_ids"]
        self.encoder = keras.Model(model.input["source_ids"], context)
        self.decoder = keras.Model([context, target_ids], model.output)
        self.length = length

    def call(self, source_ids):
        context = ops.copy(self.encoder(source_ids))  # without its mask: one sentence has no padding

        def step(index, target_ids):
            logits = self.decoder([context, target_ids[:, :-1]])
            token = ops.argmax(ops.take(logits, index, axis=1), axis=-1)
            return ops.slice_update(target_ids, (0, index + 1), ops.cast(token, "int32")[:, None])

        target_ids = ops.pad(ops.full((1, 1), START, "int32"), ((0, 0), (0, self.length)))
        return ops.fori_loop(0, self.length, step, target_ids)[:, 1:]


def build(vocab_size, num_layers, dim, recurrent_dim):
    """The Transformer and the recurrent model, with attention to the source, ready to be trained."""
    transformer = txf.models.encoder_decoder(vocab_size, vocab_size, num_layers, dim, num_heads=4)
    lstm = txf.models.recurrent_encoder_decoder(vocab_size, vocab_size, num_layers, recurrent_dim, attention="additive")
    models = {"Transformer": transformer, "LSTM": lstm}
    for model in models.values():
        model.compile("adam", txf.training.TokenCrossEntropy())
    return models


def make_calls(models, length, vocab_size, num_layers):
    """What is timed at one length: functions without arguments, by their labels."""
    source_ids, answer = np.random.default_rng(length).integers(FIRST_WORD, vocab_size, (2, 1, length), "int32")
    inputs, targets = txf.training.teacher_forcing(source_ids, np.insert(answer, 0, START, axis=1))
    calls, naive = {}, NaiveLoop(models["Transformer"], num_layers, length)
    naive.compile(jit_compile=True)  # by XLA, as `generate` is
    calls["Transformer, no cache"] = lambda: naive.predict_on_batch(source_ids)
    for name, model in models.items():
        calls[f"{name}, step"] = lambda model=model: model.train_on_batch(inputs, targets)
        calls[f"{name}, forward"] = lambda model=model: model.predict_on_batch(inputs)
        label = "LSTM, state" if name == "LSTM" else "Transformer, cache"
        calls[label] = lambda model=model: model.generate(source_ids, length, start_id=START)
    return calls


def measure(lengths, vocab_size, num_layers, dim, recurrent_dim, repeats):
    """Median seconds by label, a list of them by length; and how many parameters the models have."""
    models = build(vocab_size, num_layers, dim, recurrent_dim)
    calls = {T: make_calls(models, T, vocab_size, num_layers) for T in lengths}
    # All lengths take turns, so that a slow minute of the machine bends no line.
    medians = costs.seconds({(label, T): call for T in lengths for label, call in calls[T].items()}, repeats)
    return {
        "parameters": {name: model.count_params() for name, model in models.items()},
        "lengths": list(lengths),
        "seconds": {label: [medians[label, T] for T in lengths] for label in (*TRAINING, *INFERENCE)},
    }


def show(results, folder):
    """Prints the times as a table, and reports those of the longest sentence."""
    seconds, (*_, longest) = results["seconds"], results["lengths"]
    print(f"\nMilliseconds for one sentence; parameters: {results['parameters']}\n")
    print(f"| target length | {' | '.join(seconds)} |\n|{'---:|' * (len(seconds) + 1)}")
    for length, *times in zip(results["lengths"], *seconds.values()):
        print(f"| {length} | {' | '.join(f'{1000 * time:.{0 if time > 0.1 else 1}f}' for time in times)} |")
    last = ", ".join(f"{label} {1000 * times[-1]:.0f}" for label, times in seconds.items())
    data.report(folder, f"Milliseconds for a sentence of {longest} tokens: {last}")


def draw(results, path):
    """Above, what is computed in one pass and what step by step; below, the times."""
    figure = Figure(figsize=(10, 8.6), layout="constrained")
    masks, times = figure.subplots(2, 2, sharey="row", height_ratios=(1, 1.1))
    masks[0].set(title="Training: all rows at once", xlabel="input positions that each row sees; later ones are masked")
    masks[1].set(title="Inference: one row after the other")
    masks[1].set_xlabel('"new": computed in this step\n"known": read from the cache; without one, computed again')
    for axes, words in zip(masks, (("seen", "seen"), ("known", "new"))):
        axes.imshow(np.tri(5) + np.eye(5) * (words[1] == "new"), cmap="Blues", vmin=0, vmax=3)
        for row, column in zip(*np.tril_indices(5)):
            axes.text(column, row, words[int(row == column)], ha="center", va="center")
        axes.set_xticks(range(5), EXAMPLE[:-1])
        axes.set_yticks(range(5), [f"{step + 1}: {word}" for step, word in enumerate(EXAMPLE[1:])])
    titles = "One sentence at training, teacher forcing", "One sentence at inference, token by token"
    for axes, title, styles in zip(times, titles, (TRAINING, INFERENCE)):
        for label, style in styles.items():
            axes.loglog(results["lengths"], 1000 * np.array(results["seconds"][label]), style, label=label)
        axes.set(title=title, xlabel="target length in tokens, source as long", ylabel="milliseconds")
        axes.set_xticks(results["lengths"], map(str, results["lengths"]))
        axes.set_xticks([], minor=True)
        axes.legend(loc="upper left")
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="DIR", type=pathlib.Path, default="runs/translation_time", help="%(default)s")
    parser.add_argument("--quick", action="store_true", help="few lengths, small models")
    parser.add_argument("--repeats", type=data.positive, default=7, help="timings of each call (default: 7)")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(1)
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # that a new length means a new trace is meant
    print("Building two models; each length compiles before its timing.", flush=True)
    results = measure(*SIZES["quick" if options.quick else "full"], options.repeats)
    data.write(options.out / "results.json", json.dumps(results, indent=1))
    draw(results, options.out / "translation_time.png")
    show(results, options.out)


if __name__ == "__main__":
    main()
