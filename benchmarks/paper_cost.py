"""A training step of GPT-2 124M, a 1B and an 8B model on 1, 8 and 64 H100, on paper: no GPU is needed.

The counts are those of `txf.training.cost`, the times those of a roofline: what NVIDIA publishes is reached always.

    python benchmarks/paper_cost.py    # the tables of docs/explanation/cost.md
"""

import dataclasses
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras_txf as txf

PEAK = 989e12  # FLOP/s of dense bfloat16 products (H100 SXM)
MEMORY = 80e9  # bytes
HBM = 3.35e12  # bytes/s
NVLINK = 450e9  # bytes/s in each direction: 900 GB/s are those of both
NETWORK = 50e9  # bytes/s: 400 Gb/s of InfiniBand for each GPU
NODE = 8  # GPUs that NVLink joins

LLAMA = dict(
    vocab_size=128256, num_key_value_heads=8, norm="rms", norm_placement="pre", use_bias=False, gated=True,
    activation="silu", position="rotary", position_encoding=None, dropout=0.0,
)  # fmt: skip
MODELS = {  # options of `decoder_generator`; rows of a GPU's batch, and their length
    "GPT-2 124M": (
        dict(
            vocab_size=50257, num_layers=12, dim=768, num_heads=12, norm_placement="pre", activation="gelu_tanh",
            position_encoding="learned", max_length=1024, dropout=0.0,
        ),
        (16, 1024),
    ),
    "1B (Llama 3.2's sizes)": (
        dict(num_layers=16, dim=2048, num_heads=32, intermediate_dim=8192, **LLAMA),
        (4, 4096),
    ),
    "8B (Llama 3's sizes)": (
        dict(num_layers=32, dim=4096, num_heads=32, intermediate_dim=14336, tie_embeddings=False, **LLAMA),
        (1, 8192),
    ),
}  # fmt: skip


@dataclasses.dataclass
class Step:
    """A training step of one GPU: seconds of products, of memory traffic and of communication, and bytes held."""

    compute: float
    traffic: float
    communication: float
    memory: float
    useful: float  # FLOPs without what is computed again

    def shares(self):
        """The share of peak if nothing overlaps, and if everything does."""
        parts = self.compute, self.traffic, self.communication
        return [self.useful / PEAK / seconds for seconds in (sum(parts), max(parts))]


def across(size, gpus):
    """Seconds to gather, or to reduce and scatter, `size` bytes over GPUs: first within a node, then between nodes."""
    within, nodes = min(gpus, NODE), -(-gpus // NODE)
    return size * (within - 1) / within / NVLINK + size / within * (nodes - 1) / nodes / NETWORK


def data_parallel(cost, model, gpus):
    """Every GPU holds everything; gradients are reduced and gathered."""
    return step(cost, 2 * across(cost.gradient_bytes, gpus), state=1)


def fully_sharded(cost, model, gpus):
    """Every GPU holds its part of the state: gathers weights twice in bfloat16, reduces and scatters gradients."""
    seconds = 2 * across(2 * cost.parameters, gpus) + across(cost.gradient_bytes, gpus)
    return step(cost, seconds, state=gpus)


def tensor_parallel(cost, model, gpus):
    """The GPUs of a node share each block and NODE times the rows; nodes share the gradients.

    A block's outputs are gathered and reduced twice on the way forward and twice back (Megatron with sequence
    parallelism, which scatters the stream).
    """
    options, (rows, length) = model
    stream = 2 * NODE * rows * length * options["dim"]
    seconds = options["num_layers"] * 8 * across(stream, NODE)
    nodes = gpus // NODE
    seconds += 2 * cost.gradient_bytes / NODE * (nodes - 1) / nodes / NETWORK
    return step(cost, seconds, state=NODE)


def step(cost, seconds, state):
    """The GPUs that share rows share their activations too, so those of one GPU stay."""
    held = (cost.weight_bytes + cost.gradient_bytes + cost.optimizer_bytes) / state
    traffic = (cost.product_bytes + cost.update_bytes / state) / HBM
    memory = held + cost.activation_bytes + cost.logit_bytes
    return Step(cost.training_flops / PEAK, traffic, seconds, memory, 3 * cost.forward_flops)


WAYS = {
    "1": (1, data_parallel),
    "8, data parallel": (8, data_parallel),
    "8, FSDP": (8, fully_sharded),
    "8, tensor parallel": (8, tensor_parallel),
    "64, data parallel": (64, data_parallel),
    "64, FSDP": (64, fully_sharded),
    "64, tensor within 8": (64, tensor_parallel),
}


def count(model):
    options, (rows, length) = model
    return txf.training.cost(
        lambda: txf.models.decoder_generator(**options, dtype="mixed_bfloat16"),
        rows, length, rematerialize=options["num_layers"] > 12,
    )  # fmt: skip


def tables(costs):
    """Two tables in Markdown: what a GPU's batch costs, and what steps on several GPUs take."""
    lines = [
        "| model | batch | parameters | forward | step | attention | kept | logits | state | moved |",
        "|" + " --- |" * 10,
    ]
    for name, cost in costs.items():
        rows, length = MODELS[name][1]
        state = cost.weight_bytes + cost.gradient_bytes + cost.optimizer_bytes
        lines.append(
            f"| {name} | {rows} x {length:,} | {cost.parameters:,} | {cost.forward_flops / 1e12:.1f} TFLOP "
            f"| {cost.training_flops / 1e12:.1f} TFLOP | {cost.attention_flops / cost.forward_flops:.0%} "
            f"| {cost.activation_bytes / 1e9:.1f} GB | {cost.logit_bytes / 1e9:.1f} GB | {state / 1e9:.1f} GB "
            f"| {cost.moved_bytes / 1e9:.0f} GB |"
        )
    lines += [
        "",
        "| model | H100 | products | memory traffic | communication | held | share of peak |",
        "|" + " --- |" * 7,
    ]
    for name, cost in costs.items():
        for way, (gpus, plan) in WAYS.items():
            found = plan(cost, MODELS[name], gpus)
            low, high = found.shares()
            share = f"{low:.0%} to {high:.0%}" if found.memory <= MEMORY else "does not fit"
            times = " | ".join(f"{1e3 * x:.1f} ms" for x in (found.compute, found.traffic, found.communication))
            lines.append(f"| {name} | {way} | {times} | {found.memory / 1e9:.0f} GB | {share} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(tables({name: count(model) for name, model in MODELS.items()}))
