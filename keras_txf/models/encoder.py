"""The encoder alone: hidden states of a sequence of tokens."""

from typing import Unpack

import keras

from keras_txf import checks
from keras_txf.layers import EncoderBlock
from keras_txf.layers.option_tables import Each
from keras_txf.layers.shown_options import shows_options
from keras_txf.models import embeddings, stack
from keras_txf.models.checked_model import CheckedModel
from keras_txf.models.option_tables import EncoderOptions, SequenceEncoderOptions
from keras_txf.models.options import sort_options


@embeddings.takes_vectors
@shows_options
def encoder(
    vocab_size: int | None,
    num_layers: int,
    dim: int,
    num_heads: Each[int | None] = None,
    packed: bool = False,
    token_type_ids: bool = False,
    return_hidden_states: bool = False,
    return_attention_scores: bool = False,
    name: str | None = None,
    **options: Unpack[SequenceEncoderOptions],
) -> keras.Model:
    """Builds an encoder: token ids (B, T), or float vectors (B, T, F), -> hidden states (B, T, dim).

    An option of the blocks may be a list or tuple with one value for each block. The `stochastic_depth` of
    one `Residual` is the rate of the last block, and the rate grows from block to block.

    Args:
        vocab_size: number of tokens. With `input_dim` None, or left out if all arguments are keywords.
        num_layers: number of blocks, called `encoder_0`, `encoder_1`, ...
        dim: model width.
        num_heads: number of query heads; None with a layer as `attention`.
        packed: whether rows hold several sequences. The inputs are then a dict of `token_ids` (with `input_dim`
            `features`), `segment_ids` and `positions`, int (B, T) each.
        token_type_ids: adds an input `token_type_ids`, int (B, T), in a dict with `token_ids`. Needs
            `token_types`; without the input every token has type 0.
        return_hidden_states: adds outputs `hidden_states_0` (the embedding) to
            `hidden_states_{num_layers}` (the output).
        return_attention_scores: adds outputs `attention_scores_0`, ..., (B, N, T, T) each.
        name: name of the model; default: the name of the function, with a number from the second model on.
        {options}

    Returns:
        A functional `keras.Model`. With an output on request it returns a dict, whose `output` is
        the hidden states.

    Raises:
        ValueError: an unknown option, or two that do not go together.

    Example:

    >>> model = txf.models.encoder(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> model(np.array([[5, 6, 7, 0]])).shape
    (1, 4, 32)
    >>> model = txf.models.encoder(None, num_layers=2, dim=32, num_heads=4, input_dim=6)
    >>> model(keras.random.normal((2, 5, 6))).shape
    (2, 5, 32)
    """
    sizes = stack.Sizes(num_layers, dim, num_heads)
    inputs, result, *_ = encode("encoder", vocab_size, sizes, options, packed, token_type_ids, return_attention_scores)
    outputs = result.outputs("output", result.output, return_hidden_states, return_attention_scores)
    return stack.make_model(inputs, outputs, name, "encoder", CheckedModel)


def encode(
    builder,
    vocab_size,
    sizes,
    options,
    packed=False,
    token_type_ids=False,
    scores=False,
    table=SequenceEncoderOptions,
    prefix="",
):
    """Wires an encoder: symbolic inputs, `StackOutputs`, the embedding of tokens or None, and `Options`.

    `prefix` begins the names of the layers.
    """
    checks.boolean("packed", packed)
    types = getattr(options.get("embedding"), "token_types", options.get("token_types"))
    if checks.boolean("token_type_ids", token_type_ids) and types is None:
        raise ValueError("`token_type_ids` needs `token_types`, the number of token types; received None.")
    input_dim = options.pop("input_dim", None) if table is SequenceEncoderOptions else None
    if table is SequenceEncoderOptions:
        embeddings.check_source("vocab_size", vocab_size, input_dim)
    embedding = None
    if input_dim is None:
        checks.size("vocab_size", vocab_size)
        options = sort_options(builder, EncoderBlock, options, EncoderOptions)
        inputs, ids, segment_ids, positions = embeddings.token_inputs(packed)
        types = None
        if token_type_ids:
            types = inputs["token_type_ids"] = embeddings.integer_input("token_type_ids")
        embedding = embeddings.make_embedding(vocab_size, sizes.dim, options, f"{prefix}embedding")
        x = embeddings.embed(embedding, ids, options, f"{prefix}encoder", positions, types)
    else:
        embeddings.check_vector_options(options, EncoderOptions)
        options = sort_options(builder, EncoderBlock, options, EncoderOptions, embeddings.FEATURE_OPTIONS)
        inputs, x, segment_ids, positions = embeddings.embed_features(
            input_dim, sizes.dim, options, packed, "embedding"
        )
    call = {"positions": positions, "segment_ids": segment_ids}
    result = stack.run(EncoderBlock, x, sizes, options, f"{prefix}encoder", scores, **call)
    return (inputs if len(inputs) > 1 else next(iter(inputs.values()))), result, embedding, options
