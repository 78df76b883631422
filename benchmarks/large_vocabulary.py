"""Time and memory of a training step of a language model with a large vocabulary: `fit` with and without whole logits.

Each figure is of a fresh process, whose memory is the peak over what it held before `fit`, with the weights and the
state of the optimizer (Linux). The contenders run in turn; times are medians of the steps after the first of each
process.

    python benchmarks/large_vocabulary.py                                # 4,096 tokens, dim 512, TensorFlow
    python benchmarks/large_vocabulary.py --vocab-size 8192 --backend jax --accuracy
    python benchmarks/large_vocabulary.py --vocab-size 128256 --r-drop
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

ROWS, LENGTH, DIM = 8, 512, 512
CONTENDERS = ("whole logits", "in chunks")


def megabytes(entry):
    """VmRSS, the resident memory of this process, or VmHWM, its peak."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split(f"{entry}:")[1].split()[0]) / 1024


def in_process(options):
    import keras

    import keras_txf as txf
    from keras_txf.ops import logit_factors

    if options.contender == "whole logits":
        logit_factors.LARGE = 10**9
    [vocab_size] = options.vocab_size
    dropout = 0.1 if options.r_drop else 0.0
    model = txf.models.decoder_generator(vocab_size, num_layers=1, dim=DIM, num_heads=8, dropout=dropout)
    loss = txf.training.RDrop() if options.r_drop else txf.training.TokenCrossEntropy()
    metrics = [txf.training.TokenAccuracy()] if options.accuracy else None
    model.compile("adam", loss, metrics=metrics, run_eagerly=options.eager)
    model.optimizer.build(model.trainable_variables)
    ids = np.random.default_rng(0).integers(1, vocab_size, (ROWS, LENGTH + 1)).astype("int32")
    if options.r_drop:
        ids = np.concatenate([ids[: ROWS // 2]] * 2)
    before, times = megabytes("VmRSS"), []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.start = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            times.append(time.perf_counter() - self.start)

    steps = options.repeats + 1
    model.fit(
        *txf.training.shift_labels(ids), batch_size=ROWS, shuffle=False, epochs=steps, verbose=0, callbacks=[Clock()]
    )
    print(json.dumps({"seconds": times[1:], "megabytes": megabytes("VmHWM") - before}))


def in_fresh_process(contender, vocab_size, options):
    arguments = ["--contender", contender, "--vocab-size", str(vocab_size), "--repeats", str(options.repeats)]
    arguments += ["--accuracy"] * options.accuracy + ["--eager"] * options.eager
    arguments += ["--r-drop"] * options.r_drop
    environment = {**os.environ, "KERAS_BACKEND": options.backend}
    run = subprocess.run([sys.executable, __file__, *arguments], env=environment, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(run.stderr[-2000:])
    return json.loads(run.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab-size", type=int, nargs="+", default=[8192, 32768, 128256])
    parser.add_argument("--backend", default="tensorflow", choices=["tensorflow", "jax", "torch"])
    parser.add_argument("--accuracy", action="store_true", help="compile TokenAccuracy too")
    parser.add_argument("--eager", action="store_true", help="compile with run_eagerly=True")
    parser.add_argument("--r-drop", action="store_true", help="train with RDrop, on half as many texts twice")
    parser.add_argument("--repeats", type=int, default=3, help="steps of a process after the first")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each contender")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        return in_process(options)
    print(f"{'V':>7} {'contender':14} {'seconds':>8} {'MB':>7}")
    for vocab_size in options.vocab_size:
        found = {name: [] for name in CONTENDERS}
        for _ in range(options.rounds):
            for name in CONTENDERS:
                found[name].append(in_fresh_process(name, vocab_size, options))
        for name, runs in found.items():
            seconds = statistics.median(second for run in runs for second in run["seconds"])
            print(f"{vocab_size:7} {name:14} {seconds:8.2f} {max(run['megabytes'] for run in runs):7.0f}", flush=True)


if __name__ == "__main__":
    main()
