"""Loading a checkpoint of bfloat16 beside transformers: seconds and memory, each in a fresh process.

The folder is a Llama with random weights, one gigabyte of bfloat16. `load(folder, dtype="auto")` keeps that type, as
`from_pretrained` does; `--dtype float32` converts. The contenders run in turn. Times are without imports, on the clock
and of the processors, which other programs disturb less. `generate` follows right after the load: 8 greedy tokens, with
all that it compiles. Memory is what the process holds at most beyond what it held before, read from Linux: of the load
over the imported libraries, of `generate` over the loaded model.

    pip install transformers torch jax
    python benchmarks/load_checkpoint.py
    python benchmarks/load_checkpoint.py --layers 1 --contenders transformers jax    # smaller, and only these
    python benchmarks/load_checkpoint.py --contenders jax --stream                   # tokens as generated
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import ml_dtypes
import numpy as np

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 32_000, "hidden_size": 2048,
    "intermediate_size": 5632, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 16,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CONTENDERS = ("transformers", "tensorflow", "jax", "torch")
PROMPT, NEW = [[5, 6, 7, 8]], 8


def shapes(config):
    """The shape of each tensor of a Llama."""
    dim, wide = config["hidden_size"], config["intermediate_size"]
    found = dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), (config["vocab_size"], dim))
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        found |= {f"{layer}.self_attn.{part}_proj.weight": (dim, dim) for part in "qkvo"}
        found |= {f"{layer}.mlp.{part}_proj.weight": (wide, dim) for part in ("gate", "up")}
        found[f"{layer}.mlp.down_proj.weight"] = (dim, wide)
        found |= {f"{layer}.{norm}_layernorm.weight": (dim,) for norm in ("input", "post_attention")}
    return found | {"model.norm.weight": (dim,)}


def write(folder, config):
    """Writes the folder; returns the bytes of its tensors."""
    from safetensors.numpy import save_file

    draw = np.random.default_rng(0)
    tensors = {
        name: (0.02 * draw.standard_normal(shape, "float32")).astype(ml_dtypes.bfloat16)
        for name, shape in shapes(config).items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return sum(tensor.nbytes for tensor in tensors.values())


def with_transformers(folder, dtype, stream):
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    ids = torch.tensor(PROMPT)

    def load():
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)

    def generate(model):
        return model.generate(ids, attention_mask=ids * 0 + 1, max_new_tokens=NEW, do_sample=False, pad_token_id=0)

    return load, generate


def with_keras(folder, dtype, stream):
    import keras_txf as txf

    def load():
        return txf.checkpoints.load(folder, dtype=dtype, progress=False)

    def generate(model):
        tokens = model.generate(PROMPT, NEW, stop_ids=(), stream=stream)
        return list(tokens) if stream else tokens

    return load, generate


def megabytes(key):
    """A line of this process' status, such as "VmRSS", what it holds, or "VmHWM", the most that it has held."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1000 for line in file if line.startswith(key))


def measured(call, *arguments):
    """Calls a function; returns its result, seconds, seconds of processors, and megabytes more at most."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the highest counts from now on
    before, start, busy = megabytes("VmRSS"), time.perf_counter(), time.process_time()
    result = call(*arguments)
    return result, time.perf_counter() - start, time.process_time() - busy, megabytes("VmHWM") - before


def child(contender, *options):
    """What a process measures, as one line of JSON."""
    load, generate = (with_transformers if contender == "transformers" else with_keras)(*options)
    model, *loading = measured(load)
    _, *generating = measured(generate, model)
    print(json.dumps([*loading, *generating]))


def run(contender, folder, options):
    backend = "torch" if contender == "transformers" else contender
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, __file__, "--child", contender, "--folder", str(folder)]
    command += ["--dtype", options.dtype] + ["--stream"] * options.stream
    result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=CONFIG["num_hidden_layers"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--dtype", choices=("auto", "float32"), default="auto", help="auto: that of the file")
    parser.add_argument(
        "--stream", action="store_true", help="generate(stream=True); transformers has no such iterator"
    )
    parser.add_argument("--folder", help="of an earlier run; default: a new one, which is removed")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(options.child, options.folder, options.dtype, options.stream)
    with tempfile.TemporaryDirectory() as new:
        folder = pathlib.Path(options.folder or new)
        if not (folder / "config.json").exists():
            folder.mkdir(exist_ok=True)
            write(folder, {**CONFIG, "num_hidden_layers": options.layers})
        size = (folder / "model.safetensors").stat().st_size
        print(f"{size / 1e6:.0f} MB of bfloat16; medians of {options.repeats} processes")
        print(f"{'':14} {'load: s':>10} {'busy s':>6} {'MB':>6} {'generate: s':>13} {'busy s':>6} {'MB':>6}")
        results = {contender: [] for contender in options.contenders}
        for _ in range(options.repeats):
            for contender, rows in results.items():
                (folder / "model.safetensors").read_bytes()  # into the memory of files, for each alike
                rows.append(run(contender, folder, options))
                print(line("  " + contender, rows[-1:]), flush=True)
        print(*(line(contender, rows) for contender, rows in results.items()), sep="\n")


def line(name, rows):
    load, busy, loaded, call, called, held = map(statistics.median, zip(*rows))
    return f"{name:14} {load:10.2f} {busy:6.2f} {loaded:6.0f} {call:13.2f} {called:6.2f} {held:6.0f}"


if __name__ == "__main__":
    main()
