"""Loads a folder of Hugging Face as a functional Keras model."""

import contextlib
import os
import pathlib
import re
import warnings
from typing import Any, Unpack

import keras
import numpy as np

from keras_txf import checks
from keras_txf.backend.keras_private import has_value, initialize, puts_values_off, without_values
from keras_txf.backend.tensors import in_order, tensor_of
from keras_txf.checkpoints.building import build, choose_task, family_values, find_family, is_tied, table_of
from keras_txf.checkpoints.checkpoint_info import CheckpointInfo, set_checkpoint_info
from keras_txf.checkpoints.config import Config, drop_keys
from keras_txf.checkpoints.files import find, open_tensors, weights_of
from keras_txf.checkpoints.generation_config import load_generate_defaults
from keras_txf.checkpoints.option_tables import LoadOptions
from keras_txf.checkpoints.source import (
    Source,
    check_head,
    check_names,
    check_tensors,
    most_common_dtype,
    names_of_other_class,
    resolve_aliases,
)
from keras_txf.checkpoints.text_parts import TEXT_PARTS
from keras_txf.checkpoints.weight_map import Expert, as_tensor, links
from keras_txf.checks import short_repr
from keras_txf.disk import file_of, read_json, reading
from keras_txf.layers.shown_options import shows_options
from keras_txf.layers.token_input import embedded_input, inputs_by_name

LARGE = 2**27  # numbers in a file that takes long enough for a progress bar


@shows_options(defaults="elsewhere")
def load(
    path: str | os.PathLike, task: str | None = None, num_classes: int | None = None, **options: Unpack[LoadOptions]
) -> Any:
    """Builds the model of a Hugging Face checkpoint, with its weights.

    Args:
        path: a folder with `config.json` and `model.safetensors` or its shards; or the name of a repository on the Hub,
            such as "sentence-transformers/all-MiniLM-L6-v2", which the package `huggingface_hub` fetches.
        task: "encoder" (hidden states, of a decoder too), "masked_lm", "pretraining" (BERT's two heads), "causal_lm",
            "seq2seq", "sequence_classification", "token_classification", "question_answering" (the span of an answer),
            "replaced_token_detection" (ELECTRA's discriminator), "ctc" (tokens of each frame of a waveform),
            "image_encoder", "image_classification", "distilled_image_classification" (DeiT with both heads),
            "dual_encoder" (CLIP and SigLIP) or "image_text_to_text" (LLaVA and others). Default: the task of the file.
            The model gets a new head if the file has none.
        num_classes: number of classes of a classifier; another number than the file's makes a new head.
        {options}

    Options of the builder, such as `dropout`, have the values of the file as defaults. The options above change no
    weights, except for the weights of a new head. `load` also takes the other options of the builder, if the tensors of
    the file fit them.

    Returns:
        A functional `keras.Model` from the task's builder in `txf.models`. `save` writes it as a folder again. The
        arguments of its `generate` have the defaults of the folder's `generation_config.json`, or of the same keys in
        `config.json`: sampler, processors, stops, lengths and start. An argument of the caller replaces its default:
        `sampler="greedy", processors=(), stop_ids=()` is plain greedy decoding.

    Raises:
        ImportError: a name of the Hub without `huggingface_hub`.
        ValueError: no such folder; a damaged file; shards of different saves; an unknown family or task; a key of
            `config.json` that may change the model and is not known; a tensor without a weight, or a weight without a
            tensor.

    From a folder of texts and images the other tasks than "image_text_to_text" load the text model alone, with a
    warning (Gemma 3; Qwen 3.5, whose images are not built); `save` then writes a folder of the text model alone.

    A warning names the keys of `config.json` that the family's class in transformers does not read either.

    Example:

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> config = dict(model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=100, hidden_size=32,
    ...               num_hidden_layers=2, num_attention_heads=4, intermediate_size=40, max_position_embeddings=16)
    >>> llama = txf.models.decoder_generator(
    ...     100, 2, 32, 4, intermediate_dim=40, gated=True, activation="silu", use_bias=False, norm="rms",
    ...     norm_epsilon=1e-6, norm_placement="pre", position="rotary", scale_embedding=False, pad_id=None)
    >>> txf.checkpoints.save(llama, folder, config)
    >>> txf.checkpoints.load(folder).generate([[5, 6]], max_new_tokens=3).shape
    (1, 5)
    """
    dtype, progress, revision = (options.pop(name, None) for name in ("dtype", "progress", "revision"))
    ignore = options.pop("ignore", ())
    checks.optional(checks.boolean, "progress", progress)
    keeps_dtype = isinstance(dtype, str) and dtype == "auto"
    checks.optional(checks.dtype, "dtype", None if keeps_dtype else dtype)
    folder = find(path, revision)
    check_not_adapter(folder)
    values = drop_keys(read_json(file_of(folder, "config.json")), ignore)
    kind, values = values.get("model_type"), family_values(values, task)
    family = find_family(values)
    with open_tensors(folder) as tensors:
        weights = weights_of(folder)
        with reading(weights):
            source = Source(values, family, tensors, kind)
            dtype = most_common_dtype(tensors) if keeps_dtype else dtype
        asked = task is not None
        model, task, new_head, made = build_without_values(folder, source, task, num_classes, dtype, options)
        kept, skipped, prefix = {}, {}, None
        if not puts_values_off():  # the caller, such as `layout_map`, needs no values
            with reading(weights, file_of(folder, "config.json")):
                kept, skipped, prefix = load_weights(
                    model, source, task, new_head, progress, asked or new_head, options
                )
            initialize_missing(made)  # a new head, generators of random numbers
    warn_of_images(folder, kind, values)
    set_checkpoint_info(model, CheckpointInfo(folder, values, task, options, kept, skipped, prefix))
    load_generate_defaults(model, folder, values)
    return model


def build_without_values(folder, source, task, num_classes, dtype, options):
    """Builds the model of an open checkpoint, and checks its padding.

    Returns:
        The model, its task, whether the model has a new head, and its variables, which have no values.
    """
    task, new_head = choose_task(source, task, num_classes)
    with without_values() as made:
        model = build(source, task, num_classes, dtype, options)
    tasks = source.family.tasks
    checked = "encoder" in tasks and "causal_lm" not in tasks and task != "seq2seq"
    if checked and "token_ids" in inputs_by_name(model) and "pad_id" not in options:
        check_padding(folder, embedded_input(model, "token_ids").pad_id)
    return model, task, new_head, made


def warn_of_images(folder, kind, values):
    """Warns if `values` describe the text part alone of a folder whose `model_type`, `kind`, is of texts and images."""
    if kind in TEXT_PARTS and values["model_type"] != kind:
        warnings.warn(
            f"The folder {short_repr(str(folder))} is of a model of texts and images; its text model alone is loaded.",
            stacklevel=3,  # the caller of `load`
        )


def check_not_adapter(folder):
    """Raises ValueError if the folder holds an adapter of peft and no model."""
    if os.path.isfile(file_of(folder, "adapter_config.json")) and not os.path.isfile(file_of(folder, "config.json")):
        raise ValueError(
            f"`path` must be the folder of a model; received {short_repr(str(folder))}, an adapter of peft. `load` its "
            "base model, and `txf.checkpoints.load_adapter(model, path)` puts the adapter on it."
        )


def check_padding(folder, pad_id):
    """Raises ValueError if config.json and the tokenizer have different padding tokens, as in some copies of XLM."""
    files = [file_of(folder, name) for name in ("tokenizer_config.json", "tokenizer.json")]
    if pad_id is None or not all(map(pathlib.Path.is_file, files)):
        return
    pad = read_json(files[0]).get("pad_token")
    pad = pad.get("content") if isinstance(pad, dict) else pad
    tokens = read_json(files[1]).get("added_tokens") or []
    ids = {token.get("content"): token.get("id") for token in tokens if isinstance(token, dict)}
    if ids.get(pad, pad_id) != pad_id:
        raise ValueError(
            f"config.json has pad_token_id={pad_id}, and its tokenizer has the id {ids[pad]} for {short_repr(pad)}. "
            f"Pass `pad_id` to say which one is padding: transformers uses the tokenizer's pad_id={ids[pad]}."
        )


def load_weights(model, source, task, new_head, progress, asked, options):
    """Gives each weight its tensor; raises ValueError for a weight without a tensor or a tensor without a weight.

    `options` are the caller's options.

    Returns the fields `kept`, `skipped` and `prefix` of `CheckpointInfo`, which `save` writes back.
    """
    wanted, names, others = match_weights(model, source, task, new_head, asked, options)
    kept = {name_to_keep(source, task, name, others): source.read(name) for name in others or names}
    if progress is None:
        progress = sum(source.tensors.size(source.names[link.name]) for link in wanted) >= LARGE
    bar = keras.utils.Progbar(len(wanted), unit_name="tensor") if progress else None
    skipped, stacks = {}, {}
    for link in wanted:
        rows = assign(source, link, stacks)
        if link.transform.skipped:
            skipped[link.name] = rows
        if bar is not None:
            bar.add(1)
    return kept, skipped, source.prefix if others else None


def name_to_keep(source, task, name, others):
    """Returns the name under which `save` writes a tensor back; `others` are the tensors of a class without a task."""
    if not (source.family.tasks[task].whole or others):
        return name
    lacks_prefix = not (source.prefix or others)  # a file of the body alone, for a class with a head
    in_body = any(re.fullmatch(pattern, name) for pattern in source.family.kept_in_body)
    return (source.family.prefix if lacks_prefix and in_body else "") + source.names[name]


def match_weights(model, source, task, new_head, asked, options):
    """Returns the links of a model's weights to the tensors of a file, after all checks of names and shapes.

    Returns:
        The links, the names of tensors without a weight that the class in transformers uses, and the names of tensors
        of another class.
    """
    family, config = source.family, Config(source.values)
    head = family.tasks[task].rows(config)
    weights = list(model.weights)
    if new_head:
        new = {path for path, row in head.items() if path.endswith("logits") or not source.has(as_tensor(row).name)}
        weights = [weight for weight in weights if weight.path.rpartition("/")[0] not in new]
        head = {path: row for path, row in head.items() if path not in new}
    with errors_name_options(options):
        wanted = links(table_of(family, task, config, model), weights)
        tensors = {link.name for link in wanted}
        resolve_aliases(source, tensors)
        names = check_names(source, task, tensors, asked)
        others = [] if asked else names_of_other_class(source, task, tensors)
        check_tensors(source, wanted)
        tied = not options.get("tie_embeddings") or is_tied(source, task, config, config("tie_word_embeddings", True))
        check_head(source, head, tensors, options, tied)
    return wanted, names, others


@contextlib.contextmanager
def errors_name_options(options):
    """Adds the caller's options to an error about tensors, because they may be the cause."""
    try:
        yield
    except ValueError as error:
        if not options:
            raise
        raise ValueError(f"With the options {short_repr(sorted(options))}: {error}") from error


def assign(source, link, stacks):
    """Reads a tensor and gives its weights their values; returns the rows that do not become weights.

    `stacks` collects the tensors of experts by the paths of their weights, which get their values with the last tensor.
    """
    tensor = source.read(link.name)
    skipped = tensor[: link.transform.skipped].copy() if link.transform.skipped else None  # a scalar has no rows
    values = link.read(tensor)
    del tensor  # so that `values` alone hold it
    for weight in link.variables:
        if isinstance(weight, Expert):
            weight = collect(stacks, weight, values)
        if weight is not None:
            set_first_value(weight, values)
    return skipped


def collect(stacks, expert, values):
    """Stacks the value of an expert with the values of the others; returns their weight when the stack is complete."""
    stack = expert.stack
    array, missing = stacks.setdefault(stack.path, (np.empty(stack.shape, values[0].dtype), set(range(stack.shape[0]))))
    array[expert.number] = values.pop()
    missing.remove(expert.number)
    if missing:
        return None
    values.append(stacks.pop(stack.path)[0])
    return stack


# A builder draws random initial values for its weights. For a checkpoint they would cost time, and memory next to the
# values of the file; and a wrong size in config.json could exhaust the memory before the tensors are checked. So
# `without_values` builds the model, and the functions below give its variables their first values.


def set_first_value(variable, held):
    """Gives a variable its first value: the first array of the list `held`, which leaves the list."""
    value = Converted(held, variable.dtype)
    if has_value(variable):  # a layer that was built before
        variable.assign(tensor_of(value, variable.dtype))
        return
    initialize(variable, lambda shape, dtype: tensor_of(value, dtype))


class Converted:
    """An array that is converted to another dtype when a backend reads it, once.

    TensorFlow protects itself against changes of a plain array by a copy, from which it makes its own tensor. Next to
    the array of the file both would double the peak memory of loading.
    """

    def __init__(self, held, dtype):
        self.held = held
        self.dtype = np.dtype(dtype)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(in_order(self.held.pop(0)), dtype or self.dtype, order="C")


def initialize_missing(variables):
    """Runs the initializers of variables that have no value."""
    for variable in variables:
        if not has_value(variable):
            initialize(variable)
