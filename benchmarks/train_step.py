"""One training step of the three builders beside KerasHub's blocks and PyTorch's own modules.

The same sizes, dropout, loss and Adam for each, in one run, in turn; medians. The last column is the
share of the machine's own matrix-product rate, measured in the same run and number format.

    pip install keras-hub torch
    python benchmarks/train_step.py                                      # TensorFlow, CPU
    KERAS_BACKEND=jax python benchmarks/train_step.py --dtype bfloat16 --size gpu
"""

import argparse
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import train_step_peers as peers
from keras import ops
from timing import interleaved

import keras_txf as txf

SIZES = {  # layers (each side of the pair has half), dim, heads, feed-forward, vocabulary, length, batch
    "small": dict(layers=2, dim=128, heads=4, hidden=512, vocab=4096, length=64, batch=32),
    "medium": dict(layers=4, dim=256, heads=4, hidden=1024, vocab=8192, length=128, batch=32),
    "gpu": dict(layers=12, dim=768, heads=12, hidden=3072, vocab=32768, length=512, batch=32),
}
TASKS = ("classifier", "generator", "pair")


def ours(task, size):
    common = dict(
        dim=size["dim"],
        num_heads=size["heads"],
        intermediate_dim=size["hidden"],
        dropout=peers.DROPOUT,
        attention_dropout=peers.DROPOUT,
        position_encoding="learned",
        max_length=size["length"],
    )
    if task == "classifier":
        return txf.models.encoder_classifier(size["vocab"], 2, size["layers"], **common)
    if task == "generator":
        return txf.models.decoder_generator(size["vocab"], size["layers"], **common)
    return txf.models.encoder_decoder(size["vocab"], size["vocab"], size["layers"] // 2, **common)


def data(task, size, rng):
    shape = (size["batch"], size["length"])
    ids = rng.integers(1, size["vocab"], shape).astype("int32")
    if task == "classifier":
        return ids, rng.integers(0, 2, size["batch"]).astype("int32")
    targets = rng.integers(1, size["vocab"], shape).astype("int32")
    return (ids if task == "generator" else {"source_ids": ids, "target_ids": ids}), targets


def flops(task, size):
    """Of the matrix products in a step; the backward pass does each twice."""
    tokens, dim, length = size["batch"] * size["length"], size["dim"], size["length"]
    attention = 8 * dim * dim + 4 * length * dim
    block = attention + 4 * dim * size["hidden"]
    forward = size["layers"] * block
    if task == "pair":
        forward += size["layers"] // 2 * attention
    if task != "classifier":
        forward += 2 * dim * size["vocab"]
    return 3 * tokens * forward


def keras_step(model, x, y, dtype):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss=loss)
    x = (
        {key: ops.convert_to_tensor(value) for key, value in x.items()}
        if isinstance(x, dict)
        else ops.convert_to_tensor(x)
    )
    y = ops.convert_to_tensor(y)
    return lambda: float(model.train_on_batch(x, y))


def contenders(task, size, dtype, names):
    x, y = data(task, size, np.random.default_rng(0))
    keras.config.set_dtype_policy("mixed_bfloat16" if dtype == "bfloat16" else "float32")
    steps = {"keras_txf": keras_step(ours(task, size), x, y, dtype)}
    if "keras_hub" in names:
        steps["keras_hub"] = keras_step(peers.keras_hub_model(task, size), x, y, dtype)
    if "torch" in names:
        steps["torch"] = peers.torch_step(task, size, x, y, dtype)
    keras.config.set_dtype_policy("float32")
    return steps


def ceiling(dtype, side):
    """FLOP/s of a square matrix product in the backend's own code."""
    product = ops.cast(np.random.default_rng(0).normal(size=(side, side)), dtype)
    times = []
    for _ in range(8):
        start = time.perf_counter()
        np.asarray(ops.convert_to_numpy(ops.cast(ops.matmul(product, product)[0, 0], "float32")))
        times.append(time.perf_counter() - start)
    return 2 * side**3 / min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", default=["small", "medium"], choices=SIZES)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--task", nargs="+", default=TASKS, choices=TASKS)
    parser.add_argument("--peer", nargs="*", default=["keras_hub", "torch"], choices=["keras_hub", "torch"])
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    print(f"backend {keras.backend.backend()}, dropout {peers.DROPOUT}, medians of {arguments.repeats} steps in turn")
    print(f"{'size':7}{'dtype':10}{'model':12}{'contender':11}{'ms':>9}{'tokens/s':>11}{'ratio':>8}{'ceiling':>9}")
    for dtype in arguments.dtype:
        peak = ceiling(dtype, side=16384 if "gpu" in arguments.size else 2048)
        for size_name in arguments.size:
            for task in arguments.task:
                size = SIZES[size_name]
                medians = interleaved(contenders(task, size, dtype, arguments.peer), arguments.repeats)
                tokens = size["batch"] * size["length"]
                for name, seconds in medians.items():
                    ratio = seconds / medians["keras_txf"]
                    share = flops(task, size) / seconds / peak
                    print(
                        f"{size_name:7}{dtype:10}{task:12}{name:11}{1e3 * seconds:9.1f}{tokens / seconds:11,.0f}"
                        f"{ratio:8.2f}{share:9.0%}",
                        flush=True,
                    )
                keras.backend.clear_session()


if __name__ == "__main__":
    main()
