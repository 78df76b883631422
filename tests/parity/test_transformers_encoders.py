"""BERT's blocks and T5 are options of EncoderBlock and encoder_decoder: hidden states and logits agree."""

import functools

import keras
import numpy as np
import pytest
import torch
import transformers
from parity.weights import attention_table, block_table, close, copy_weights, numbered, randomize, state_of

from keras_txf.layers import EncoderBlock, RelativeBias
from keras_txf.models import encoder_decoder

pytestmark = pytest.mark.parity

VOCAB, DIM, HEADS, WIDTH, LAYERS = 29, 12, 3, 20, 2
SOURCE = np.array([[0, 0, 5, 28, 7, 3, 9], [1, 17, 4, 4, 12, 2, 0]], "int32")
TARGET = np.array([[1, 9, 8, 0, 0], [1, 5, 5, 2, 28]], "int32")
REAL, REAL_TARGET = SOURCE != 0, TARGET != 0

BERT = numbered(
    block_table({"block/attention/query": "attention.self.query", "block/attention/key": "attention.self.key",
                 "block/attention/value": "attention.self.value", "block/attention/output": "attention.output.dense"},
                "attention.output.LayerNorm", {"intermediate": "intermediate.dense", "output": "output.dense"},
                "output.LayerNorm"), "encoder_*", "layer.*",
)  # fmt: skip


def their_config(cls, **options):
    return cls(vocab_size=VOCAB, attn_implementation="eager", pad_token_id=0, use_cache=False, **options)


def long(array):
    return torch.from_numpy(array).long()


def test_bert():
    """The blocks only: its embedding has token types and a norm."""
    config = their_config(
        transformers.BertConfig, hidden_size=DIM, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=WIDTH,
    )  # fmt: skip
    theirs = randomize(transformers.BertModel(config, add_pooling_layer=False))
    outputs = theirs(long(SOURCE), attention_mask=long(REAL), output_hidden_states=True)
    x, *expected = [hidden.detach().numpy() for hidden in outputs.hidden_states]
    blocks = [
        EncoderBlock(HEADS, WIDTH, activation="gelu", norm_epsilon=1e-12, name=f"encoder_{i}") for i in range(LAYERS)
    ]
    for block in blocks:
        block.build(x.shape)
    copy_weights(state_of(theirs.encoder), [weight for block in blocks for weight in block.weights], BERT)
    for block, hidden in zip(blocks, expected):
        x = block(x, mask=REAL)
        close(x, hidden)


def t5_side(side, last, cross=()):
    """T5 numbers the sublayers of a block; `cross` holds the rows of the cross-attention."""
    names = ("q", "k", "v", "o")
    dense = f"layer.{last}.DenseReluDense"
    block = block_table(
        attention_table("block/attention", "layer.0.SelfAttention", names),
        "layer.0.layer_norm",
        {"gate": f"{dense}.wi_0", "intermediate": f"{dense}.wi_1", "output": f"{dense}.wo"},
        f"layer.{last}.layer_norm",
    )
    return {
        f"{side}_position": f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias",
        f"{side}_norm": f"{side}.final_layer_norm",
        **numbered(block | dict(cross), f"{side}_*", f"{side}.block.*"),
    }


T5 = {
    "embedding/token": "shared",
    "logits": "lm_head",
    **t5_side("encoder", 1),
    **t5_side("decoder", 2,
              {**attention_table("block/cross_attention", "layer.1.EncDecAttention", ("q", "k", "v", "o")),
               "block/cross_attention_norm": "layer.1.layer_norm"}),
}  # fmt: skip


def test_t5():
    """Version 1.1: gated, logits of its own, heads that are wider than the model divided by them."""
    config = their_config(
        transformers.T5Config, d_model=DIM, d_kv=5, d_ff=WIDTH, num_layers=LAYERS, num_decoder_layers=LAYERS + 1,
        num_heads=HEADS, relative_attention_num_buckets=8, relative_attention_max_distance=5,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False,
    )  # fmt: skip
    theirs = transformers.T5ForConditionalGeneration(config)
    theirs.lm_head = torch.nn.Linear(DIM, VOCAB, bias=False)  # transformers 5 ties it, the released models do not
    randomize(theirs)

    def side(name, bidirectional):
        return {"position": RelativeBias(HEADS, 8, 5, bidirectional, name=f"{name}_position")}

    ours = encoder_decoder(
        VOCAB, VOCAB, LAYERS, DIM, HEADS, num_decoder_layers=LAYERS + 1, head_dim=5, intermediate_dim=WIDTH, norm="rms",
        norm_placement="pre", norm_epsilon=1e-6, gated=True, use_bias=False, scale=1.0,
        activation=functools.partial(keras.activations.gelu, approximate=True), scale_embedding=False,
        tie_embeddings=False, return_hidden_states=True, encoder_options=side("encoder", True),
        decoder_options=side("decoder", False),
    )  # fmt: skip
    copy_weights(state_of(theirs), ours.weights, T5)
    outputs = ours({"source_ids": SOURCE, "target_ids": TARGET})
    expected = theirs(
        long(SOURCE),
        attention_mask=long(REAL),
        decoder_input_ids=long(TARGET),
        decoder_attention_mask=long(REAL_TARGET),
        output_hidden_states=True,
    )
    for depth, hidden in enumerate(expected.encoder_hidden_states):
        close(outputs[f"encoder_hidden_states_{depth}"], hidden, where=REAL)
    for depth, hidden in enumerate(expected.decoder_hidden_states):
        close(outputs[f"decoder_hidden_states_{depth}"], hidden, where=REAL_TARGET)
    close(outputs["logits"], expected.logits, where=REAL_TARGET)
