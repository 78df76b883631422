"""encoder_decoder: the paper's model, built from the encoder and the decoder."""

from typing import Any, Unpack

import keras

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers import EncoderBlock
from keras_txf.layers.option_tables import Each
from keras_txf.layers.shown_options import shows_options, take
from keras_txf.models import embeddings, stack
from keras_txf.models.decoder import decode
from keras_txf.models.head_layers import Logits
from keras_txf.models.option_tables import ContextDecoderOptions, DecoderOptions, LogitOptions
from keras_txf.models.options import each_value, heads_for, resolve_encoding, sort_options
from keras_txf.models.seq2seq_model import Seq2Seq


@embeddings.takes_vectors
@shows_options
def encoder_decoder(
    source_vocab_size: int | None,
    target_vocab_size: int,
    num_layers: int,
    dim: int,
    num_heads: Each[int | None] = None,
    num_decoder_layers: int | None = None,
    share_embeddings: bool | str | None = None,
    start_id: int | None = None,
    packed: bool = False,
    return_hidden_states: bool = False,
    return_attention_scores: bool = False,
    encoder_options: dict[str, Any] | None = None,
    decoder_options: dict[str, Any] | None = None,
    input_dim: int | None = None,
    name: str | None = None,
    **options: Unpack[ContextDecoderOptions],
) -> Seq2Seq:
    """Builds an encoder-decoder: source and target ids -> logits (B, T, V), with `generate`.

    Inputs are a dict of `source_ids`, int (B, S), and `target_ids`, int (B, T), the answer that
    starts with its start token. `encoder_decoder(37000, 37000, 6, 512, 8)` is the paper's base model.

    An option of the blocks may be a list or tuple with one value for each block. The `stochastic_depth` of
    one `Residual` is the rate of the last block, and the rate grows from block to block.

    Args:
        source_vocab_size: number of source tokens. With `input_dim` None, or left out if all arguments are keywords.
        target_vocab_size: number V of target tokens.
        num_layers: number of blocks of the encoder, and of the decoder without `num_decoder_layers`.
        dim: model width.
        num_heads: number of query heads; None with a layer as `attention`.
        num_decoder_layers: number of blocks of the decoder; default `num_layers`.
        share_embeddings: whether source and target have one embedding, as in the paper. Default: True if both
            vocabularies have the same size. "tokens": they share the tokens, and each side has its own positions
            (BART).
        start_id: the first token of every target, also of `generate`. As the first token it is not padding, even
            if it equals `pad_id`, as in T5. Default: the `start_id` of `generate`, or 1.
        packed: adds inputs `source_segment_ids`, `source_positions`, `target_segment_ids` and
            `target_positions`, for rows that hold several sequences.
        return_hidden_states: adds outputs `encoder_hidden_states_0`, ..., `decoder_hidden_states_0`, ...
        return_attention_scores: adds outputs `encoder_attention_scores_0`, ...,
            `decoder_attention_scores_0`, ... and `decoder_cross_attention_scores_0`, ...
        encoder_options, decoder_options: dicts of options that differ between encoder and decoder, `num_heads`
            included. With share_embeddings=False also `dim` and `embedding`.
        input_dim: width F of float vectors instead of source tokens, such as audio frames. `source_features`, float
            (B, S, F), then replaces the input `source_ids`. `source_features_mask`, bool (B, S), True at real
            vectors, is optional; without it the Keras mask of the features applies. An `embedding` in
            `encoder_options`, such as `AudioEmbedding`, takes the vectors to (B, S, width). `position_encoding` and
            `max_length` then apply to the decoder.
        name: name of the model; default: the name of the function, with a number from the second model on.
        {options}

    Returns:
        A functional `keras.Model` with `generate`. With an output on request it returns a dict with
        `logits`.

    Raises:
        ValueError: an unknown option, or two that do not go together.

    Reference:
        [Attention Is All You Need](https://arxiv.org/abs/1706.03762).

    Example:

    >>> model = txf.models.encoder_decoder(100, 90, num_layers=2, dim=32, num_heads=4)
    >>> model({"source_ids": np.array([[5, 6, 7, 0]]), "target_ids": np.array([[1, 8]])}).shape
    (1, 2, 90)
    """
    make_logits = Logits(**take(LogitOptions, options))
    checks.boolean("packed", packed)
    checks.optional(checks.id_below, "start_id", start_id, target_vocab_size)
    if packed and start_id is not None:
        raise ValueError("`start_id` does not go with `packed`, where a row has several starts.")
    inputs, _, encoded, decoded, logits = encode_and_decode(
        "encoder_decoder",
        (source_vocab_size, target_vocab_size),
        stack.Sizes(num_layers, dim, num_heads),
        options,
        num_decoder_layers=num_decoder_layers,
        own_options=(encoder_options, decoder_options),
        share_embeddings=share_embeddings,
        start_id=start_id,
        packed=packed,
        scores=return_attention_scores,
        make_logits=make_logits,
        input_dim=input_dim,
    )
    extra = requested_of_both(encoded, decoded, return_hidden_states, return_attention_scores)
    return stack.make_model(inputs, stack.with_extra("logits", logits, extra), name, "encoder_decoder", Seq2Seq)


def requested_of_both(encoded, decoded, hidden_states, attention_scores):
    """The requested outputs of encoder and decoder by name."""
    return {
        **encoded.requested(hidden_states, attention_scores, "encoder_"),
        **decoded.requested(hidden_states, attention_scores, "decoder_"),
    }


def encode_and_decode(
    builder,
    vocab_sizes,
    sizes,
    options,
    num_decoder_layers=None,
    own_options=(None, None),
    share_embeddings=None,
    start_id=None,
    packed=False,
    scores=False,
    make_logits=None,
    input_dim=None,
    target_of=None,
):
    """Wires both sides: symbolic inputs, the source ids, the `StackOutputs` of each side, the logits.

    Args:
        vocab_sizes: the numbers of source and of target tokens.
        sizes: the `stack.Sizes` of both sides; the options of a side may override them.
        own_options: the caller's `encoder_options` and `decoder_options`.
        target_of: function of the symbolic source ids that returns the target ids, for a decoder without its own
            input; the name of the source is then `token_ids`.
        others: see `encoder_decoder`.
    """
    source_vocab_size, target_vocab_size = vocab_sizes
    encoder_options, decoder_options = own_options
    num_heads = sizes.num_heads
    embeddings.check_source("source_vocab_size", source_vocab_size, input_dim)
    own = encoder_options if isinstance(encoder_options, dict) else {}
    checks.optional(checks.size, "source_vocab_size", source_vocab_size)
    checks.size("target_vocab_size", target_vocab_size)
    checks.optional(checks.size, "num_decoder_layers", num_decoder_layers)
    checks.one_of("share_embeddings", share_embeddings, (True, False, None, "tokens"))
    if input_dim is not None:
        if share_embeddings:
            raise ValueError(
                f"`share_embeddings` does not go with `input_dim`; received {short_repr(share_embeddings)}."
            )
        share_embeddings = False
        embeddings.check_vector_options(own, DecoderOptions)
    share_embeddings = embeddings.resolve_sharing(share_embeddings, source_vocab_size, target_vocab_size)
    for argument, value in (("encoder_options", encoder_options), ("decoder_options", decoder_options)):
        if value is not None and not isinstance(value, dict):
            raise ValueError(f"`{argument}` must be a dict of options; received {short_repr(value)}.")
    for option in (*embeddings.EMBEDDING_OPTIONS, "embedding") if share_embeddings else ():
        if option in (encoder_options or {}) or option in (decoder_options or {}):
            raise ValueError(
                f"`{option}` of one side does not go with `share_embeddings`, which gives both sides "
                "one embedding. Pass it for both sides, or share_embeddings=False."
            )
    shared = options.get("attention")
    if any(isinstance(layer, keras.layers.Layer) for layer in each_value(shared)):
        raise ValueError(
            "`attention` must be given for one side, in `encoder_options` or `decoder_options`: only an encoder "
            f"attends to later tokens; received {short_repr(shared)} for both."
        )
    # A layer as `attention` has its own heads. The decoder needs `num_heads` unless its cross-attention is a layer too.
    encoder_heads = heads_for(num_heads, (encoder_options or {}).get("attention"))
    of_encoder = {name: value for name, value in options.items() if name != "cross_attention"}
    encoder_options = {"num_heads": encoder_heads, "dim": sizes.dim, **_for_side(of_encoder, encoder_options)}
    decoder_options = _for_side(options, decoder_options)
    decoder_heads = heads_for(num_heads, decoder_options.get("attention"), decoder_options.get("cross_attention"))
    decoder_options = {"num_heads": decoder_heads, "dim": sizes.dim, **decoder_options}
    encoder_heads, decoder_heads = encoder_options.pop("num_heads"), decoder_options.pop("num_heads")
    encoder_dim, decoder_dim = (checks.size("dim", one.pop("dim")) for one in (encoder_options, decoder_options))
    if share_embeddings and encoder_dim != decoder_dim:
        raise ValueError(
            f"`share_embeddings` needs the same `dim` on both sides; received {encoder_dim} for the encoder and "
            f"{decoder_dim} for the decoder."
        )
    encodings = [resolve_encoding(one) for one in (encoder_options, decoder_options)]
    if share_embeddings and encodings[0] != encodings[1]:
        raise ValueError(
            "`share_embeddings` needs the same `position_encoding` on both sides, whose default depends on `position`; "
            f"received {short_repr(encodings[0])} for the encoder and {short_repr(encodings[1])} for the decoder. Pass "
            "`position_encoding` for both sides, or share_embeddings=False."
        )
    of_embedding = embeddings.EMBEDDING_OPTIONS if input_dim is None else embeddings.FEATURE_OPTIONS
    sorted_options = sort_options("encoder_options", EncoderBlock, encoder_options, DecoderOptions, of_embedding)
    own_positions = (
        embeddings.separate_positions(encoder_dim, sorted_options) if share_embeddings == "tokens" else (None, None)
    )
    if input_dim is None:
        ids_name = "source_ids" if target_of is None else "token_ids"
        source, source_ids, segment_ids, positions = embeddings.token_inputs(packed, ids_name, "source_")
        table = "embedding" if share_embeddings else "source_embedding"
        embedding = embeddings.make_embedding(source_vocab_size, encoder_dim, sorted_options, table)
        x = embeddings.embed(
            embedding, source_ids, sorted_options, "encoder", positions, position_embedding=own_positions[0]
        )
    else:
        source_ids = None
        source, x, segment_ids, positions = embeddings.embed_features(
            input_dim, encoder_dim, sorted_options, packed, "source_embedding", "source_"
        )
    of_encoder = stack.Sizes(sizes.num_layers, encoder_dim, encoder_heads)
    call = {"positions": positions, "segment_ids": segment_ids}
    encoded = stack.run(EncoderBlock, x, of_encoder, sorted_options, "encoder", scores, **call)
    target, decoded, logits = decode(
        builder,
        target_vocab_size,
        stack.Sizes(num_decoder_layers or sizes.num_layers, decoder_dim, decoder_heads),
        decoder_options,
        make_logits,
        packed,
        scores,
        context=encoded.output,
        embedding=embedding if share_embeddings else None,
        position_embedding=own_positions[1],
        start_id=start_id,
        ids=None if target_of is None else target_of(source_ids),
        context_segment_ids=segment_ids,
    )
    return {**source, **target}, source_ids, encoded, decoded, logits


def _for_side(options, own):
    """The options of one side: its own options override those of both sides.

    An `embedding` among its own options also replaces the common options of the embedding.
    """
    own = own or {}
    replaced = embeddings.EMBEDDING_OPTIONS if own.get("embedding") is not None else ()
    return {**{name: value for name, value in options.items() if name not in replaced}, **own}
