"""One training step of three models, on each backend, beside KerasHub and plain PyTorch.

Each contender builds its model in a process of its own. Then all processes take one step in turn, so that what slows
the machine slows them all; the table has medians, and each time over the fastest PyTorch's.

    pip install '.[test]' keras-hub jax
    python benchmarks/train_step.py
    python benchmarks/train_step.py --work gpt --dtype bfloat16 --contender "keras_txf tensorflow" "PyTorch"
"""

import argparse
import multiprocessing
import os
import statistics
import time

WORKS = {
    # nanoGPT's model; `tiny gpt` has the sizes that nanoGPT's README recommends for a CPU.
    "gpt": dict(task="gpt", layers=6, dim=384, heads=6, vocab=8192, length=256, batch=8, dropout=0.0),
    "tiny gpt": dict(task="gpt", layers=4, dim=128, heads=4, vocab=65, length=64, batch=12, dropout=0.0),
    "classifier": dict(task="classifier", layers=4, dim=256, heads=4, vocab=8192, length=128, batch=32, dropout=0.1),
    "translator": dict(task="translator", layers=2, dim=256, heads=4, vocab=8192, length=128, batch=32, dropout=0.1),
}
CONTENDERS = {  # library, backend, whether the step is compiled as a whole (by XLA, or torch.compile)
    "keras_txf tensorflow": ("keras_txf", "tensorflow", False),
    "keras_txf tensorflow, XLA": ("keras_txf", "tensorflow", True),
    "keras_txf jax": ("keras_txf", "jax", True),
    "keras_txf torch": ("keras_txf", "torch", False),
    "KerasHub tensorflow": ("keras_hub", "tensorflow", False),
    "KerasHub tensorflow, XLA": ("keras_hub", "tensorflow", True),
    "KerasHub jax": ("keras_hub", "jax", True),
    "KerasHub torch": ("keras_hub", "torch", False),
    "PyTorch": ("pytorch", "torch", False),
    "PyTorch, torch.compile": ("pytorch", "torch", True),
}


def take_steps(pipe, contender, size, dtype):
    """Takes a step for each message, and answers with its seconds; the first answer is the number of parameters."""
    library, backend, compiled = CONTENDERS[contender]
    os.environ.update(KERAS_BACKEND=backend, TF_CPP_MIN_LOG_LEVEL="3")
    if library == "pytorch":
        from train_step_pytorch import build
    else:
        from train_step_keras import build
    step, parameters = build(library, size, dtype, compiled)
    pipe.send(parameters)
    while pipe.recv():
        start = time.perf_counter()
        step()
        pipe.send(time.perf_counter() - start)


def compare(names, size, dtype, repeats, warmup=3):
    """Returns (parameters, median seconds) of each contender."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = {}, []
    for name in names:
        pipes[name], theirs = context.Pipe()
        processes.append(context.Process(target=take_steps, args=(theirs, name, size, dtype), daemon=True))
        processes[-1].start()
        theirs.close()  # so that a process that ends is an error here, not a wait without end
    parameters = {name: pipe.recv() for name, pipe in pipes.items()}
    times = {name: [] for name in names}
    for repeat in range(warmup + repeats):
        for name, pipe in pipes.items():
            pipe.send(True)
            seconds = pipe.recv()
            if repeat >= warmup:
                times[name].append(seconds)
    for pipe, process in zip(pipes.values(), processes):
        pipe.send(False)
        process.join()
    return {name: (parameters[name], statistics.median(times[name])) for name in names}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", nargs="+", default=list(WORKS), choices=WORKS)
    parser.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"], choices=["float32", "bfloat16"])
    parser.add_argument("--contender", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    print(f"medians of {options.repeats} steps in turn; ratio: over the fastest of PyTorch")
    print(f"{'work':12}{'dtype':10}{'contender':27}{'parameters':>11}{'ms':>9}{'tokens/s':>10}{'ratio':>7}")
    for work in options.work:
        size = WORKS[work]
        for dtype in options.dtype:
            results = compare(options.contender, size, dtype, options.repeats)
            best = min((seconds for name, (_, seconds) in results.items() if name.startswith("PyTorch")), default=None)
            for name, (parameters, seconds) in results.items():
                tokens = size["batch"] * size["length"]
                ratio = f"{seconds / best:7.2f}" if best else ""
                print(
                    f"{work:12}{dtype:10}{name:27}{parameters:11,}{1e3 * seconds:9.1f}{tokens / seconds:10,.0f}{ratio}"
                )


if __name__ == "__main__":
    main()
