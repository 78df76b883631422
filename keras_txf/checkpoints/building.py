"""Finds the family and the task of a config.json, and builds its model."""

import contextlib
import dataclasses

import keras

from keras_txf import checks
from keras_txf.backend.functional_graph import nodes
from keras_txf.backend.keras_private import without_values
from keras_txf.checkpoints.config import Config, drop_keys
from keras_txf.checkpoints.config_schema import VALUE_CHECKS
from keras_txf.checkpoints.families import FAMILIES
from keras_txf.checkpoints.families.rotary import with_lengths
from keras_txf.checkpoints.family import LANGUAGE_MODELS, modules_of
from keras_txf.checkpoints.parts import with_parts
from keras_txf.checkpoints.text_parts import text_values
from keras_txf.checkpoints.weight_map import as_tensor, links
from keras_txf.checks import short_repr
from keras_txf.layers import PositionalEmbedding
from keras_txf.layers.token_input import inputs_by_name, logits_of


def family_values(values, task=None):
    """Returns the values of a config.json of one family: of the text part, for a task of texts in a model of images.

    If the file has no `model_type`, it is found by the class in `architectures`.
    """
    values = with_tying_of_text(text_values(values, task))
    if "model_type" in values:
        return values
    names = Config(values)("architectures", None) or ()
    kinds = [
        kind for kind, family in FAMILIES.items() if any(known.architecture in names for known in family.tasks.values())
    ]
    return {**values, "model_type": kinds[0]} if len(kinds) == 1 else values


def with_tying_of_text(values):
    """Returns the values with `tie_word_embeddings` if the text part of a LLaVA asks for it, as transformers does."""
    part = values.get("text_config") if values.get("model_type") == "llava" else None
    if isinstance(part, dict) and Config({"model_type": "llama", **part}, "text_config.")("tie_word_embeddings", True):
        return {**values, "tie_word_embeddings": True}
    return values


def find_family(values):
    kind = Config(values)("model_type", None)
    if kind is None:
        raise ValueError(
            "config.json must have a `model_type`, such as 'bert', or the class of the model in `architectures`; "
            "received neither. Write one of them into the file."
        )
    if kind not in FAMILIES:
        raise ValueError(f"config.json must have a `model_type` of {sorted(FAMILIES)}; received {short_repr(kind)}.")
    return FAMILIES[kind]


def task_of(values, tasks):
    """Returns the name of the task of the class in a config.json, or None."""
    architecture = (Config(values)("architectures", None) or [None])[0]
    return next((name for name, known in tasks.items() if known.architecture == architecture), None)


def choose_task(source, task, num_classes):
    """Returns the name of the task, and whether the model gets a new head."""
    config, tasks = Config(source.values), source.family.tasks
    if task is None:
        task = task_of(source.values, tasks) or next(iter(tasks))
        if task in ("masked_lm", "pretraining") and _is_body_alone(source, tasks[task], config):
            task = "encoder"  # the file names the class of its pretraining
    checks.one_of("task", task, tasks)
    checks.optional(checks.positive_integer, "num_classes", num_classes)
    options = tasks[task].options(config)
    if "num_classes" not in options:
        if num_classes is not None:
            raise ValueError(
                f"`num_classes` is for classifiers; received {short_repr(num_classes)} for the task {short_repr(task)}."
            )
        return task, tasks[task].makes_head and not _has_logits(source, tasks[task], config)
    new_head = not _has_logits(source, tasks[task], config) or num_classes not in (None, options["num_classes"])
    if new_head and num_classes is None:
        own = task_of(source.values, tasks)
        of = f" The file is of the task {short_repr(own)}." if own not in (None, task) else ""
        raise ValueError(
            f"The file has no head for {short_repr(task)}; `num_classes` must say how many classes the new one has.{of}"
        )
    return task, new_head


def _is_body_alone(source, task, config):
    """Whether a file has no tensor of the head.

    A head of tied logits without a bias has no tensors. Such a file is a body alone if its names lack the
    body's prefix.
    """
    own = {path: row for path, row in task.rows(config).items() if not as_tensor(row).inner}
    if any(map(source.has, modules_of(own))):
        return False
    absent = {"logits"} if config("tie_word_embeddings", True) else set()
    absent |= set() if task.options(config).get("logit_bias", True) else {"logit_adjustment/bias"}
    return not source.prefix or bool(own.keys() - absent)


def _has_logits(source, task, config):
    return f"{as_tensor(task.rows(config)['logits']).name}.weight" in source.names


def table_of(family, task, config, model):
    """Returns the rows of body and head of a model's checkpoint; `inner` marks the rows of the body."""
    body = {path: dataclasses.replace(as_tensor(row), inner=True) for path, row in family.rows(config).items()}
    untied = family.tasks[task].untied if has_own_logits(model) else {}
    table = {**body, **family.tasks[task].rows(config), **untied}
    if "logit_adjustment/bias" in table:  # a plain Dense as the head holds the same bias
        table = {"logits/bias": table["logit_adjustment/bias"], **table}
    return table


def has_own_logits(model):
    """Whether a language model has a layer of its logits, which are then not tied to an embedding."""
    return not any(
        isinstance(node.operation, PositionalEmbedding) and node.arguments.kwargs.get("reverse")
        for node in nodes(model)
    )


def build(source, task, num_classes, dtype, options):
    """Builds the model; under `without_values` its weights take no memory."""
    family, config = source.family, Config(source.values)
    found, tied = options_of(family, task, config, options)
    if num_classes is not None:
        found["num_classes"] = num_classes
    parts = [found, *(value for value in found.values() if isinstance(value, dict))]
    numbers = [one.get(name, 0) for one in parts for name in ("num_layers", "num_decoder_layers")]
    blocks = found.get("share_blocks") or max(numbers)
    if blocks > len(source.names):  # before the builder makes that many
        raise ValueError(
            f"config.json says that there are {blocks} blocks; the file has only {len(source.names)} tensors."
        )
    if task in LANGUAGE_MODELS:
        found["tie_embeddings"] = is_tied(source, task, config, tied)
    found = with_optional(family, task, found, source.names)
    dtype = None if dtype is None else keras.dtype_policies.get(dtype)
    builder = family.tasks[task].build
    with errors_show_config(config.values, options):
        return builder(**with_parts(builder, {**found, "dtype": dtype, **options}))


def describe(model, family, task, values):
    """Returns the model that a config.json asks for, with the head and dtype of a model; its weights have no values.

    Options that depend on the presence of a tensor are taken from the model.
    """
    options, _ = options_of(family, task, Config(values), {})
    if "num_classes" in options and (not isinstance(model.output, dict) or "logits" in model.output):
        options["num_classes"] = logits_of(model).shape[-1] or options["num_classes"]
    if task in LANGUAGE_MODELS:
        options["tie_embeddings"] = not has_own_logits(model)
    if "token_type_ids" in inputs_by_name(model):
        options["token_type_ids"] = True
    table, names = table_of(family, task, Config(values), model), ()
    with contextlib.suppress(ValueError):  # weights for which the family has no tensors
        names = {link.name for link in links(table, model.weights)}
    dtype = next((layer.dtype_policy for layer in model.layers if layer.weights), None)
    dtype = None if dtype == keras.config.dtype_policy() else dtype
    builder, options = family.tasks[task].build, {**with_optional(family, task, options, names), "dtype": dtype}
    with without_values(), errors_show_config(values, {}):
        return builder(**with_parts(builder, options))


def with_optional(family, task, options, names):
    """Adds the builder's options that depend on the presence of a tensor among `names`."""
    for name, stored in family.stored.items():
        options = stored(options) if name in names else options
    return {**options, **{option: name in names for option, name in family.tasks[task].optional.items()}}


def options_of(family, task, config, own):
    """Returns the builder's options for a config.json, and whether the logits are tied by it.

    Args:
        family: `Family`.
        task: name of the task.
        config: `Config`.
        own: the caller's options.
    """
    with errors_show_config(config.values, own):
        found = without_default_length(config, with_lengths(family.options(config)))
        head = family.tasks[task].options(config)
        with config.without_checks():  # the keys of the other heads are known too
            for known in family.tasks.values():
                known.options(config)
    tied = config("tie_word_embeddings", True)
    found = with_causality(config, family, found)
    config.check_all_known(family.neutral)
    return {**family.tasks[task].convert(found), **head}, tied


def without_default_length(config, options):
    """Sets `max_length` to None for a model without a table of positions whose config.json has no number of positions.

    The default of the class in transformers would limit the model here. It limits nothing there: rotary and relative
    positions reach any length.
    """
    key = "max_position_embeddings"
    has_default = key in config.read and key not in config.values
    return {**options, "max_length": None} if has_default and options.get("position_encoding", "") is None else options


def with_causality(config, family, options):
    """Adds causal=False to the options if `is_causal` lets the tokens of a decoder attend to later tokens."""
    windows = options.get("window")
    windowed = any(windows) if isinstance(windows, list) else windows
    sees_later = config("is_causal", None) is False and "causal_lm" in family.tasks
    if sees_later and not windowed and "attention" not in options:
        return {**options, "causal": False}
    config.not_read("is_causal", not {"causal_lm", "seq2seq"}.isdisjoint(family.tasks))
    return options


@contextlib.contextmanager
def errors_show_config(values, options):
    """Adds the values of config.json to an error of a builder, which names the builder's arguments.

    Catches every exception: each backend raises a different one for sizes beyond the memory.
    """
    try:
        yield
    except Exception as error:
        words = str(error)
        if isinstance(error, ValueError) and "config.json" in words or any(name in words for name in options):
            raise
        known = {key: value for key, value in values.items() if key in VALUE_CHECKS}
        received = ", ".join(f"{key}={short_repr(value)}" for key, value in known.items())
        raise ValueError(
            f"config.json must describe a model that can be built; received {received}: {words}"
        ) from error


def is_tied(source, task, config, tied):
    """Whether the logits use the embedding. The tensors of the file decide; it may hold a tied table twice.

    If the logits have no tensor and config.json unties them, the result is False: `check_names` reports the tensor.
    """
    rows = source.family.tasks[task].rows(config)
    head = f"{rows['logits']}.weight"
    if head not in source.names:
        return tied or not source.family.tie_key_is_for_logits
    body = source.family.rows(config)
    tables = [f"{body[path]}.weight" for path in ("target_embedding/token", "embedding/token") if path in body]
    table = next((name for name in tables if name in source.names), None)
    return tied and table is not None and source.same(head, table)


def has_token_types(values, ignore=()):
    """Whether the model of a config.json has two token types or more; `ignore` is the argument of `load`."""
    values = family_values(drop_keys(values, ignore))
    return (find_family(values).options(Config(values)).get("token_types") or 0) > 1
