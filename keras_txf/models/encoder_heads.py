"""Builders with an encoder and a head: classifiers of sequences, tokens and spans, the masked language model."""

from typing import Unpack

import keras

from keras_txf import checks
from keras_txf.layers.heads import LogitAdjustment, SpanLogits
from keras_txf.layers.option_tables import Each
from keras_txf.layers.shown_options import shows_options, take
from keras_txf.models import embeddings, stack
from keras_txf.models.checked_model import CheckedModel
from keras_txf.models.encoder import encode
from keras_txf.models.head_layers import Logits, apply_head, class_logits, next_sentence_logits, pool
from keras_txf.models.option_tables import (
    ClassHeadOptions,
    EncoderOptions,
    MaskedHeadOptions,
    MaskedLanguageModelOptions,
    SequenceClassifierOptions,
    SequenceHeadOptions,
    TokenClassifierOptions,
)


@embeddings.takes_vectors
@shows_options
def encoder_classifier(
    vocab_size: int | None,
    num_classes: int,
    num_layers: int,
    dim: int,
    num_heads: Each[int | None] = None,
    token_type_ids: bool = False,
    return_hidden_states: bool = False,
    return_attention_scores: bool = False,
    name: str | None = None,
    **options: Unpack[SequenceClassifierOptions],
) -> keras.Model:
    """Builds a classifier of sequences: token ids (B, T) -> logits (B, num_classes).

    Args:
        vocab_size, num_layers, dim, num_heads, token_type_ids: see `encoder`.
        return_hidden_states, return_attention_scores, name: see `encoder`.
        num_classes: number of logits.
        {options}

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
    checks.size("num_classes", num_classes)
    head = take(SequenceHeadOptions, options)
    sizes = stack.Sizes(num_layers, dim, num_heads)
    inputs, result, _, options = encode(
        "encoder_classifier", vocab_size, sizes, options, token_type_ids=token_type_ids, scores=return_attention_scores
    )
    x = pool(result.output, head["pooling"], options.dtype)
    logits = class_logits(x, num_classes, dim, head, options.dtype)
    outputs = result.outputs("logits", logits, return_hidden_states, return_attention_scores)
    return stack.make_model(inputs, outputs, name, "encoder_classifier", CheckedModel)


@embeddings.takes_vectors
@shows_options
def token_classifier(
    vocab_size: int | None,
    num_classes: int,
    num_layers: int,
    dim: int,
    num_heads: Each[int | None] = None,
    packed: bool = False,
    token_type_ids: bool = False,
    return_hidden_states: bool = False,
    return_attention_scores: bool = False,
    name: str | None = None,
    **options: Unpack[TokenClassifierOptions],
) -> keras.Model:
    """Builds a classifier of tokens, for names or parts of speech: token ids (B, T) -> logits (B, T, num_classes).

    Args:
        vocab_size, num_layers, dim, num_heads, packed, token_type_ids: see `encoder`.
        return_hidden_states, return_attention_scores, name: see `encoder`.
        num_classes: number of logits.
        {options}

    Returns:
        A functional `keras.Model`. With an output on request it returns a dict with `logits`.

    Raises:
        ValueError: an unknown option, or two that do not go together.

    Example:

    >>> model = txf.models.token_classifier(100, num_classes=3, num_layers=2, dim=32, num_heads=4)
    >>> model(np.array([[5, 6, 7, 0]])).shape
    (1, 4, 3)
    """
    checks.size("num_classes", num_classes)
    head = take(ClassHeadOptions, options)
    sizes = stack.Sizes(num_layers, dim, num_heads)
    inputs, result, _, options = encode(
        "token_classifier",
        vocab_size,
        sizes,
        options,
        packed=packed,
        token_type_ids=token_type_ids,
        scores=return_attention_scores,
    )
    logits = class_logits(result.output, num_classes, dim, head, options.dtype)
    outputs = result.outputs("logits", logits, return_hidden_states, return_attention_scores)
    return stack.make_model(inputs, outputs, name, "token_classifier", CheckedModel)


@embeddings.takes_vectors
@shows_options
def span_classifier(
    vocab_size: int | None,
    num_layers: int,
    dim: int,
    num_heads: Each[int | None] = None,
    token_type_ids: bool = False,
    return_hidden_states: bool = False,
    return_attention_scores: bool = False,
    name: str | None = None,
    **options: Unpack[TokenClassifierOptions],
) -> keras.Model:
    """Builds a model that finds the span of an answer: token ids (B, T) -> logits of its first and its last token.

    Use it to find the answer to a question in a text (SQuAD). The inputs are question and text, as
    `txf.text.sentence_pairs` joins them. Train it with the positions of both tokens, int (B,) each:
    `model.compile(loss={"start_logits": loss, "end_logits": loss})` with a
    `keras.losses.SparseCategoricalCrossentropy(from_logits=True)`.

    Args:
        vocab_size, num_layers, dim, num_heads, token_type_ids: see `encoder`.
        return_hidden_states, return_attention_scores, name: see `encoder`.
        {options}

    Returns:
        A functional `keras.Model` that returns a dict of `start_logits` and `end_logits`, (B, T) each. The logits of
        padding are -32,768, so no span starts or ends there and the loss does not depend on the padding.

    Raises:
        ValueError: an unknown option, or two that do not go together.

    Reference:
        [BERT](https://arxiv.org/abs/1810.04805), section 4.2.

    Example:

    >>> model = txf.models.span_classifier(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> model(np.array([[5, 6, 7, 0]]))["start_logits"].shape
    (1, 4)
    """
    head = take(ClassHeadOptions, options)
    sizes = stack.Sizes(num_layers, dim, num_heads)
    inputs, result, _, options = encode(
        "span_classifier", vocab_size, sizes, options, token_type_ids=token_type_ids, scores=return_attention_scores
    )
    logits = class_logits(result.output, 2, dim, head, options.dtype)
    spans = SpanLogits(dtype=options.dtype, name="span_logits")(logits)
    outputs = {**spans, **result.requested(return_hidden_states, return_attention_scores)}
    return stack.make_model(inputs, outputs, name, "span_classifier", CheckedModel)


@shows_options
def masked_language_model(
    vocab_size: int,
    num_layers: int,
    dim: int,
    num_heads: Each[int | None] = None,
    next_sentence: bool = False,
    packed: bool = False,
    token_type_ids: bool = False,
    return_hidden_states: bool = False,
    return_attention_scores: bool = False,
    name: str | None = None,
    **options: Unpack[MaskedLanguageModelOptions],
) -> keras.Model:
    """Builds a model that predicts masked tokens, for pretraining as in BERT: token ids (B, T) -> logits (B, T, V).

    A Dense layer, a norm and the transposed embedding follow the encoder. `txf.text.mask_tokens` makes the examples.

    Args:
        vocab_size, num_layers, dim, num_heads, packed, token_type_ids: see `encoder`.
        return_hidden_states, return_attention_scores, name: see `encoder`.
        next_sentence: adds an output `next_sentence_logits` (B, 2): whether the second sentence follows the first in
            the text (class 0 in BERT) or not. A Dense layer with tanh, `pooler`, computes them from the first token.
        {options}

    Returns:
        A functional `keras.Model`. With an output on request it returns a dict with `logits`.

    Raises:
        ValueError: an unknown option, or two that do not go together.

    Reference:
        [BERT](https://arxiv.org/abs/1810.04805), section 3.1.

    Example:

    >>> model = txf.models.masked_language_model(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> model(np.array([[5, 6, 7, 0]])).shape
    (1, 4, 100)
    """
    head = take(MaskedHeadOptions, options)
    adjustment = LogitAdjustment(use_bias=True) if head["logit_bias"] else None
    make_logits = Logits(head["tie_embeddings"], adjustment)
    make_logits.check(options.get("embedding"))
    sizes = stack.Sizes(num_layers, dim, num_heads)
    inputs, result, embedding, options = encode(
        "masked_language_model",
        vocab_size,
        sizes,
        options,
        packed=packed,
        token_type_ids=token_type_ids,
        scores=return_attention_scores,
        table=EncoderOptions,
    )
    x = apply_head(result.output, head["head"], embedding.dim, options.dtype, result.blocks[0])
    logits = make_logits(x, embedding, vocab_size, options.dtype)
    extra = result.requested(return_hidden_states, return_attention_scores)
    if checks.boolean("next_sentence", next_sentence):
        if packed:
            raise ValueError("`packed` does not go with `next_sentence`: there is one answer for each row.")
        extra["next_sentence_logits"] = next_sentence_logits(result.output, dim, options.dtype)
    outputs = stack.with_extra("logits", logits, extra)
    return stack.make_model(inputs, outputs, name, "masked_language_model", CheckedModel)
