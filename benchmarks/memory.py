"""Measures a process's memory over many calls of `generate`, or over a long answer of hybrids.

    python benchmarks/memory.py --calls 2000     # random lengths, batches and samplers
    python benchmarks/memory.py --answer 4096    # of models with attention in all blocks, or in one of four

Each model of `--answer` has a fresh process. Its memory is the peak over what it held before the first call (Linux).
The cache is what a state of `Decoder` holds for the same prompt and answer.
"""

import argparse
import gc
import pathlib
import random
import subprocess
import sys

import keras
import numpy as np

import keras_txf as txf

SAMPLERS = [
    lambda: "greedy",
    lambda: txf.generation.Sampling(0.8, top_k=random.choice([None, 5, 9])),
    lambda: txf.generation.Sampling(top_p=0.9),
    lambda: txf.generation.Beam(random.choice([2, 3])),
]


ROWS, PROMPT, LAYERS, DIM, HEADS = 4, 32, 8, 256, 4
MIXERS = {  # of three in four blocks
    "attention": lambda: None,
    "gated delta rule": lambda: txf.layers.GatedDeltaNet(HEADS, DIM // HEADS),
    "short convolution": lambda: txf.layers.ShortConvolution(3),
}


def megabytes(entry="VmRSS"):
    """The resident memory of this process, or VmHWM, its peak, on Linux."""
    status = pathlib.Path("/proc/self/status").read_text()
    return int(status.split(f"{entry}:")[1].split()[0]) // 1024


def call(model, seed):
    rows, longest = random.randint(1, 8), random.randint(1, 200)
    prompts = [[random.randint(1, 99) for _ in range(random.randint(1, longest))] for _ in range(rows)]
    model.generate(prompts, random.randint(1, 60), random.choice(SAMPLERS)(), seed=seed)


def answer(mixer, tokens):
    """Prints the MiB of the cache of one long answer of a model, and of the peak."""
    keras.utils.set_random_seed(0)
    model = txf.models.decoder_generator(
        1000, LAYERS, DIM, HEADS, attention=[*[MIXERS[mixer]()] * 3, None] * (LAYERS // 4), norm="rms",
        norm_placement="pre", position="rotary", pad_id=None,
    )  # fmt: skip
    prompt = np.random.default_rng(0).integers(0, 1000, (ROWS, PROMPT))
    before = megabytes()
    model.generate(prompt, tokens)
    peak = megabytes("VmHWM") - before
    _, state = txf.generation.Decoder(model).prefill(prompt, length=PROMPT + tokens)
    cache = sum(keras.ops.convert_to_numpy(x).nbytes for x in keras.tree.flatten(state["cache"])) / 2**20
    print(f"{mixer:18} {cache:8.1f} {peak:8}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--every", type=int, default=250, help="how many calls lie between two lines")
    parser.add_argument("--answer", type=int, help="tokens of the one long answer")
    parser.add_argument("--mixer", choices=MIXERS, help="measure this model in this process")
    options = parser.parse_args()
    if options.mixer:
        return answer(options.mixer, options.answer)
    if options.answer:
        print(f"{'three of four':18} {'cache':>8} {'peak':>8}", flush=True)
        for mixer in MIXERS:
            command = [sys.executable, __file__, "--answer", str(options.answer), "--mixer", mixer]
            subprocess.run(command, check=True)
        return None
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
