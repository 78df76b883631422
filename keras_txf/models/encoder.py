"""The encoder alone, and the classifier on top of it."""

import keras

from keras_txf import checks
from keras_txf.layers import EncoderBlock, Pooling
from keras_txf.layers.heads import POOLINGS
from keras_txf.layers.projections import Projection
from keras_txf.models import stack


def encoder(
    vocab_size,
    num_layers,
    dim,
    num_heads,
    packed=False,
    return_hidden_states=False,
    return_attention_scores=False,
    name="encoder",
    **options,
):
    """Builds an encoder: token ids (B, T) -> hidden states (B, T, dim).

    Args:
        vocab_size: number of tokens.
        num_layers: number of blocks, called `encoder_0`, `encoder_1`, ...
        dim: model width.
        num_heads: number of query heads.
        packed: whether rows hold several sequences. The inputs are then a dict of `token_ids`,
            `segment_ids` and `positions`, int (B, T) each.
        return_hidden_states: adds outputs `hidden_states_0` (the embedding) to
            `hidden_states_{num_layers}` (the output).
        return_attention_scores: adds outputs `attention_scores_0`, ..., (B, N, T, T) each.
        name: name of the model.
        **options: those of `EncoderBlock` (a list or tuple holds one value for each block);
            `encoding`, `max_length`, `combine`, `position_dim`, `pad_id`, `embeddings_initializer`
            of `PositionalEmbedding`, where `encoding` defaults to the paper's sinusoids, or to None
            where `position` has attention see to it; `scale_embedding` (default True, the paper's
            sqrt(dim)); `final_norm` (default: unless the norms are "post"); `dtype`.

    Returns:
        A functional `keras.Model`. With an output on request it returns a dict, whose `output` is
        the hidden states.

    Raises:
        ValueError: an unknown option, or two that do not go together.

    Example:

    >>> model = txf.models.encoder(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> model(np.array([[5, 6, 7, 0]])).shape
    (1, 4, 32)
    """
    checks.boolean("packed", packed)
    inputs, result, _ = encode(
        "encoder", vocab_size, num_layers, dim, num_heads, packed, return_attention_scores, options
    )
    extra = result.requested(return_hidden_states, return_attention_scores)
    outputs = {"output": result.output, **extra} if extra else result.output
    return keras.Model(inputs, outputs, name=name)


def encode(builder, vocab_size, num_layers, dim, num_heads, packed, scores, options):
    """Symbolic inputs, stack.Result and sorted options of an encoder."""
    options = stack.sort_options(builder, EncoderBlock, options)
    inputs, ids, segment_ids, positions = stack.token_inputs(packed)
    embedding = stack.make_embedding(vocab_size, dim, options, "embedding")
    result = stack.run(
        EncoderBlock, embedding, ids, num_layers, num_heads, options, "encoder", scores,
        positions=positions, segment_ids=segment_ids,
    )
    return (inputs if packed else ids), result, options


def encoder_classifier(
    vocab_size,
    num_classes,
    num_layers,
    dim,
    num_heads,
    pooling="mean",
    return_hidden_states=False,
    return_attention_scores=False,
    name="encoder_classifier",
    **options,
):
    """Builds a classifier of sequences: token ids (B, T) -> logits (B, num_classes).

    Args:
        vocab_size, num_layers, dim, num_heads, return_hidden_states, return_attention_scores, name,
        **options: see `encoder`.
        num_classes: number of logits.
        pooling: how a sequence becomes one vector: the `kind` of `Pooling`.

    Returns:
        A functional `keras.Model`. With an output on request it returns a dict with `logits`.

    Raises:
        ValueError: an unknown option, or two that do not go together.

    Example:

    >>> model = txf.models.encoder_classifier(
    ...     vocab_size=100, num_classes=3, num_layers=2, dim=32, num_heads=4)
    >>> model(np.array([[5, 6, 7, 0]])).shape
    (1, 3)
    """
    checks.positive_integer("num_classes", num_classes)
    checks.one_of("pooling", pooling, POOLINGS)
    if options.pop("packed", False):
        raise ValueError("`packed` does not go with `pooling`: a classifier has one answer for each row.")
    inputs, result, options = encode(
        "encoder_classifier", vocab_size, num_layers, dim, num_heads, False, return_attention_scores, options
    )
    pooled = Pooling(pooling, dtype=options.dtype, name="pooling")(result.output)
    logits = Projection(num_classes, dtype=options.dtype, name="logits")(pooled)
    extra = result.requested(return_hidden_states, return_attention_scores)
    return keras.Model(inputs, {"logits": logits, **extra} if extra else logits, name=name)
