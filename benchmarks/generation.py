"""Greedy generation beside KerasHub, Hugging Face and nanoGPT's loop: milliseconds for each token.

The same sizes and a prompt of 32 for each; random weights; 128 new tokens. Every contender lives in a process of
its own with its own backend; they run in turn, so that what slows the machine slows them all. The first call, which
builds, traces and compiles, is apart. The floor is the time to read the weights once at the memory's own speed.

    pip install keras-hub torch transformers jax
    python benchmarks/generation.py
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

LAYERS, DIM, HEADS, VOCABULARY, PROMPT, NEW = 6, 384, 6, 8192, 32, 128


def keras_txf(batch):
    import keras_txf as txf

    model = txf.models.decoder_generator(
        VOCABULARY, LAYERS, DIM, HEADS, encoding="learned", max_length=PROMPT + NEW, norm_placement="pre",
        activation="gelu", pad_id=None,
    )
    ids = _prompt(batch)
    return lambda: model.generate(ids, max_new_tokens=NEW)


def _keras_hub(batch, jit_compile):
    import keras_hub
    import numpy as np

    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=VOCABULARY, num_layers=LAYERS, num_heads=HEADS, hidden_dim=DIM, intermediate_dim=4 * DIM,
        dropout=0.0, max_sequence_length=PROMPT + NEW,
    )
    model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    model.compile(sampler="greedy", jit_compile=jit_compile)
    ids = np.pad(_prompt(batch), ((0, 0), (0, NEW)))
    mask = np.pad(np.ones((batch, PROMPT), "int32"), ((0, 0), (0, NEW)))
    return lambda: model.generate({"token_ids": ids, "padding_mask": mask}, stop_token_ids=None)


def keras_hub(batch):
    return _keras_hub(batch, jit_compile=False)


def keras_hub_xla(batch):
    return _keras_hub(batch, jit_compile=True)


keras_hub_jax = keras_hub_xla


def _gpt2():
    import torch
    import transformers

    torch.set_grad_enabled(False)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_layer=LAYERS, n_embd=DIM, n_head=HEADS, n_positions=PROMPT + NEW, resid_pdrop=0,
        bos_token_id=None, eos_token_id=None,
    )
    return transformers.GPT2LMHeadModel(config).eval()


def hugging_face(batch):
    import torch

    model, ids = _gpt2(), torch.tensor(_prompt(batch))
    mask = torch.ones_like(ids)
    options = dict(max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0)
    return lambda: model.generate(ids, attention_mask=mask, **options)


def nanogpt_loop(batch):
    """Runs the whole prefix for each token, as nanoGPT's `generate` does."""
    import torch

    model, prompt = _gpt2(), torch.tensor(_prompt(batch))

    def generate():
        ids = prompt
        for _ in range(NEW):
            logits = model(ids, use_cache=False).logits[:, -1]
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)

    return generate


def _prompt(batch):
    import numpy as np

    return np.random.default_rng(0).integers(1, VOCABULARY, (batch, PROMPT))


CONTENDERS = {  # name -> its function, its backend
    "keras_txf": (keras_txf, "tensorflow"),
    "KerasHub": (keras_hub, "tensorflow"),
    "KerasHub XLA": (keras_hub_xla, "tensorflow"),
    "KerasHub JAX": (keras_hub_jax, "jax"),
    "Hugging Face": (hugging_face, "tensorflow"),
    "nanoGPT loop": (nanogpt_loop, "tensorflow"),
}


def work(name, batch):
    """A contender's process: each line that it reads is one call, whose seconds it writes."""
    CONTENDERS[name][0](batch)  # imports what it needs
    generate = None
    for _ in sys.stdin:
        start = time.perf_counter()
        generate = generate or CONTENDERS[name][0](batch)
        generate()
        print(time.perf_counter() - start, flush=True)


class Worker:
    def __init__(self, name, batch):
        environment = {**os.environ, "KERAS_BACKEND": CONTENDERS[name][1], "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, "-W", "ignore", __file__, "--worker", name, "--batch", str(batch)]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.process = subprocess.Popen(command, text=True, env=environment, **pipes)

    def call(self):
        print("go", file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())


def floor():
    """Milliseconds to read the float32 weights that a token needs."""
    import numpy as np

    weights = LAYERS * 12 * DIM * DIM + VOCABULARY * DIM
    array = np.ones(2**26, "float32")
    times = []
    for _ in range(9):
        start = time.perf_counter()
        array.sum()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times) * weights / array.size


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--contender", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments.worker, arguments.batch[0])
    print(f"one core reads the weights in {floor():.2f} ms; medians of {arguments.repeats} calls in turn")
    print(f"{'batch':6}{'contender':16}{'first call s':>13}{'ms a token':>12}{'ratio':>8}")
    for batch in arguments.batch:
        workers = {name: Worker(name, batch) for name in arguments.contender}
        first = {name: worker.call() for name, worker in workers.items()}
        times = {name: [] for name in workers}
        for _ in range(arguments.repeats):
            for name, worker in workers.items():
                times[name].append(worker.call())
        medians = {name: 1e3 * statistics.median(values) / NEW for name, values in times.items()}
        for name, value in medians.items():
            ratio = value / medians[arguments.contender[0]]
            print(f"{batch:<6}{name:16}{first[name]:13.1f}{value:12.2f}{ratio:8.2f}", flush=True)
        for worker in workers.values():
            worker.process.stdin.close()
            worker.process.wait()


if __name__ == "__main__":
    main()
