"""A training step, long attention and generation on one GPU, beside plain PyTorch; in a few minutes.

The training step is GPT-2 124M's in bfloat16, beside the same model written plainly in PyTorch, with `torch.compile`
and fused AdamW. Contenders run in turn; times are medians.

    pip install . 'jax[cuda12]' torch    # from a checkout; PyTorch is the peer in both runs
    KERAS_BACKEND=jax python benchmarks/gpu.py
    KERAS_BACKEND=torch python benchmarks/gpu.py
    KERAS_BACKEND=jax python benchmarks/gpu.py --size tiny --no-compile    # on a CPU, to see that it runs
"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs memory too

import gpu_peers as peers
import keras
import numpy as np
from keras import ops
from timing import interleaved

import keras_txf as txf
from keras_txf.ops.attention import attention
from keras_txf.ops.masks import AttentionMask

BACKEND = keras.backend.backend()
SIZES = {  # `rows` of `length` in a step; heads of `head_dim` over `long` tokens; `new` tokens for `prompts` prompts
    "gpt2": dict(
        vocab=50304, layers=12, dim=768, heads=12, rows=16, length=1024, long=16384, head_dim=64, prompts=16, new=256
    ),
    "tiny": dict(vocab=96, layers=1, dim=32, heads=2, rows=2, length=16, long=64, head_dim=16, prompts=2, new=4),
}


def build(size):
    return txf.models.decoder_generator(
        size["vocab"], size["layers"], size["dim"], size["heads"], norm_placement="pre", activation="gelu_tanh",
        position_encoding="learned", max_length=size["length"], pad_id=None, dropout=0.0, dtype="mixed_bfloat16",
    )  # fmt: skip


def training(model, ids, size, compiled):
    """Our step and PyTorch's, on the same ids."""
    optimizer = keras.optimizers.AdamW(3e-4, weight_decay=0.1)
    model.compile(optimizer, txf.training.TokenCrossEntropy(pad_id=None))
    inputs, targets = map(ops.convert_to_tensor, (ids[:, :-1], ids[:, 1:]))
    ours = {"keras_txf": lambda: float(model.train_on_batch(inputs, targets))}
    return ours | {"plain PyTorch": peers.training_step(size, ids, compiled)}


def long_attention(size):
    """Causal attention and its gradient."""
    shape = (1, size["long"], size["heads"], size["head_dim"])
    arrays = [np.random.default_rng(seed).normal(size=shape).astype("float32") for seed in range(3)]

    def loss(*tensors):
        return ops.sum(ops.cast(attention(*tensors, mask=AttentionMask(causal=True)), "float32") ** 2)

    tensors = [ops.cast(x, "bfloat16") for x in arrays]
    if BACKEND == "jax":
        import jax

        gradient = jax.jit(jax.grad(loss, (0, 1, 2)))
        ours = {"keras_txf": lambda: jax.block_until_ready(gradient(*tensors))}
    else:
        ours = {"keras_txf": peers.gradient_of(loss, tensors)}
    return ours | {"scaled_dot_product_attention": peers.long_attention(arrays)}


def generation(model, size):
    """Greedy tokens for prompts of random ids, to the last token."""
    shape = (size["prompts"], size["length"] - size["new"])
    prompts = np.random.default_rng(0).integers(1, size["vocab"], shape).astype("int32")
    return {"keras_txf": lambda: model.generate(prompts, size["new"])}


def peak_memory():
    """The most bytes of the GPU that the backend has held, in words; a CPU has no such count."""
    if BACKEND == "jax":
        import jax

        found = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    else:
        found = peers.peak_memory()
    return f"{found / 1e9:.1f} GB" if found else "-"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="gpt2", choices=SIZES)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--peak", type=float, default=989, help="TFLOP/s of the GPU in bfloat16 (default: an H100's)")
    parser.add_argument("--no-compile", action="store_true", help="run PyTorch without `torch.compile`")
    options = parser.parse_args()
    if BACKEND == "tensorflow":
        raise SystemExit("error: set KERAS_BACKEND to jax or torch.")
    size, peak = SIZES[options.size], options.peak * 1e12
    print(
        f"backend {BACKEND}, {peers.device_name()}, medians of {options.repeats} in turn, peak {options.peak:g} TFLOP/s"
    )
    model = build(size)
    ids = np.random.default_rng(0).integers(1, size["vocab"], (size["rows"], size["length"] + 1)).astype("int32")
    flops = txf.training.cost(model, size["rows"], size["length"]).training_flops
    tokens = size["rows"] * size["length"]
    for name, seconds in interleaved(training(model, ids, size, not options.no_compile), options.repeats).items():
        print(f"{'training step':15}{name:30}{1e3 * seconds:9.2f} ms {tokens / seconds:11,.0f} tokens/s", end=" ")
        print(f"{flops / seconds / peak:6.1%} of peak")
    print(f"{'':15}{'keras_txf':30}{peak_memory():>12}  PyTorch {peers.peak_memory() / 1e9:.1f} GB at the most so far")
    for name, seconds in interleaved(long_attention(size), options.repeats).items():
        work = 3 * 4 * size["long"] ** 2 * size["heads"] * size["head_dim"] / 2  # of what a causal mask leaves
        print(f"{'long attention':15}{name:30}{1e3 * seconds:9.2f} ms {work / seconds / peak:6.1%} of peak")
    for name, seconds in interleaved(generation(model, size), max(1, options.repeats // 4), warmup=1).items():
        made = size["prompts"] * size["new"]
        print(f"{'generation':15}{name:30}{1e3 * seconds:9.2f} ms {made / seconds:11,.0f} tokens/s")


if __name__ == "__main__":
    main()
