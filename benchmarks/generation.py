"""Generation beside KerasHub, Hugging Face and nanoGPT's loop, greedy and with beams: milliseconds for each token.

The same sizes and a prompt of 32 for each; random weights; 128 new tokens. Every contender lives in a process of
its own with its own backend; they run in turn, so that what slows the machine slows them all. The first call, which
builds, traces and compiles what a made model generates with, is apart. So is the memory while the model is made and
called first, over what the imported libraries take, looked at from outside every few milliseconds: at its highest, and
the highest of what is the process' own, without pages of the libraries' files. The floor is the time in which one core
reads the weights once.

    pip install keras-hub torch transformers jax
    python benchmarks/generation.py
    python benchmarks/generation.py --plot cache.png    # instead: the time for a token by the length of the cache
"""

import argparse
import functools
import importlib
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time

LAYERS, DIM, HEADS, VOCABULARY, PROMPT, NEW = 6, 384, 6, 8192, 32, 128


def our_model(max_length):
    import keras_txf as txf

    return txf.models.decoder_generator(
        VOCABULARY,
        LAYERS,
        DIM,
        HEADS,
        position_encoding="learned",
        max_length=max_length,
        norm_placement="pre",
        activation="gelu",
        pad_id=None,
    )


def keras_txf(batch, beams):
    import keras_txf as txf

    model, ids = our_model(PROMPT + NEW), _prompt(batch)
    sampler = txf.generation.Beam(beams) if beams > 1 else "greedy"
    return lambda: model.generate(ids, max_new_tokens=NEW, sampler=sampler)


def _keras_hub(batch, beams, jit_compile):
    import keras_hub
    import numpy as np

    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=VOCABULARY,
        num_layers=LAYERS,
        num_heads=HEADS,
        hidden_dim=DIM,
        intermediate_dim=4 * DIM,
        dropout=0.0,
        max_sequence_length=PROMPT + NEW,
    )
    model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    sampler = keras_hub.samplers.BeamSampler(num_beams=beams) if beams > 1 else "greedy"
    model.compile(sampler=sampler, jit_compile=jit_compile)
    ids = np.pad(_prompt(batch), ((0, 0), (0, NEW)))
    mask = np.pad(np.ones((batch, PROMPT), "int32"), ((0, 0), (0, NEW)))
    return lambda: model.generate({"token_ids": ids, "padding_mask": mask}, stop_token_ids=None)


def keras_hub(batch, beams):
    return _keras_hub(batch, beams, jit_compile=False)


def keras_hub_xla(batch, beams):
    return _keras_hub(batch, beams, jit_compile=True)


def _gpt2():
    import torch
    import transformers

    torch.set_grad_enabled(False)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_layer=LAYERS,
        n_embd=DIM,
        n_head=HEADS,
        n_positions=PROMPT + NEW,
        resid_pdrop=0,
        activation_function="gelu",
        bos_token_id=None,
        eos_token_id=None,
    )
    return transformers.GPT2LMHeadModel(config).eval()


def hugging_face(batch, beams):
    import torch

    model, ids = _gpt2(), torch.tensor(_prompt(batch))
    mask = torch.ones_like(ids)
    options = dict(max_new_tokens=NEW, min_new_tokens=NEW, num_beams=beams, do_sample=False, pad_token_id=0)
    return lambda: model.generate(ids, attention_mask=mask, **options)


def nanogpt_loop(batch, beams):
    """Runs the whole prefix for each token, as nanoGPT's `generate` does, which has no beams."""
    import torch

    model, prompt = _gpt2(), torch.tensor(_prompt(batch))

    def generate():
        ids = prompt
        for _ in range(NEW):
            logits = model(ids, use_cache=False, logits_to_keep=1).logits[:, -1]
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], dim=1)

    return generate


def _prompt(batch):
    import numpy as np

    return np.random.default_rng(0).integers(1, VOCABULARY, (batch, PROMPT))


HUGGING_FACE = ("torch", "transformers.models.gpt2.modeling_gpt2")
CONTENDERS = {  # name -> its function, its backend, what it imports
    "keras_txf": (keras_txf, "tensorflow", ("keras_txf",)),
    "KerasHub": (keras_hub, "tensorflow", ("keras_hub",)),
    "KerasHub XLA": (keras_hub_xla, "tensorflow", ("keras_hub",)),
    "KerasHub JAX": (keras_hub_xla, "jax", ("keras_hub",)),
    "Hugging Face": (hugging_face, "torch", HUGGING_FACE),
    "nanoGPT loop": (nanogpt_loop, "torch", HUGGING_FACE),
}


def work(name, batch, beams):
    """A contender's process: for each line that it reads it takes one step, and writes the seconds.

    The steps are the imports, the model, and then one call after the other.
    """
    make, _, modules = CONTENDERS[name]

    def seconds(step):
        start = time.perf_counter()
        result = step()
        print(time.perf_counter() - start, flush=True)
        return result

    input()
    seconds(lambda: [importlib.import_module(module) for module in modules])
    input()
    generate = seconds(lambda: make(batch, beams))
    for _ in sys.stdin:
        seconds(generate)


def _memory(process):
    """MB in memory, and those of the process' own."""
    with open(f"/proc/{process.pid}/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    return [int(lines.get(name, "0").split()[0]) / 1024 for name in ("VmRSS", "RssAnon")]  # none of one that ends


class Worker:
    def __init__(self, name, batch, beams):
        environment = {**os.environ, "KERAS_BACKEND": CONTENDERS[name][1], "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, "-W", "ignore", __file__, "--worker", name]
        command += ["--batch", str(batch), "--beams", str(beams)]
        self.name, self.errors = name, tempfile.TemporaryFile("w+")
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors)
        self.process = subprocess.Popen(command, text=True, env=environment, **pipes)

        self.call()  # the imports

    def first_call(self):
        """Seconds, and how far memory rises while the model is made and called, MB and the process' own MB."""
        before = highest = _memory(self.process)
        for _ in ("make", "call"):
            self._ask()
            while not select.select([self.process.stdout], [], [], 0.004)[0]:
                highest = list(map(max, highest, _memory(self.process)))
            seconds = self._answer()
        return seconds, *(high - low for high, low in zip(highest, before))

    def call(self):
        """Seconds."""
        self._ask()
        return self._answer()

    def _ask(self):
        print("go", file=self.process.stdin, flush=True)

    def _answer(self):
        answer = self.process.stdout.readline()
        if not answer:
            self.errors.seek(0)
            raise SystemExit(f"{self.name} failed:\n{self.errors.read()[-2000:]}")
        return float(answer)


def floor():
    """Milliseconds to read the float32 weights that a token needs."""
    return (LAYERS * 12 * DIM * DIM + VOCABULARY * DIM) * _read_milliseconds()


@functools.cache
def _read_milliseconds():
    """In which one core reads one float32 of a long array."""
    import numpy as np

    array = np.ones(2**26, "float32")
    times = []
    for _ in range(9):
        start = time.perf_counter()
        array.sum()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times) / array.size


def plot(path):
    """The time for a token at growing lengths of the cache, and what reading the longer cache explains."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    news = [96, 224, 512, 1024, 1536, 2048]  # tokens of which the cache has columns for
    lengths = [PROMPT + new for new in news]
    model, times = (
        our_model(max(lengths)),
        {tokens: [] for tokens in (1, *news)},
    )  # 1: what a call takes beside its steps
    for _ in range(10):
        for tokens, found in times.items():
            start = time.perf_counter()
            model.generate(_prompt(1), max_new_tokens=tokens)
            found.append(1e3 * (time.perf_counter() - start))
    least = {tokens: min(found) for tokens, found in times.items()}  # what slows the machine would count as tokens
    each = [(least[new] - least[1]) / (new - 1) for new in news]  # each step reads the whole cache
    cache = 2 * LAYERS * DIM
    explained = [each[0] + (length - lengths[0]) * cache * _read_milliseconds() for length in lengths]
    for length, value, bound in zip(lengths, each, explained):
        print(f"cache of {length:5} columns: {value:.2f} ms a token; reading it explains {bound:.2f}", flush=True)
    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    axes.plot(lengths, explained, "--", color="gray", label="reading the longer cache, one core")
    axes.plot(lengths, each, "o-", label="measured")
    axes.set(xlabel="length of the cache", ylabel="ms for a token", ylim=0, title="Batch 1, greedy")
    axes.legend()
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--contender", nargs="+", default=list(CONTENDERS), choices=CONTENDERS)
    parser.add_argument("--plot", metavar="PNG")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(arguments.worker, arguments.batch[0], arguments.beams[0])
    if arguments.plot:
        return plot(arguments.plot)
    print(f"one core reads the weights in {floor():.2f} ms; medians of {arguments.repeats} calls in turn")
    print(
        f"{'batch':6}{'beams':6}{'contender':16}{'first call s':>13}{'MB':>7}{'own MB':>8}"
        f"{'ms a token':>12}{'ratio':>8}"
    )
    for beams in arguments.beams:
        for batch in arguments.batch:
            compare(batch, beams, arguments)


def compare(batch, beams, arguments):
    names = [name for name in arguments.contender if beams == 1 or name != "nanoGPT loop"]
    workers, first = {}, {}
    for name in names:  # one after the other: none starts beside another's first call
        workers[name] = Worker(name, batch, beams)
        first[name] = workers[name].first_call()
    calls = {name: [] for name in workers}
    for _ in range(arguments.repeats):
        for name, worker in workers.items():
            calls[name].append(worker.call())
    medians = {name: 1e3 * statistics.median(values) / NEW for name, values in calls.items()}
    for name, value in medians.items():
        ratio, (seconds, highest, own) = value / medians[names[0]], first[name]
        row = f"{batch:<6}{beams:<6}{name:16}{seconds:13.1f}{highest:7.0f}{own:8.0f}{value:12.2f}{ratio:8.2f}"
        print(row, flush=True)
    for worker in workers.values():
        worker.process.stdin.close()
        worker.process.wait()


if __name__ == "__main__":
    main()
