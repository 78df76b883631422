"""The recurrent encoder-decoder against PyTorch's nn.LSTM and nn.GRU with the same weights."""

import numpy as np
import pytest
from keras import ops

import keras_txf as txf

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.parity
# Keras keeps the gates of a GRU in the order update, reset, new; PyTorch reset, update, new. Those of an LSTM are
# alike.
ORDER = {"lstm": (0, 1, 2, 3), "gru": (1, 0, 2)}


def tensor(variable):
    return torch.tensor(ops.convert_to_numpy(variable))


def copy(cell, kind, module, suffix):
    """Copies the weights of a cell of Keras into a layer of PyTorch's module."""

    def reordered(weight):
        parts = tensor(weight).chunk(len(ORDER[kind]), dim=-1)
        return torch.cat([parts[i] for i in ORDER[kind]], dim=-1)

    biases = reordered(cell.bias) if kind == "gru" else torch.stack([reordered(cell.bias), 0 * reordered(cell.bias)])
    weights = {
        "weight_ih": reordered(cell.kernel).T,
        "weight_hh": reordered(cell.recurrent_kernel).T,
        "bias_ih": biases[0],
        "bias_hh": biases[1],
    }
    with torch.no_grad():
        for name, weight in weights.items():
            getattr(module, f"{name}_{suffix}").copy_(weight)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_model_without_attention(cell, bidirectional):
    model = txf.models.recurrent_encoder_decoder(11, 12, 2, 8, cell, bidirectional=bidirectional)
    random = np.random.default_rng(5)
    for weight in model.trainable_variables:
        weight.assign(random.normal(size=weight.shape, scale=0.5))
    sources, targets = random.integers(1, 11, (3, 7)), random.integers(1, 12, (3, 5))

    make = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[cell]
    encoder = make(8, 4 if bidirectional else 8, 2, batch_first=True, bidirectional=bidirectional)
    decoder = make(8, 8, 2, batch_first=True)
    layers = {layer.name: layer for layer in model.layers}
    for index in range(2):
        layer = layers[f"encoder_{index}"]
        copy(layer.forward_layer.cell if bidirectional else layer.cell, cell, encoder, f"l{index}")
        if bidirectional:
            copy(layer.backward_layer.cell, cell, encoder, f"l{index}_reverse")
        copy(layers["decoder"].recurrent_layers[index].cell, cell, decoder, f"l{index}")
    tables = {side: tensor(layers[f"{side}_embedding"].token.embeddings) for side in ("source", "target")}

    def embed(side, ids):
        return tables[side][torch.tensor(ids)] * (8**0.5 if layers[f"{side}_embedding"].scale else 1.0)

    def joined(state):  # (layers and directions, B, width) -> (layers, B, 8)
        return state.reshape(2, -1, 3, 8 // (1 + bidirectional)).transpose(1, 2).reshape(2, 3, 8).contiguous()

    with torch.no_grad():
        _, states = encoder(embed("source", sources))
        states = tuple(map(joined, states)) if cell == "lstm" else joined(states)
        hidden, _ = decoder(embed("target", targets), states)
        expected = hidden @ tables["target"].T
    found = model({"source_ids": sources, "target_ids": targets})
    np.testing.assert_allclose(ops.convert_to_numpy(found), expected.numpy(), atol=1e-5)
