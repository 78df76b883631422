"""Adds tokens to a loaded model and its tokenizer.

Legend: V rows of the tables, D model dim.
"""

import dataclasses
import pathlib
import tempfile
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.backend.keras_private import config_of_model, flatten_layers, model_of_config, without_values
from keras_txf.checkpoints.building import find_family
from keras_txf.checkpoints.checkpoint_info import checkpoint_info_of, set_checkpoint_info, write_companion_files
from keras_txf.checkpoints.config import Config
from keras_txf.checkpoints.family import LANGUAGE_MODELS
from keras_txf.checkpoints.loading import initialize_missing, set_first_value
from keras_txf.checkpoints.saved_config import write_json
from keras_txf.checkpoints.saving import check_no_adapters
from keras_txf.checks import short_repr
from keras_txf.generation.option_tables import share_generate_defaults
from keras_txf.layers import PositionalEmbedding
from keras_txf.text.checkpoint import from_checkpoint
from keras_txf.text.folder_files import all_tokens, files_of_more_tokens, with_tokens

SIZES = ("vocab_size", "source_vocab_size", "target_vocab_size")  # options of builders
KEYS = ("vocab_size", "decoder_vocab_size")  # of config.json
HEADS = ("logits", "logit_adjustment")  # layers with a row or a number for each token, in a language model


def resize_vocabulary(model: keras.Model, tokenizer: Any, tokens: Sequence[str]) -> tuple[Any, Any]:
    """Adds tokens to a loaded model and its tokenizer.

    Use it for technical terms, or marks such as "<drug>", before fine-tuning. If a table has more rows than the
    tokenizer has tokens, as T5's table does, the new tokens take the spare rows first; the table grows only by the rows
    that are still missing. A new token's row is the mean of the rows of the tokenizer's tokens, in the tables of the
    input and the output and in the bias of the logits. All other rows, and the logits of the old tokens, do not change.

    `save` writes the new model with the files of the new tokenizer, and transformers reads both.

    Args:
        model: a model from `load`, which does not change.
        tokenizer: the tokenizer of the same folder, from `txf.text.from_checkpoint`.
        tokens: list of str. Each becomes one token everywhere in a text.

    Returns:
        A new model, not compiled, and a new tokenizer with the options of the old one.

    Raises:
        ValueError: a model that is not from `load`, with adapters, or quantized; a tokenizer of another folder, or of
            bytes or characters; a token that exists already; tables of different sizes, such as Marian's tables of
            separate vocabularies; a family whose `config.json` does not hold the size as `vocab_size`.

    Example:

    >>> import tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> bpe = txf.text.BytePairTokenizer.train(["a dog sees a dog"], vocab_size=261)
    >>> characters = (folder / "tokenizer.json").write_text(bpe.get_config()["definition"])
    >>> config = dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], vocab_size=bpe.vocab_size, n_embd=32,
    ...               n_layer=2, n_head=4, n_positions=16, activation_function="relu")
    >>> gpt2 = txf.models.decoder_generator(
    ...     bpe.vocab_size, 2, 32, 4, position_encoding="learned", max_length=16, norm_placement="pre",
    ...     scale_embedding=False, pad_id=None, intermediate_dim=128)
    >>> txf.checkpoints.save(gpt2, folder, config)
    >>> model, tokenizer = txf.checkpoints.load(folder), txf.text.from_checkpoint(folder)
    >>> model, tokenizer = txf.checkpoints.resize_vocabulary(model, tokenizer, ["<drug>"])
    >>> tokenizer.tokenize("<drug>").numpy().tolist() == [bpe.vocab_size], model.output.shape[-1] - bpe.vocab_size
    (True, 1)
    """
    checks.built_model("model", model)
    info = checkpoint_info_of(model)
    if info is None or info.folder is None:
        raise ValueError(
            "`model` must be a model from `load`, whose folder has the files of its tokenizer; received "
            f"{short_repr(model)}."
        )
    check_no_adapters(model)
    if any(getattr(layer, "quantization_mode", None) for layer in flatten_layers(model)):
        raise ValueError("`model` must not be quantized: quantized tables do not grow. Quantize the new model.")
    changed = with_tokens(tokenizer, tokens)
    size = table_size(model)
    if tokenizer.vocab_size > size:
        raise ValueError(
            f"`tokenizer` must have at most the {size} tokens of the model's tables; received one of "
            f"{tokenizer.vocab_size}."
        )
    new_size = max(size, changed.vocab_size)
    config = info.config if new_size == size else resized_config(info, size, new_size)
    files = {**info.files, **new_files(info, tokenizer, changed)}
    resized = with_rows(model, info.task, tokenizer.vocab_size, changed.vocab_size, new_size)
    set_checkpoint_info(resized, dataclasses.replace(info, config=config, files=files))
    share_generate_defaults(model, resized)
    return resized, changed


def table_size(model):
    """Returns V; raises ValueError if the model has no tables of tokens, or tables of several sizes."""
    layers = [layer for layer in flatten_layers(model) if isinstance(layer, PositionalEmbedding)]
    sizes = {layer.vocab_size for layer in layers} - {None}
    if len(sizes) != 1:
        raise ValueError(
            f"`model` must have tables of tokens of one size; received a model with sizes {short_repr(sorted(sizes))}."
        )
    return sizes.pop()


def resized_config(info, size, new_size):
    """Returns the config.json for larger tables; raises ValueError if the size changes other options too."""
    keys = [key for key in KEYS if Config(info.config)(key, None) == size]
    values, family = {**info.config, **dict.fromkeys(keys, new_size)}, find_family(info.config)
    before, after = (family.options(Config(each)) for each in (info.config, values))
    before.update({name: new_size for name in SIZES if before.get(name) == size})
    odd = [name for name, value in before.items() if isinstance(value, (int, str, float)) and value != after[name]]
    if not keys or odd or any(size in tensor.shape for tensor in info.kept.values()):
        raise ValueError(
            f"`model` must be of a family whose tables grow with `vocab_size` of config.json, and nothing else does; "
            f"received {short_repr(info.config.get('model_type'))}."
        )
    return values


def new_files(info, tokenizer, changed):
    """Returns the changed files of the tokenizer; raises ValueError if the folder has another tokenizer."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_companion_files(folder, info)
        write_json(folder / "config.json", info.config)
        check_tokens(folder, tokenizer, info)
        files = files_of_more_tokens(folder, tokenizer, changed)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        check_tokens(folder, changed, info)
    return files


def check_tokens(folder, tokenizer, info):
    """Raises ValueError if the tokens of a tokenizer differ from the tokens of a folder's tokenizer."""
    if all_tokens(from_checkpoint(folder)) != all_tokens(tokenizer):
        raise ValueError(
            "`tokenizer` must be the one that `txf.text.from_checkpoint` makes of the model's folder, "
            f"{short_repr(str(info.folder))}; received one with other tokens."
        )


def with_rows(model, task, known, used, size):
    """Returns a copy of a model, with tables of another size.

    Args:
        task: the name of the task.
        known, used: numbers of tokens of the old and the new tokenizer; the rows between the two are means.
        size: the new V.
    """
    config, heads = config_of_model(model), HEADS if task in LANGUAGE_MODELS else ()
    for layer in config["layers"]:
        own = layer["config"]
        if layer["class_name"].endswith("PositionalEmbedding") and own["vocab_size"] is not None:
            own["vocab_size"] = size
        if own["name"] in heads:
            layer.pop("build_config", None)  # the layer is built by its first call
            own.update(dict.fromkeys(own.keys() & {"units"}, size))
    with without_values() as made:
        resized = model_of_config(type(model), config)
    weights = {weight.path: weight for weight in model.weights}
    for weight in resized.weights:
        values = np.asarray(ops.convert_to_numpy(weights.pop(weight.path)))
        if weight.path.endswith("/token/embeddings"):
            values = with_means(values, known, used, size)
        elif weight.path.partition("/")[0] in heads:
            values = with_means(values.T, known, used, size).T
        set_first_value(weight, [values])
    initialize_missing(made)
    return resized


def with_means(table, known, used, size):
    """Returns a table, (V, D) or (V,), of `size` rows; the rows from `known` to `used` are the mean of the others."""
    more = np.zeros((size - len(table), *table.shape[1:]), table.dtype)
    table = np.concatenate([table, more])
    table[known:used] = table[:known].astype("float64").mean(axis=0).astype(table.dtype)
    return table
