"""The models of train_step.py in plain PyTorch: nanoGPT's, and PyTorch's own encoder and decoder."""

import contextlib

import torch
from gpu_peers import GPT
from torch import nn
from train_step_keras import data


class Embedding(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.token = nn.Embedding(size["vocab"], size["dim"])
        self.position = nn.Embedding(size["length"], size["dim"])
        self.dropout = nn.Dropout(size["dropout"])
        # With PyTorch's own initial values, gradients of the softmax are too small for normal numbers, which is slow.
        nn.init.normal_(self.token.weight, std=size["dim"] ** -0.5)

    def forward(self, ids):
        return self.dropout(self.token(ids) + self.position.weight)


def stack(layer, size):
    """Layers of PyTorch's own. The hidden activations have no dropout, as in the other blocks."""
    options = dict(dim_feedforward=4 * size["dim"], dropout=size["dropout"], batch_first=True)
    layers = [layer(size["dim"], size["heads"], **options) for _ in range(size["layers"])]
    for each in layers:
        each.dropout.p = 0.0
    return nn.ModuleList(layers)


class Classifier(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embedding, self.layers = Embedding(size), stack(nn.TransformerEncoderLayer, size)
        self.head = nn.Linear(size["dim"], 2)

    def forward(self, ids, labels):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x.mean(1)).float(), labels)


class Translator(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embedding, self.encoder = Embedding(size), stack(nn.TransformerEncoderLayer, size)
        self.decoder = stack(nn.TransformerDecoderLayer, size)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(size["length"]))

    def forward(self, source, target, labels):
        context, x = self.embedding(source), self.embedding(target)
        for layer in self.encoder:
            context = layer(context)
        for layer in self.decoder:
            x = layer(x, context, tgt_mask=self.mask, tgt_is_causal=True)
        logits = nn.functional.linear(x, self.embedding.token.weight)
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def build(library, size, dtype, compiled):
    """Returns a function that takes one step, and the number of parameters."""
    if size["task"] == "gpt":
        model = GPT(size, gelu="none")
    else:
        model = (Classifier if size["task"] == "classifier" else Translator)(size)
    inputs, labels = data(size)
    tensors = [torch.tensor(x).long() for x in (*inputs, labels)]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    run = torch.compile(model) if compiled else model
    half = torch.autocast("cpu", torch.bfloat16) if dtype == "bfloat16" else contextlib.nullcontext()

    def step():
        with half:
            loss = run(*tensors)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step, sum(x.numel() for x in model.parameters())
