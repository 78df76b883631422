"""encoder_decoder_classifier: an encoder-decoder with a head for the class of a text or the span of an answer."""

from typing import Any, Unpack

import keras

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers import Pooling
from keras_txf.layers.heads import SpanLogits
from keras_txf.layers.option_tables import Each
from keras_txf.layers.sequence_ends import MaskAfterLastEnd, ShiftRight
from keras_txf.layers.shown_options import shows_options, take
from keras_txf.models import stack
from keras_txf.models.checked_model import CheckedModel
from keras_txf.models.head_layers import class_logits
from keras_txf.models.option_tables import ClassHeadOptions, EncoderDecoderClassifierOptions
from keras_txf.models.seq2seq import encode_and_decode, requested_of_both


@shows_options
def encoder_decoder_classifier(
    vocab_size: int,
    num_classes: int | None,
    num_layers: int,
    dim: int,
    num_heads: Each[int | None] = None,
    num_decoder_layers: int | None = None,
    spans: bool = False,
    share_embeddings: bool | str = True,
    start_id: int | None = None,
    end_id: int | None = None,
    return_hidden_states: bool = False,
    return_attention_scores: bool = False,
    encoder_options: dict[str, Any] | None = None,
    decoder_options: dict[str, Any] | None = None,
    name: str | None = None,
    **options: Unpack[EncoderDecoderClassifierOptions],
) -> keras.Model:
    """Builds a classifier with an encoder-decoder, as for BART and T5: token ids (B, T) -> logits (B, num_classes).

    Use it for checkpoints of such classifiers. For a new model an `encoder_classifier` without a decoder is cheaper.
    Encoder and decoder read the same text. The decoder reads a start token first, and then the text. Its state at the
    last end token represents the text. Rows are padded on the right.

    Args:
        vocab_size: number of tokens.
        num_classes: number of logits; None with `spans`.
        num_layers, dim, num_heads, num_decoder_layers: see `encoder_decoder`.
        spans: whether the model finds the span of an answer in the text, as `span_classifier` does. It then returns a
            dict of `start_logits` and `end_logits`, (B, T) each.
        share_embeddings: see `encoder_decoder`.
        start_id: the first token of the decoder. Default: the last token of the text (mBART).
        end_id: the end token; the head reads the state at its last position in the text. By default, and in a text
            without an end token, the head reads the state at the last token of the text.
        return_hidden_states, return_attention_scores, encoder_options, decoder_options, name: see `encoder_decoder`.
        {options}

    Returns:
        A functional `keras.Model`. With `return_hidden_states` or scores it returns a dict with `logits`.

    Raises:
        ValueError: an unknown option, or two options that do not go together.

    Reference:
        [BART](https://arxiv.org/abs/1910.13461), section 3.1.

    Example:

    >>> model = txf.models.encoder_decoder_classifier(100, 3, num_layers=2, dim=32, num_heads=4, start_id=2, end_id=2)
    >>> model(np.array([[5, 6, 7, 2, 0, 0]])).shape
    (1, 3)
    """
    checks.size("vocab_size", vocab_size)
    if checks.boolean("spans", spans) and num_classes is not None:
        raise ValueError(f"`num_classes` must be None with spans=True; received {short_repr(num_classes)}.")
    classes = 2 if spans else checks.size("num_classes", num_classes)
    for argument, value in (("start_id", start_id), ("end_id", end_id)):
        checks.optional(checks.id_below, argument, value, vocab_size)
    checks.one_of("share_embeddings", share_embeddings, (True, False, "tokens"))
    head = take(ClassHeadOptions, options)
    pad_id = getattr(options.get("embedding"), "pad_id", options.get("pad_id", 0))
    for argument, own in (("encoder_options", encoder_options), ("decoder_options", decoder_options)):
        if isinstance(own, dict) and own.get("pad_id", pad_id) != pad_id:
            raise ValueError(f"`{argument}` must have no other `pad_id`: both sides read the same text.")
    shift = ShiftRight(start_id, pad_id, dtype=options.get("dtype"), name="shift_right")
    inputs, ids, encoded, decoded, _ = encode_and_decode(
        "encoder_decoder_classifier",
        (vocab_size, vocab_size),
        stack.Sizes(num_layers, dim, num_heads),
        options,
        num_decoder_layers=num_decoder_layers,
        own_options=(encoder_options, decoder_options),
        share_embeddings=share_embeddings,
        start_id=start_id,
        scores=return_attention_scores,
        target_of=shift,
    )
    dtype = options.get("dtype")
    mask = MaskAfterLastEnd(None if spans else end_id, pad_id, dtype=dtype, name="text_end")
    x = mask([decoded.output, ids])
    if not spans:
        x = Pooling("last", dtype=dtype, name="pooling")(x)
    logits = class_logits(x, classes, decoded.output.shape[-1], head, dtype)
    extra = requested_of_both(encoded, decoded, return_hidden_states, return_attention_scores)
    if spans:
        outputs = {**SpanLogits(dtype=dtype, name="span_logits")(logits), **extra}
    else:
        outputs = stack.with_extra("logits", logits, extra)
    return stack.make_model(inputs["token_ids"], outputs, name, "encoder_decoder_classifier", CheckedModel)
