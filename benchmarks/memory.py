"""Measures a process's memory over many calls of `generate` with random lengths, batches and samplers.

python benchmarks/memory.py --calls 2000

"""

import argparse
import gc
import pathlib
import random

import keras_txf as txf

SAMPLERS = [
    lambda: "greedy",
    lambda: txf.generation.Sampling(0.8, top_k=random.choice([None, 5, 9])),
    lambda: txf.generation.Sampling(top_p=0.9),
    lambda: txf.generation.Beam(random.choice([2, 3])),
]


def megabytes():
    """The resident memory of this process, on Linux."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096 // 2**20


def call(model, seed):
    rows, longest = random.randint(1, 8), random.randint(1, 200)
    prompts = [[random.randint(1, 99) for _ in range(random.randint(1, longest))] for _ in range(rows)]
    model.generate(prompts, random.randint(1, 60), random.choice(SAMPLERS)(), seed=seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--every", type=int, default=250, help="how many calls lie between two lines")
    options = parser.parse_args()
    random.seed(1)
    model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    print(f"{'calls':>6} {'MiB':>6}\n{0:6} {megabytes():6}")
    for number in range(1, options.calls + 1):
        call(model, seed=number)
        if number in (1, 10, 50, 100) or number % options.every == 0:
            gc.collect()
            print(f"{number:6} {megabytes():6}", flush=True)


if __name__ == "__main__":
    main()
