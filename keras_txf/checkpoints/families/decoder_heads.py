"""Tasks of decoders beside the language model: hidden states, and classes of texts (rewards too) and of tokens.

The builders are those of encoders, with `causal=True`.
"""

import dataclasses

from keras_txf import models
from keras_txf.checkpoints.family import classes, encoder_task

OF_LOGITS = ("logit_scale", "final_logit_soft_cap")  # of the language model alone


def for_both(table):
    """Adds the rows of an encoder to those of a decoder; the tensors of their blocks are the same."""
    if callable(table):
        return lambda c: for_both(table(c))
    return {**table, **{path.replace("decoder_", "encoder_"): row for path, row in table.items()}}


def decoder_tasks(name, language_model, sequences=True, tokens="score", pad_id=None, rate=0.1):
    """Returns the tasks of a family of decoders.

    Args:
        name: what the names of its classes begin with.
        language_model: its task "causal_lm".
        sequences: whether there is a class for sequence classification; or the rows and the options of its head.
        tokens: name of the logits in the class for token classification, or None where there is no such class.
        pad_id: default of `pad_token_id`.
        rate: default of the rate of dropout before the logits of tokens.
    """
    tasks = {"encoder": encoder_task(f"{name}Model")}
    if sequences:
        rows, head = ({"logits": "score"}, lambda c: {"logit_bias": False}) if sequences is True else sequences
        # Transformers takes the last token other than `pad_token_id`, even where that ends texts too.
        tasks["sequence_classification"] = classes(
            f"{name}ForSequenceClassification",
            models.encoder_classifier,
            rows,
            lambda c: {"pooling": "last", "pad_id": c.pad_id(pad_id), **head(c)},
        )
    if tokens:
        tasks["token_classification"] = classes(
            f"{name}ForTokenClassification",
            models.token_classifier,
            {"logits": tokens},
            lambda c: {"head_dropout": dropout(c, rate)},
        )
    converted = {task: dataclasses.replace(known, convert=as_encoder) for task, known in tasks.items()}
    return {"causal_lm": dataclasses.replace(language_model, convert=as_decoder), **converted}


def dropout(c, default):
    own, hidden = c("classifier_dropout", None), c("hidden_dropout", None)
    return next((rate for rate in (own, hidden) if rate is not None), default)


def as_decoder(options):
    if not options.pop("causal", True):
        raise ValueError(
            "config.json must have `use_bidirectional_attention` false and `is_causal` true for the task 'causal_lm'; "
            "received a model whose tokens see later ones. Pass task='encoder', or `ignore` with the key."
        )
    return options


def as_encoder(options):
    if options.get("token_dim") is not None:
        raise ValueError(
            "config.json must have word_embed_proj_dim = hidden_size for a task other than 'causal_lm'; received "
            f"{options['token_dim']} and {options['dim']}."
        )
    causal = {} if "attention" in options else {"causal": True}  # a layer says that itself
    return {**causal, **{name: value for name, value in options.items() if name not in OF_LOGITS}}
