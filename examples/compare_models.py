"""Recurrent models and a Transformer on the same task: as many parameters each, as long a training each.

    python examples/compare_models.py dates                                # 60 seconds a model and seed
    python examples/compare_models.py translate --data DIR                 # Multi30k's .gz files
    python examples/compare_models.py dates --models gru transformer --seeds 4 5

Optimiser, learning rate and its course over the time are the same for all. The clock counts training alone: it begins
after the first step, which compiles, and stands still between epochs and during evaluations. A process of its own
trains each model. After a kill, call again: the trainings that were complete are kept in --out, and the table is of all
that are there. What the table shows is what is written, whichever wins.
"""

import argparse
import gc
import json
import math
import multiprocessing
import pathlib
import time
import warnings

import baselines
import comparison_tables
import costs
import data
import keras
from comparison_tasks import TASKS

import keras_txf as txf

POINTS = 30  # evaluations in a training, evenly over its time
WARM_UP = 0.1  # share of the training time


class Clock(keras.callbacks.Callback):
    """Ends the training after so many seconds, and measures and sets the learning rate on the way.

    `curve` holds (seconds, steps, share of the validation tokens that are right).
    """

    def __init__(self, seconds, peak, validation):
        super().__init__()
        self.seconds, self.peak, self.validation = seconds, peak, validation
        self.trained, self.steps, self.since, self.curve = 0.0, 0, None, []

    def on_train_batch_begin(self, batch, logs=None):
        if (
            batch == 0 and self.since is not None
        ):  # between epochs TensorFlow waits for its input now and then, up to a minute
            self.since = time.perf_counter()

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
    warnings.filterwarnings("ignore", message="Your input ran out of data")  # an epoch ends where its batches do
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


def main():
    options = parse_options()
    data.claim(options.out, task=options.task, seconds=options.seconds, rate=options.rate, quick=options.quick)
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
    # All that was trained with these settings, in earlier calls too.
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(options.out.glob("*_*.json"))]
    order = [*baselines.MODELS[1:], baselines.MODELS[0]]  # the Transformer last
    runs = sorted(kept, key=lambda run: (order.index(run["model"]), run["seed"]))
    goal = TASKS[options.task][1]
    data.write(options.out / "results.json", json.dumps({"task": options.task, "goal": goal, "runs": runs}, indent=1))
    comparison_tables.draw(runs, goal, options.out / "models.png")
    print("\n" + "\n".join(comparison_tables.table(runs, goal)) + "\n")
    score = list(runs[0]["scores"])[-1]
    found = comparison_tables.summary(runs, score)
    data.report(options.out, f"{score} after {options.seconds:g} s of training: {found}")


def positive_seconds(text):
    if not 0 < (seconds := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got {text}")
    return seconds


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--data", metavar="DIR", help="of translate: Multi30k's .gz files (default: download them)")
    parser.add_argument("--seconds", type=positive_seconds, help="of training each (default: dates 60, translate 100)")
    parser.add_argument(
        "--models",
        nargs="+",
        choices=baselines.MODELS,
        help="(default: lstm lstm-multiplicative gru-multiplicative transformer)",
    )
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
