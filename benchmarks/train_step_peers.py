"""The peers of train_step.py: the same models from KerasHub's blocks and from PyTorch's modules."""

import keras

DROPOUT = 0.1


def keras_hub_model(task, size):
    import keras_hub

    embedding = keras_hub.layers.TokenAndPositionEmbedding(size["vocab"], size["length"], size["dim"], mask_zero=True)

    def embed(name):
        ids = keras.Input((size["length"],), dtype="int32", name=name)
        return ids, keras.layers.Dropout(DROPOUT)(embedding(ids))

    def blocks(cls, count):
        return [cls(size["hidden"], size["heads"], dropout=DROPOUT) for _ in range(count)]

    encoder, decoder = keras_hub.layers.TransformerEncoder, keras_hub.layers.TransformerDecoder
    if task == "classifier":
        ids, x = embed("ids")
        for block in blocks(encoder, size["layers"]):
            x = block(x)
        return keras.Model(ids, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling1D()(x)))
    if task == "generator":
        ids, x = embed("ids")
        for block in blocks(decoder, size["layers"]):
            x = block(x)
        return keras.Model(ids, embedding.token_embedding(x, reverse=True))
    source_ids, context = embed("source_ids")
    target_ids, x = embed("target_ids")
    for block in blocks(encoder, size["layers"] // 2):
        context = block(context)
    for block in blocks(decoder, size["layers"] // 2):
        x = block(x, context)
    logits = embedding.token_embedding(x, reverse=True)
    return keras.Model({"source_ids": source_ids, "target_ids": target_ids}, logits)


def torch_step(task, size, x, y, dtype):
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"

    class Embedding(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.token = torch.nn.Embedding(size["vocab"], size["dim"])
            self.position = torch.nn.Embedding(size["length"], size["dim"])
            self.dropout = torch.nn.Dropout(DROPOUT)
            # As logits, PyTorch's own beginning makes gradients of the softmax too small for normal numbers, which are
            # slow.
            torch.nn.init.normal_(self.token.weight, std=size["dim"] ** -0.5)

        def forward(self, ids):
            return self.dropout(self.token(ids) + self.position.weight)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            options = dict(dropout=DROPOUT, batch_first=True)
            sizes = (size["dim"], size["heads"], size["hidden"])
            count = size["layers"] // 2 if task == "pair" else size["layers"]
            self.embedding = Embedding()
            block = torch.nn.TransformerEncoderLayer(*sizes, **options)
            self.encoder = torch.nn.TransformerEncoder(block, count, enable_nested_tensor=False)
            if task == "classifier":
                self.head = torch.nn.Linear(size["dim"], 2)
            if task == "pair":
                self.decoder = torch.nn.TransformerDecoder(torch.nn.TransformerDecoderLayer(*sizes, **options), count)

        def forward(self, source, target=None):
            hidden = self.embedding(source)
            mask = torch.nn.Transformer.generate_square_subsequent_mask(size["length"], device=device)
            if task == "generator":
                hidden = self.encoder(hidden, mask=mask, is_causal=True)
            else:
                hidden = self.encoder(hidden)
            if task == "classifier":
                return self.head(hidden.mean(1))
            if task == "pair":
                hidden = self.decoder(self.embedding(target), hidden, tgt_mask=mask, tgt_is_causal=True)
            return hidden @ self.embedding.token.weight.T

    model = Model().to(device)
    for module in model.modules():
        if isinstance(module, (torch.nn.TransformerEncoderLayer, torch.nn.TransformerDecoderLayer)):
            module.dropout.p = 0.0  # of the hidden activations, which the others' blocks leave as they are
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    inputs = [x["source_ids"], x["target_ids"]] if isinstance(x, dict) else [x]
    inputs = [torch.tensor(array, device=device).long() for array in inputs]
    targets = torch.tensor(y, device=device).long()

    def step():
        with torch.autocast(device, dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = model(*inputs)
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
