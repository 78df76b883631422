"""Time and memory of attention over long sequences, and of training steps that compute activations again.

Each figure is of a fresh process, whose memory is the peak over what it held before the first call (Linux). The
contenders run in turn; times are medians.

    pip install torch
    python benchmarks/long_sequences.py attention --length 8192 16384   # one attention and its gradient, 8 heads of 64
    python benchmarks/long_sequences.py attention --length 32768 --window 512
    python benchmarks/long_sequences.py attention --whole               # in blocks and with all logits, of any length
    python benchmarks/long_sequences.py rematerialize                    # a training step of 12 layers
    python benchmarks/long_sequences.py generator --length 16384 --backend tensorflow  # a step of `fit`, 4 layers
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

HEADS, HEAD_DIM = 8, 64
BACKENDS = ("tensorflow", "jax", "torch")


def megabytes(entry):
    """VmRSS, the resident memory of this process, or VmHWM, its peak."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split(f"{entry}:")[1].split()[0]) / 1024


def measure(call, repeats):
    """Seconds of each call but the first, which compiles, and the peak of memory over now."""
    before, times = megabytes("VmRSS"), []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return {"seconds": times[1:], "megabytes": megabytes("VmHWM") - before}


def arrays(length, heads_first):
    shape = (1, HEADS, length, HEAD_DIM) if heads_first else (1, length, HEADS, HEAD_DIM)
    return [np.random.default_rng(seed).standard_normal(shape, dtype="float32") for seed in range(3)]


def scaled_dot_product_attention(length, options):
    import torch

    tensors = [torch.tensor(x, requires_grad=True) for x in arrays(length, heads_first=True)]
    mask = None
    if options.window:
        distance = torch.arange(length)[:, None] - torch.arange(length)
        mask = (distance >= 0) & (distance < options.window)

    def call():
        output = torch.nn.functional.scaled_dot_product_attention(*tensors, attn_mask=mask, is_causal=options.causal)
        torch.autograd.grad(output.square().sum(), tensors)

    return call


def ours(length, options):
    import keras

    from keras_txf.ops import attention as kernel
    from keras_txf.ops.masks import AttentionMask

    if options.whole:  # every sequence is long, or none
        kernel.LONG = 2**62 if options.contender.endswith("whole") else 1
    mask = AttentionMask(causal=options.causal or bool(options.window), window=options.window)
    return gradient_of(
        lambda *x: keras.ops.sum(kernel.attention(*x, mask=mask) ** 2), arrays(length, heads_first=False)
    )


def gradient_of(function, values):
    """A call that computes the gradient of a scalar function, compiled as `fit` would."""
    import keras

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tensors = [tf.constant(x) for x in values]

        @tf.function
        def gradients():
            with tf.GradientTape() as tape:
                tape.watch(tensors)
                result = function(*tensors)
            return [x[0, 0, 0, 0] for x in tape.gradient(result, tensors)]

        return lambda: [x.numpy() for x in gradients()]
    if keras.backend.backend() == "jax":
        import jax

        tensors = [jax.numpy.asarray(x) for x in values]
        gradients = jax.jit(lambda *x: [y[0, 0, 0, 0] for y in jax.grad(function, (0, 1, 2))(*x)])
        return lambda: jax.block_until_ready(gradients(*tensors))
    import torch

    tensors = [torch.tensor(x, requires_grad=True) for x in values]
    return lambda: torch.autograd.grad(function(*tensors), tensors)


def training_step(layers, rows, length, rematerialize=False):
    import keras

    import keras_txf as txf

    blocks = [f"decoder_{i}" for i in range(layers)] if rematerialize else []
    with keras.RematScope("list_of_layers", layer_names=blocks):
        model = txf.models.decoder_generator(
            8192, layers, 256, 4, dropout=0.0, norm_placement="pre", activation="gelu_tanh"
        )
    model.compile("adam", txf.training.TokenCrossEntropy())
    ids = np.random.default_rng(0).integers(1, 8192, (rows, length + 1)).astype("int32")
    return lambda: model.fit(ids[:, :-1], ids[:, 1:], batch_size=rows, verbose=0)


def in_process(options):
    if options.work == "rematerialize":
        call = training_step(12, 8, options.length[0], options.contender.endswith("again"))
    elif options.work == "generator":
        call = training_step(4, 1, options.length[0])
    else:
        make = scaled_dot_product_attention if options.contender == "PyTorch's own" else ours
        call = make(options.length[0], options)
    print(json.dumps(measure(call, options.repeats)))


def in_fresh_process(contender, length, options):
    backend = contender.split()[0] if contender.split()[0] in BACKENDS else "torch"
    arguments = [options.work, "--contender", contender, "--repeats", str(options.repeats), "--length", str(length)]
    arguments += (
        ["--window", str(options.window)] * bool(options.window)
        + ["--causal"] * options.causal
        + ["--whole"] * options.whole
    )
    environment = {**os.environ, "KERAS_BACKEND": backend}
    run = subprocess.run([sys.executable, __file__, *arguments], env=environment, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(run.stderr[-2000:])
    return json.loads(run.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=["attention", "rematerialize", "generator"])
    parser.add_argument("--length", type=int, nargs="+", default=[8192], help="of the sequence")
    parser.add_argument("--window", type=int, help="of causal attention")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--whole", action="store_true", help="compare with attention that holds all logits")
    parser.add_argument("--backend", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--repeats", type=int, default=2, help="calls of a process after the first")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each contender")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        return in_process(options)
    if options.work == "attention":
        contenders = [
            *options.backend,
            *[f"{name} whole" for name in options.backend if options.whole],
            "PyTorch's own",
        ]
    elif options.work == "generator":
        contenders = [*options.backend]
    else:
        contenders = [f"{backend} {kind}" for backend in options.backend for kind in ("kept", "computed again")]
        options.length = [512]
    print(f"{'length':>7} {'contender':28} {'seconds':>8} {'MB':>7}")
    for length in options.length:
        found = {name: [] for name in contenders}
        for _ in range(options.rounds):
            for name in contenders:
                found[name].append(in_fresh_process(name, length, options))
        for name, runs in found.items():
            seconds = statistics.median(second for run in runs for second in run["seconds"])
            print(f"{length:7} {name:28} {seconds:8.2f} {max(run['megabytes'] for run in runs):7.0f}", flush=True)


if __name__ == "__main__":
    main()
