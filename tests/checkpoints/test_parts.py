"""Parts of blocks from the options in a family's table: options that do not go together raise ValueError."""

from refusals import refused

import keras_txf as txf
from keras_txf.checkpoints.parts import block_parts, with_parts


def test_a_layer_as_embedding_next_to_an_option_of_the_embedding_raises_value_error():
    layer = txf.layers.PositionalEmbedding(10, 8)
    options = {"vocab_size": 10, "num_layers": 1, "dim": 8, "num_heads": 2, "embedding_dropout": 0.1}
    words = ["`embedding_dropout`", "a layer as `embedding`", "0.1"]
    refused(lambda: with_parts(txf.models.decoder_generator, {**options, "embedding": layer}), words)


def test_lists_of_different_lengths_raise_value_error():
    options = {"num_heads": [2, 4, 8], "attention_dropout": [0.1, 0.2]}
    refused(lambda: block_parts(options), ["one value for each block", "'num_heads': 3", "'dropout': 2"])
