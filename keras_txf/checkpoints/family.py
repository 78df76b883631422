"""`Family` and `Task` map a family's configuration and tensors to our builders and weights."""

import dataclasses
from collections.abc import Callable

from keras_txf import models
from keras_txf.checkpoints.weight_map import as_tensor


@dataclasses.dataclass
class Task:
    """A task of a family's checkpoints.

    Args:
        architecture: name of the class in transformers, as in `config.json`.
        build: builder of `txf.models`.
        tensors: rows of the head, or a function of the config that returns them. A row for `logits` of a language
            model applies where the logits are not tied to the embedding.
        options: function of the config that returns the builder's options for the head.
        optional: dict of the builder's Boolean options -> the name of the tensor whose presence sets them.
        untied: rows that replace others where the logits are not tied to the embedding.
        whole: whether the class holds the family's body under its prefix; False for a class of the body alone.
        convert: function that turns the family's options, without those of the head, into the builder's.
        ignore: patterns of tensors of the family's body that the class of the task does not have.
        makes_head: whether the model of a file without the head gets a new head, without `num_classes`.
        classes_key: key of config.json with the number of classes, if its names of labels are not of these classes.
    """

    architecture: str
    build: Callable
    tensors: dict | Callable = dataclasses.field(default_factory=dict)
    options: Callable = lambda c: {}
    optional: dict = dataclasses.field(default_factory=dict)
    untied: dict = dataclasses.field(default_factory=dict)
    whole: bool = True
    convert: Callable = lambda options: options
    ignore: tuple = ()
    makes_head: bool = False
    classes_key: str | None = None

    def rows(self, config):
        return _rows(self.tensors, config)


@dataclasses.dataclass
class Family:
    """A family: option values of the builders, and a table of tensors.

    Args:
        options: function of a `Config` that returns the options of every builder.
        tensors: the rows of the body, or a function of the config that returns them.
        tasks: dict of names -> `Task`, first the task of files without an architecture.
        prefix: prefix of the body's names in a class with a head.
        stored: dict of names of tensors that some files lack -> function that returns the builder's options with a
            weight for the tensor.
        own_name: function of the name of a tensor in a file of any version of transformers that returns the name in
            the table, with its prefix.
        other_prefix: the prefix of the body's names in a class whose head is not built, if it differs from `prefix`.
        ignore: patterns of buffers, which do not become weights.
        kept: patterns of tensors of a head that is not built, which `save` writes back; or a function of the config
            that returns them.
        aliases: dict of further names of a tensor, instead of its name or next to it -> the name of the tensor.
        neutral: keys of the config without an effect, in addition to `config.NEUTRAL`.
        start: function of the options in a model of a builder that returns values of config.json: with these the
            search for all values begins.
        tie_key_is_for_logits: whether `tie_word_embeddings` is about the logits alone.
        renamed: patterns of names of modules in files -> their names in the class of transformers 5, which peft uses;
            a tuple of names if the class has a module for each layer that the file's module concatenates.
        kept_in_body: patterns of tensors of the body without a weight, which `save` writes back in every class.
    """

    options: Callable
    tensors: dict | Callable
    tasks: dict
    prefix: str = ""
    ignore: tuple = ()
    kept: tuple | Callable = ()
    aliases: dict = dataclasses.field(default_factory=dict)
    neutral: tuple = ()
    start: Callable = lambda options: {}
    tie_key_is_for_logits: bool = True
    renamed: dict = dataclasses.field(default_factory=dict)
    other_prefix: str = ""
    stored: dict = dataclasses.field(default_factory=dict)
    own_name: Callable = lambda name: name
    kept_in_body: tuple = ()

    def rows(self, config):
        return _rows(self.tensors, config)

    def kept_tensors(self, config):
        return _rows(self.kept, config)


def _rows(table, config):
    return table(config) if callable(table) else table


def modules_of(rows):
    """Returns the names of the modules or tensors in the rows of a head. The names have no number of a block."""
    return {as_tensor(row).name for row in rows.values()}


# Option of the builders -> its key in the config.json of most families.
SIZES = {
    "vocab_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "dim": "hidden_size",
    "num_heads": "num_attention_heads",
}


def sizes(c, **keys):
    """Returns the sizes in a config; `keys` are other keys for the options, None for an option to leave out."""
    return {option: c(key) for option, key in {**SIZES, **keys}.items() if key is not None}


def encoder_task(architecture):
    """Returns the task of the body alone."""
    return Task(architecture, models.encoder, whole=False)


def classes(architecture, build, tensors, options=lambda c: {}):
    """Returns the task of a classifier that `build` makes."""
    return Task(architecture, build, tensors, lambda c: {"num_classes": c.num_classes(), **options(c)})


def spans(architecture, tensors, options=lambda c: {}):
    """Returns the task of finding the span of an answer."""
    return Task(architecture, models.span_classifier, tensors, options, makes_head=True)


POOLER = r"pooler\.dense\.(weight|bias)"  # of a body that is built without it
IMAGE_TEXT = "image_text_to_text"  # task of the language models that read images
LANGUAGE_MODELS = ("masked_lm", "pretraining", "causal_lm", "seq2seq", IMAGE_TEXT)


LOGIT_OPTIONS = ("logit_scale", "final_logit_soft_cap")  # of the language model alone


def for_both(table):
    """Adds the rows of an encoder to those of a decoder; the tensors of their blocks are the same."""
    if callable(table):
        return lambda c: for_both(table(c))
    return {**table, **{path.replace("decoder_", "encoder_"): row for path, row in table.items()}}


def decoder_tasks(name, language_model, sequences=True, tokens="score", pad_id=None, rate=0.1):
    """Returns the tasks of a family of decoders.

    Args:
        name: prefix of the names of its classes.
        language_model: its task "causal_lm".
        sequences: whether there is a class for sequence classification; or a pair, the rows and options of its head.
        tokens: name of the logits in the class for token classification; None if there is no such class.
        pad_id: default of `pad_token_id`.
        rate: default dropout rate before the logits of token classification.
    """
    tasks = {"encoder": encoder_task(f"{name}Model")}
    if sequences:
        rows, head = ({"logits": "score"}, lambda c: {"logit_bias": False}) if sequences is True else sequences
        # Transformers takes the last token other than `pad_token_id`, even if that token also ends texts.
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


def kinds_from(mixer, kind, **others):
    """Returns `Family.start` of a family whose blocks of one kind have a mixer instead of the attention.

    Args:
        mixer: class of the mixer.
        kind: its word in `layer_types`.
        others: further values of config.json.
    """

    def values_of(options):
        layers = options.get("attention", ())
        kinds = [kind if layer and layer["class"] == mixer.__name__ else "full_attention" for layer in layers]
        return {**({"num_hidden_layers": len(kinds), "layer_types": kinds} if kinds else {}), **others}

    return values_of


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
    given = options.get("attention", [None])
    layers = given if isinstance(given, list) else [given]
    causal = {"causal": True} if None in layers else {}  # a layer has its own `causal`
    return {**causal, **{name: value for name, value in options.items() if name not in LOGIT_OPTIONS}}
