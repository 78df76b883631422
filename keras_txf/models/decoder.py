"""The decoder alone, with or without a context, and the generator made of it."""

from typing import Unpack

import keras

from keras_txf import checks
from keras_txf.layers import DecoderBlock
from keras_txf.layers.option_tables import Each
from keras_txf.layers.parts import take_layer
from keras_txf.layers.shown_options import shows_options, take
from keras_txf.models import embeddings, stack
from keras_txf.models.generative import ContextDecoder, Generator
from keras_txf.models.head_layers import Logits
from keras_txf.models.option_tables import (
    ContextDecoderOptions,
    ContextOptions,
    DecoderOptions,
    GeneratorHeadOptions,
    GeneratorOptions,
    LogitOptions,
)
from keras_txf.models.options import sort_options


@shows_options
def decoder(
    vocab_size: int,
    num_layers: int,
    dim: int,
    num_heads: Each[int | None] = None,
    context_dim: int | None = None,
    context_mask: bool = False,
    packed: bool = False,
    return_hidden_states: bool = False,
    return_attention_scores: bool = False,
    name: str | None = None,
    **options: Unpack[ContextDecoderOptions],
) -> ContextDecoder:
    """Builds a decoder with cross-attention: target ids (B, T) and a context -> logits (B, T, V).

    Inputs are a dict of `target_ids`, int (B, T), and `context`, float (B, S, context_dim), such as
    the output of an `encoder` or any of its hidden states. The Keras mask of the context hides padding.

    An option of the blocks may be a list or tuple with one value for each block. The `stochastic_depth` of
    one `Residual` is the rate of the last block, and the rate grows from block to block.

    Args:
        vocab_size: number V of tokens.
        num_layers: number of blocks, called `decoder_0`, `decoder_1`, ...
        dim: model width.
        num_heads: number of query heads; None with a layer as `attention`.
        context_dim: width of the context; default `dim`.
        context_mask: adds an input `context_mask`, bool (B, S), for contexts in arrays, which have no Keras
            mask.
        packed: adds inputs `target_segment_ids`, `target_positions`, int (B, T), and
            `context_segment_ids`, int (B, S).
        return_hidden_states: adds outputs `hidden_states_0` (the embedding) to
            `hidden_states_{num_layers}`.
        return_attention_scores: adds outputs `attention_scores_0`, ..., (B, N, T, T), and
            `cross_attention_scores_0`, ..., (B, N, T, S).
        name: name of the model; default: the name of the function, with a number from the second model on.
        {options}

    Returns:
        A functional `keras.Model`. With an output on request it returns a dict with `logits`.

    Raises:
        ValueError: an unknown option, or two that do not go together.

    Example:

    >>> encoder = txf.models.encoder(100, num_layers=2, dim=32, num_heads=4, return_hidden_states=True)
    >>> decoder = txf.models.decoder(90, num_layers=2, dim=32, num_heads=4)
    >>> depths = encoder(np.array([[5, 6, 7, 0]]))
    >>> decoder({"target_ids": np.array([[1, 8]]), "context": depths["hidden_states_1"]}).shape
    (1, 2, 90)
    """
    checks.size("dim", dim)
    checks.optional(checks.size, "context_dim", context_dim)
    context = embeddings.float_input((None, context_dim or dim), options.get("dtype"), "context")
    inputs = {"context": context}
    call = {}
    if checks.boolean("context_mask", context_mask):
        inputs["context_mask"] = call["context_mask"] = keras.Input((None,), dtype="bool", name="context_mask")
    if checks.boolean("packed", packed):
        segments = keras.Input((None,), dtype="int32", name="context_segment_ids")
        inputs["context_segment_ids"] = call["context_segment_ids"] = segments
    make_logits, sizes = Logits(**take(LogitOptions, options)), stack.Sizes(num_layers, dim, num_heads)
    scores = return_attention_scores
    own, result, logits = decode(
        "decoder", vocab_size, sizes, options, make_logits, packed, scores, context=context, **call
    )
    outputs = result.outputs("logits", logits, return_hidden_states, return_attention_scores)
    return stack.make_model({**inputs, **own}, outputs, name, "decoder", ContextDecoder)


@shows_options
def decoder_generator(
    vocab_size: int,
    num_layers: int,
    dim: int,
    num_heads: Each[int | None] = None,
    packed: bool = False,
    return_hidden_states: bool = False,
    return_attention_scores: bool = False,
    name: str | None = None,
    **options: Unpack[GeneratorOptions],
) -> Generator:
    """Builds a decoder-only language model: token ids (B, T) -> logits (B, T, V), with `generate`.

    Args:
        vocab_size, num_layers, dim, num_heads: see `decoder`. Pass `pad_id=None` if no token is padding.
        return_hidden_states, name: see `decoder`.
        packed: whether rows hold several sequences. The inputs are then a dict of `token_ids`,
            `segment_ids` and `positions`, int (B, T) each.
        return_attention_scores: adds outputs `attention_scores_0`, ..., (B, N, T, T) each.
        {options}

    Returns:
        A functional `keras.Model` with `generate`. With an output on request it returns a dict with
        `logits`.

    Raises:
        ValueError: an unknown option, or two that do not go together.

    Example:

    >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> model.generate([[5, 6, 7], [8]], max_new_tokens=4).shape
    (2, 7)
    """
    make_logits, sizes = Logits(**take(GeneratorHeadOptions, options)), stack.Sizes(num_layers, dim, num_heads)
    inputs, result, logits = decode(
        "decoder_generator", vocab_size, sizes, options, make_logits, packed, return_attention_scores
    )
    outputs = result.outputs("logits", logits, return_hidden_states, return_attention_scores)
    inputs = inputs if packed else inputs["token_ids"]
    return stack.make_model(inputs, outputs, name, "decoder_generator", Generator)


def decode(
    builder,
    vocab_size,
    sizes,
    options,
    make_logits=None,
    packed=False,
    scores=False,
    context=None,
    embedding=None,
    position_embedding=None,
    start_id=None,
    ids=None,
    **call,
):
    """Wires a decoder: symbolic inputs, `StackOutputs` and logits.

    Args:
        make_logits: the `Logits`; None: the logits are None.
        ids: the symbolic target ids of a decoder without its own input, or None.
        call: tensors for the call of every block.
        others: see `decoder` and `embeddings.embed`.
    """
    checks.boolean("packed", packed)
    if make_logits is not None:
        make_logits.check(options.get("embedding"))
    options = sort_options(builder, DecoderBlock, options, DecoderOptions if context is None else ContextOptions)
    prefix = "" if context is None else "target_"
    ids_name = "token_ids" if context is None else "target_ids"
    inputs, segment_ids, positions = {}, None, None
    if ids is None:
        inputs, ids, segment_ids, positions = embeddings.token_inputs(packed, ids_name, prefix)
    if embedding is None:
        checks.size("vocab_size", vocab_size)
        embedding = embeddings.make_embedding(vocab_size, sizes.dim, options, f"{prefix}embedding")
    if make_logits is not None and make_logits.tie_embeddings and embedding.dim != sizes.dim:
        raise ValueError(
            f"`tie_embeddings` needs an `embedding` as wide as the decoder, {sizes.dim}; received {embedding.dim}. "
            "Pass tie_embeddings=False, or an embedding with `token_dim`."
        )
    options.block["cross_attention"] = context is not None and _cross_attention(options.block.get("cross_attention"))
    x = embeddings.embed(
        embedding, ids, options, "decoder", positions, position_embedding=position_embedding, start_id=start_id
    )
    call.update(positions=positions, segment_ids=segment_ids)
    result = stack.run(DecoderBlock, x, sizes, options, "decoder", scores, context, **call)
    if make_logits is None:
        return inputs, result, None
    return inputs, result, make_logits(result.output, embedding, vocab_size, options.dtype, result.blocks[0])


def _cross_attention(value):
    """The option `cross_attention` of the blocks: the layer of the builder's option, or True for None."""
    if isinstance(value, (list, tuple)):
        return [_cross_attention(one) for one in value]
    return True if take_layer("cross_attention", value) is None else value
