"""The peers of gpu.py and train_step.py, in plain PyTorch: a GPT-2 in the manner of nanoGPT, and its attention."""

import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    def __init__(self, dim, heads, gelu):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.projections, self.output = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.network = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate=gelu), nn.Linear(4 * dim, dim))

    def forward(self, x):
        heads = [
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.projections(self.norms[0](x)).chunk(3, -1)
        ]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(-2))
        return x + self.network(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self, size, gelu="tanh"):
        super().__init__()
        self.tokens, self.positions = (
            nn.Embedding(size["vocab"], size["dim"]),
            nn.Embedding(size["length"], size["dim"]),
        )
        self.blocks = nn.ModuleList(Block(size["dim"], size["heads"], gelu) for _ in range(size["layers"]))
        self.norm = nn.LayerNorm(size["dim"])
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = nn.functional.linear(self.norm(x), self.tokens.weight)
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def training_step(size, ids, compiled):
    model = GPT(size).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, weight_decay=0.1, fused=True)
    run = torch.compile(model) if compiled else model
    ids = torch.tensor(ids, device=DEVICE).long()
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    torch.set_float32_matmul_precision("high")

    def step():
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = run(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def long_attention(arrays):
    """Heads stand before the length, as PyTorch's kernel has them."""
    tensors = [torch.tensor(x, device=DEVICE).bfloat16().transpose(1, 2).contiguous() for x in arrays]
    return gradient_of(
        lambda *x: nn.functional.scaled_dot_product_attention(*x, is_causal=True).float().square().sum(), tensors
    )


def gradient_of(function, tensors):
    """A call that computes the gradient of a function, and waits for it."""
    tensors = [x.detach().requires_grad_() for x in tensors]

    def call():
        torch.autograd.grad(function(*tensors), tensors)
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    return call


def peak_memory():
    return torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0


def device_name():
    return torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
