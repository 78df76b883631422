"""Recurrent models and a Transformer on the same task: as many parameters each, as long a training each.

    python examples/compare_models.py dates                                # 150 seconds a model and seed
    python examples/compare_models.py translate --data DIR --seconds 600   # Multi30k's .gz files
    python examples/compare_models.py dates --models gru transformer --seeds 4 5

Optimiser, learning rate and its course over the time are the same for all. The clock counts training alone: it begins
after the first step, which compiles, and stands still during evaluations. A process of its own trains each model.
After a kill, call again: the trainings that were complete are kept in --out. What the table shows is what is written,
whichever wins.
"""

import argparse
import gc
import gzip
import json
import math
import multiprocessing
import pathlib
import time
import types

import baselines
import costs
import data
import dates
import keras
import numpy as np
import read_dates
import tensorflow as tf
import translate
from matplotlib.figure import Figure

import keras_txf as txf

POINTS = 30  # evaluations in a training, evenly over its time
SLICE = 500  # validation examples of each
WARM_UP = 0.1  # share of the training time
COLUMNS = {  # of the table, after those of the task's own scores: title -> key of a run, digits
    "training tokens/s": ("training_tokens_per_second", 0),
    "steps": ("steps", 0),
    "steps to {}": ("steps_to_goal", 0),
    "seconds to {}": ("seconds_to_goal", 1),
    "one sentence, ms": ("latency_ms", 1),
    "64 sentences, tokens/s": ("tokens_per_second", 0),
    "peak memory, MB": ("peak_memory_mb", 0),
    "of it in training": ("training_memory_mb", 0),
}


def dates_task(options):
    training, held_out = dates.make_pairs(600 if options.quick else 26000, read_dates.LONGEST, seed=1)
    characters = "".join(sorted({character for _, text, _ in training for character in text}))

    def rows(pairs):
        return tf.data.Dataset.from_tensor_slices(read_dates.encode(pairs, characters))

    def build(kind):
        return baselines.build(kind, read_dates.build(characters), num_layers=1, bidirectional=True, dropout=0.0)

    def score(model):
        answers = read_dates.read([text for _, text, _ in held_out], model, characters)
        return {"exact match": float(np.mean([answer == str(date) for (*_, date), answer in zip(held_out, answers)]))}

    return types.SimpleNamespace(
        build=build, score=score, loss=txf.training.TokenCrossEntropy(), length=10,
        training=rows(training).shuffle(len(training)).batch(read_dates.BATCH).prefetch(2),
        target_tokens=10 * len(training), validation=rows(held_out[:SLICE]).batch(SLICE),
        sources=read_dates.encode_texts([text for _, text, _ in held_out[:64]], characters),
    )  # fmt: skip


def translate_task(options):
    paths = data.find(options.data, translate.ADDRESS, translate.FILES)
    lines = {name: gzip.open(path, "rt", encoding="utf-8") for name, path in paths.items()}
    texts = {name: [translate.split(line) for line in file] for name, file in lines.items()}
    english, german = (translate.Vocabulary.of(texts[f"train.{language}.gz"]) for language in ("en", "de"))
    train, val, test = (
        ([english.ids(t) for t in texts[f"{name}.en.gz"]], [german.ids(t) for t in texts[f"{name}.de.gz"]])
        for name in ("train", "val", "test_2016_flickr")
    )
    references = [" ".join(words) for words in texts["test_2016_flickr.de.gz"][:200]]

    def score(model):
        import sacrebleu  # only here

        perplexity = model.evaluate(translate.batches(*val), verbose=0, return_dict=True)["perplexity"]
        answers = model.generate(test[0][:200], translate.LONGEST, stop_ids=translate.STOP, start_id=translate.START)
        answers = [german.text(answer) for answer in answers]
        bleu = sacrebleu.corpus_bleu(answers, [references], tokenize="none", force=True).score  # of words
        return {"perplexity": perplexity, "BLEU": bleu}

    return types.SimpleNamespace(
        build=lambda kind: translate.build(english, german, types.SimpleNamespace(dim=128, model=kind), 2), score=score,
        loss=txf.training.TokenCrossEntropy(label_smoothing=0.1), length=15, sources=test[0][:64],
        training=txf.text.counted(translate.batches(*train, shuffle=True)),
        target_tokens=sum(len(ids) + 1 for ids in train[1]),
        validation=txf.text.counted(translate.batches(*(side[:SLICE] for side in val))),
    )  # fmt: skip


TASKS = {"dates": (dates_task, 0.95, 150), "translate": (translate_task, 0.5, 600)}  # data, goal, seconds


class Clock(keras.callbacks.Callback):
    """Ends the training after so many seconds, and measures and sets the learning rate on the way.

    `curve` holds (seconds, steps, share of the validation tokens that are right).
    """

    def __init__(self, seconds, peak, validation):
        super().__init__()
        self.seconds, self.peak, self.validation = seconds, peak, validation
        self.trained, self.steps, self.since, self.curve = 0.0, 0, None, []

    def on_train_batch_end(self, batch, logs=None):
        if self.since is not None:  # not the first step
            self.trained += time.perf_counter() - self.since
            self.steps += 1
        share = self.trained / self.seconds
        if share * POINTS >= len(self.curve) + 1:
            accuracy = self.model.evaluate(self.validation, verbose=0, return_dict=True)["token_accuracy"]
            self.curve.append((self.trained, self.steps, accuracy))
            print(f"  {self.trained:.1f} s, {self.steps} steps: validation token accuracy {accuracy:.4f}", flush=True)
        self.model.optimizer.learning_rate = learning_rate(share, self.peak)
        self.model.stop_training = share >= 1
        self.since = time.perf_counter()


def learning_rate(share, peak):
    """The rate when this share of the time has passed: a linear rise, times a cosine down to 0."""
    return peak * min(1, share / WARM_UP) * (1 + math.cos(math.pi * min(1, share))) / 2


def reached(curve, goal):
    """Seconds and steps of the first measurement that is as good as the goal, or None twice."""
    return next(((seconds, steps) for seconds, steps, quality in curve if quality >= goal), (None, None))


def train(kind, seed, options, path):
    """Trains one model and writes what was measured; for a process of its own, as memory is measured by its peak."""
    keras.utils.set_random_seed(seed)
    make, goal, _ = TASKS[options.task]
    task = make(options)
    model = task.build(kind)
    metrics = [txf.training.TokenAccuracy(), txf.training.Perplexity()]
    model.compile(keras.optimizers.Adam(0.0, beta_2=0.98), task.loss, metrics=metrics)
    clock = Clock(options.seconds, options.rate, task.validation)
    forget_peak()
    before = megabytes("VmRSS")
    model.fit(task.training, epochs=10**6, shuffle=False, verbose=0, callbacks=[clock])
    peak, per_step = megabytes("VmHWM"), task.target_tokens / len(task.training)
    seconds_to_goal, steps_to_goal = reached(clock.curve, goal)
    latency, many = (generation_seconds(model, task.sources[:rows], task.length) for rows in (1, len(task.sources)))
    run = {
        "model": kind, "seed": seed, "parameters": model.count_params(), "scores": task.score(model),
        "steps": clock.steps, "seconds": clock.trained,
        "training_tokens_per_second": per_step * clock.steps / clock.trained,
        "steps_to_goal": steps_to_goal, "seconds_to_goal": seconds_to_goal, "latency_ms": 1000 * latency,
        "tokens_per_second": len(task.sources) * task.length / many, "peak_memory_mb": peak,
        "training_memory_mb": peak and peak - before, "curve": clock.curve,
    }  # fmt: skip
    data.write(path, json.dumps(run))


def generation_seconds(model, sources, length, repeats=7):
    """Median seconds of calls after the first; no answer stops early, so that all models write the same length."""
    return costs.seconds({"generate": lambda: model.generate(sources, length)}, repeats)["generate"]


def forget_peak():
    """The peak so far is that of the search for a width, which also builds models that are too wide."""
    gc.collect()
    if (switch := pathlib.Path("/proc/self/clear_refs")).exists():
        switch.write_text("5")  # Linux: VmHWM begins anew at what is resident now


def megabytes(name):
    """Resident memory of this process: peak (VmHWM) or now (VmRSS); None where the system does not say."""
    status = pathlib.Path("/proc/self/status")  # Linux; getrusage's peak begins with that of the parent process
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:")), None)


def cell(values, digits):
    """Mean and range of the seeds; how many have a value where not all do."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    mean, low, high = (f"{value:,.{digits}f}" for value in (np.mean(known), min(known), max(known)))
    some = "" if len(known) == len(values) else f", {len(known)} of {len(values)} seeds"
    return (mean if low == high else f"{mean} ({low} to {high})") + some


def table(runs, goal):
    """Markdown rows, one a model: means over its seeds."""
    scores = list(runs[0]["scores"])
    rows = [["model", "parameters", *scores, *(title.format(goal) for title in COLUMNS)]]
    for kind, own in by_model(runs).items():
        found = [cell([run["scores"][score] for run in own], 3 if score == "exact match" else 2) for score in scores]
        found += [cell([run[key] for run in own], digits) for key, digits in COLUMNS.values()]
        rows.append([kind, f"{own[0]['parameters']:,}", *found])
    rows.insert(1, ["---", *["---:"] * (len(rows[0]) - 1)])
    return ["| " + " | ".join(row) + " |" for row in rows]


def by_model(runs):
    return {kind: [run for run in runs if run["model"] == kind] for kind in dict.fromkeys(run["model"] for run in runs)}


def draw(runs, goal, path):
    axes = Figure(figsize=(8, 5), layout="constrained").subplots()
    for number, (kind, own) in enumerate(by_model(runs).items()):
        curves = [np.array(run["curve"])[:, [0, 2]].T for run in own]
        grid = np.linspace(max(seconds[0] for seconds, _ in curves), min(seconds[-1] for seconds, _ in curves), 200)
        for seconds, quality in curves:
            axes.plot(seconds, quality, color=f"C{number}", linewidth=0.6, alpha=0.5)
        axes.plot(grid, np.mean([np.interp(grid, *curve) for curve in curves], axis=0), color=f"C{number}", label=kind)
    axes.axhline(goal, color="grey", linestyle=":", linewidth=1)
    axes.set(xlabel="seconds of training", ylabel="validation token accuracy", xlim=0)
    axes.set_title("Mean of the seeds (thick) and each seed (thin); as many parameters each")
    axes.legend(loc="lower right")
    axes.figure.savefig(path, dpi=150)


def main():
    options = parse_options()
    data.claim(options.out, task=options.task, seconds=options.seconds, rate=options.rate, quick=options.quick)
    runs = []
    for seed in options.seeds:
        for kind in options.models:
            path = options.out / f"{kind}_{seed}.json"
            if not path.exists():
                print(f"Training {kind}, seed {seed}.", flush=True)
                process = multiprocessing.get_context("spawn").Process(target=train, args=(kind, seed, options, path))
                process.start()
                process.join()
                if process.exitcode:
                    raise SystemExit(f"error: training {kind}, seed {seed}, ended with exit code {process.exitcode}.")
            runs.append(json.loads(path.read_text(encoding="utf-8")))
    goal = TASKS[options.task][1]
    data.write(options.out / "results.json", json.dumps({"task": options.task, "goal": goal, "runs": runs}, indent=1))
    draw(runs, goal, options.out / "models.png")
    print("\n" + "\n".join(table(runs, goal)) + "\n")
    score = list(runs[0]["scores"])[-1]
    found = (f"{kind} {cell([run['scores'][score] for run in own], 3)}" for kind, own in by_model(runs).items())
    data.report(options.out, f"{score} after {options.seconds:g} s of training: {', '.join(found)}")


def positive_seconds(text):
    if not 0 < (seconds := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text}")
    return seconds


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--data", metavar="DIR", help="of translate: Multi30k's .gz files (default: download them)")
    parser.add_argument("--seconds", type=positive_seconds, help="of training each (default: dates 150, translate 600)")
    parser.add_argument("--models", nargs="+", choices=baselines.MODELS, help="(default: four of them)")
    parser.add_argument("--seeds", nargs="+", type=int, help="(default: 1 2 3)")
    parser.add_argument("--rate", type=float, default=2e-3, help="highest learning rate of all models (default: 2e-3)")
    parser.add_argument("--out", metavar="DIR", type=pathlib.Path, help="(default: runs/compare_ and the task)")
    parser.add_argument("--quick", action="store_true", help="two models, one seed, few dates, 4 seconds")
    options = parser.parse_args()
    models = ["lstm", "lstm-multiplicative", "gru-multiplicative", "transformer"]
    options.models = list(dict.fromkeys(options.models or (models[::3] if options.quick else models)))
    options.seeds = list(dict.fromkeys(options.seeds or ([1] if options.quick else [1, 2, 3])))
    options.seconds = options.seconds or (4.0 if options.quick else float(TASKS[options.task][2]))
    options.out = options.out or pathlib.Path("runs", f"compare_{options.task}")
    return options


if __name__ == "__main__":
    main()
