"""The loop, the window and attention on the same work, each as one layer: what they cost as T and d double, measured.

    python examples/compare_architectures.py            # some two minutes on two cores
    python examples/compare_architectures.py --quick    # fewer sizes

T is the length, d the width, k the convolution's kernel; the batch is one. XLA compiles all programs (on TensorFlow).
The theory is table 1 of Vaswani et al., "Attention Is All You Need", 2017.
"""

import argparse
import json
import pathlib
import tempfile

import architecture_tables
import costs
import data
import keras
import numpy as np
import tensorflow as tf

import keras_txf as txf

KERNEL, HEADS = 3, 4
LAYERS = {
    "SimpleRNN": lambda d, **options: keras.layers.SimpleRNN(d, return_sequences=True, **options),
    "LSTM": lambda d, **options: keras.layers.LSTM(d, return_sequences=True, **options),
    "GRU": lambda d, **options: keras.layers.GRU(d, return_sequences=True, **options),
    "convolution": lambda d, **options: keras.layers.Conv1D(d, KERNEL, padding="causal", **options),
    "causal attention": lambda d, **options: txf.layers.MultiHeadSelfAttention(HEADS, causal=True, **options),
    "attention": lambda d, **options: txf.layers.MultiHeadSelfAttention(HEADS, **options),
    "learned positions": lambda d, length: txf.layers.PositionalEmbedding(None, d, "learned", max_length=length),
}
MEASURED_LAYERS = [name for name in LAYERS if name != "learned positions"]
DIM, SHORT = 64, 64  # the width while T doubles, the length while d doubles
SIZES = {  # T, d, and the distances over which gradients are followed
    "full": ([64, 128, 256, 512, 1024, 2048, 4096], [32, 64, 128, 256], [8, 16, 32, 64, 128, 256, 512]),
    "quick": ([64, 1024], [64, 256], [8, 32]),
}


def measure(T, d, options, folder):
    """Costs of each layer at one size."""
    inputs, calls, found = tf.random.normal((1, T, d)), {}, {}
    for name in MEASURED_LAYERS:
        layer = LAYERS[name](d)
        layer.build(inputs.shape)
        forward = tf.function(layer.__call__, jit_compile=True)
        label = f"training_{name.replace(' ', '_')}_{T}_{d}_end"
        calls[name, "forward"] = lambda forward=forward: forward(inputs)
        train = training(layer, label)
        calls[name, "training"] = lambda train=train: train(inputs)
        calls[name, "training"]()
        counted = vars(costs.count(forward, inputs))
        found[name] = counted | {"parameters": layer.count_params(), "memory": costs.peak_memory(folder, label)}
    for (name, cost), seconds in costs.seconds(calls, options.repeats).items():
        found[name][cost] = seconds
    positions = LAYERS["learned positions"](d, T)
    positions.build((1, T))
    return found | {"learned positions": {"parameters": positions.count_params()}}


def training(layer, label):
    """The gradient of the layer's sum of squares, by its inputs and weights, as a program named `label`."""

    def train(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(layer(inputs) ** 2)
        return tape.gradient(loss, [inputs, *layer.trainable_variables])

    train.__name__ = label
    return tf.function(train, jit_compile=True)


def gradient_path(name, T, d, seeds):
    """Applications between the last output and the first input, and |dy_T / dx_1| after them, of a fresh layer.

    A layer is stacked until the gradient arrives; within a loop each turn is an application. The norm is the root mean
    square over the seeds, 8 random inputs each, and as many directions of y_T of length 1.
    """
    inputs, squares = tf.random.normal((8, T, d), dtype="float64"), []
    layer = LAYERS[name](d, dtype="float64")
    layer.build(inputs.shape)
    back = tf.function(lambda gradient: back_through(layer, inputs, gradient))
    for seed in seeds:
        keras.utils.set_random_seed(seed)
        fresh = LAYERS[name](d, dtype="float64")
        fresh.build(inputs.shape)
        layer.set_weights(fresh.get_weights())
        direction = tf.math.l2_normalize(tf.random.normal((8, 1, d), dtype="float64"), axis=-1)
        gradient, layers = tf.pad(direction, [[0, 0], [T - 1, 0], [0, 0]]), 0
        while not np.any(gradient[:, 0]):
            gradient, layers = back(gradient), layers + 1
        squares.append(np.mean(np.sum(np.square(gradient[:, 0]), axis=-1)))
    turns = costs.count(tf.function(layer.__call__, jit_compile=True), inputs).trips
    return layers * max(1, turns), float(np.sqrt(np.mean(squares)))


def back_through(layer, inputs, gradient):
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs)
    return tape.gradient(outputs, inputs, gradient)


def run(options, folder):
    """Costs at each length, at each width, and the gradient at each distance."""
    lengths, widths, distances = SIZES["quick" if options.quick else "full"]
    seeds = range(options.seed, options.seed + options.seeds)
    bar = keras.utils.Progbar(len(lengths) + len(widths) + len(distances), unit_name="size")
    results = {"dim": DIM, "short": SHORT, "kernel": KERNEL, "T": {}, "d": {}, "distance": {}}
    for axis, sizes in (("T", lengths), ("d", widths)):
        for size in sizes:
            T, d = (size, DIM) if axis == "T" else (SHORT, size)
            known = results["T"].get(T) if d == DIM else None
            results[axis][size] = known or measure(T, d, options, folder)
            bar.add(1)
    for T in distances:
        results["distance"][T] = {name: gradient_path(name, T, 16, seeds) for name in MEASURED_LAYERS}
        bar.add(1)
    return results


def main():
    options = parse_options()
    if keras.backend.backend() != "tensorflow":
        raise SystemExit("error: the costs are read off TensorFlow's programs: set KERAS_BACKEND=tensorflow.")
    options.out.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(options.seed)
    tf.get_logger().setLevel("ERROR")  # that a new layer means a new trace is meant
    print("Compiling each layer at each size, to read its costs off the program.", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        costs.note_memory(folder, "training_.*_end")
        results = run(options, folder)
    data.write(options.out / "results.json", json.dumps(results, indent=1))
    architecture_tables.show(results, options.out)
    architecture_tables.draw(results, options.out / "architectures.png")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="DIR", type=pathlib.Path, default="runs/architectures", help="%(default)s")
    parser.add_argument("--quick", action="store_true", help="few sizes, up to T = 1024, in less than a minute")
    parser.add_argument("--repeats", type=data.positive, default=5, help="timings of each program (default: 5)")
    parser.add_argument("--seeds", type=data.positive, default=3, help="fresh layers for each gradient (default: 3)")
    parser.add_argument("--seed", type=int, default=1, help="of the first of them (default: 1)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
