"""The tokenizer of a Hugging Face folder.

`tokenizer_config.json` names the class, which says how a vocabulary's file is meant.
"""

import json
import pathlib

from keras_txf.checks import short_repr
from keras_txf.text.byte import ByteTokenizer
from keras_txf.text.byte_pair import BytePairTokenizer
from keras_txf.text.sentence_piece import SentencePieceTokenizer
from keras_txf.text.sentence_piece_model import read_model
from keras_txf.text.vocabulary import read_bytes, read_text, read_tokens
from keras_txf.text.word_piece import WordPieceTokenizer


def from_checkpoint(folder, **kwargs):
    """The tokenizer of a Hugging Face folder, which puts the special tokens around a text that the model expects.

    Reads `vocab.txt` of BERT, DistilBERT, ELECTRA, MobileBERT and ConvBERT, `spiece.model` of T5, `tokenizer.model` of
    Llama 1 and 2, and ByT5. Any other `tokenizer.json` is read by the package `tokenizers`.

    Args:
        folder: path of the folder. `tokenizer_config.json` in it names the class of the tokenizer.
        **kwargs: options of the tokenizer, such as `length`; they come before what the folder says. Hugging Face keeps
            special tokens that stand in a text, `special_tokens_in_text="keep"`; here they are escaped unless asked for.

    Returns:
        A `WordPieceTokenizer`, `SentencePieceTokenizer`, `ByteTokenizer` or `BytePairTokenizer`.

    Raises:
        ImportError: a `tokenizer.json` needs `tokenizers`, which is not there.
        ValueError: no folder, a file that is missing or damaged, a class that is not known; the message lists what is
            there.

    Example:

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> characters = (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    >>> characters = (folder / "vocab.txt").write_text("[PAD]\\n[UNK]\\n[CLS]\\n[SEP]\\nhello\\n")
    >>> txf.text.from_checkpoint(folder, length=5)("Hello").numpy().tolist()
    [2, 4, 3, 0, 0]
    """
    folder = pathlib.Path(folder)
    if not folder.is_dir():
        raise ValueError(
            f"`folder` must be a folder; received {short_repr(str(folder))}. Of a repository on the Hub `txf.checkpoints.find` makes one."
        )
    config = read_json(folder / "tokenizer_config.json") or {}
    name = config.get("tokenizer_class") or class_of_model(read_json(folder / "config.json") or {})
    file, read = READERS.get((name or "").removesuffix("Fast"), (None, None))
    if read and (folder / file).is_file():
        return read(folder, config, kwargs)
    if (folder / "tokenizer.json").is_file():
        return read_tokenizer_json(folder, config, kwargs)
    found = sorted(file.name for file in folder.iterdir())
    raise ValueError(
        f"`folder` must hold tokenizer.json, or the class of its tokenizer and that one's file, of "
        f"{ {name: file for name, (file, _) in READERS.items()} }; received {short_repr(str(folder))}, of class {short_repr(name)}, with {found}."
    )


def read_word_piece(folder, config, kwargs):
    vocabulary = read_tokens("folder", folder / "vocab.txt")
    vocabulary += added_tokens(folder, config, len(vocabulary))
    normalizer = (read_json(folder / "tokenizer.json") or {}).get("normalizer") or {}
    options = {
        "lowercase": config.get("do_lower_case", normalizer.get("lowercase", True)),
        "strip_accents": config.get("strip_accents", normalizer.get("strip_accents")),
        "split_chinese": config.get("tokenize_chinese_chars", normalizer.get("handle_chinese_chars", True)),
        "start": token(config, "cls_token", "[CLS]"),
        "end": token(config, "sep_token", "[SEP]"),
        "pad_token": token(config, "pad_token", "[PAD]"),
        "unk_token": token(config, "unk_token", "[UNK]"),
    }
    special = [*(options[name] for name in ("pad_token", "unk_token", "start", "end")), token(config, "mask_token", "[MASK]")]
    special += special_tokens(config)
    options["special_tokens"] = [name for name in dict.fromkeys(special) if name in vocabulary]
    return WordPieceTokenizer(vocabulary, **{**options, **kwargs})


def read_t5(folder, config, kwargs):
    model = read_bytes("folder", folder / "spiece.model")
    extra = added_tokens(folder, config, len(read_model(model).pieces))
    extra = extra or [f"<extra_id_{number}>" for number in reversed(range(config.get("extra_ids", 100)))]
    options = {"extra_tokens": extra, "end": token(config, "eos_token", "</s>"), "pad_token": token(config, "pad_token", "<pad>")}
    return SentencePieceTokenizer(model, **{**options, **kwargs})


def read_llama(folder, config, kwargs):
    model = read_bytes("folder", folder / "tokenizer.model")
    options = {
        "extra_tokens": added_tokens(folder, config, len(read_model(model).pieces)),
        "prefix_space": "always" if config.get("legacy", True) else "first",
        "start": token(config, "bos_token", "<s>") if config.get("add_bos_token", True) else None,
        "end": token(config, "eos_token", "</s>") if config.get("add_eos_token", False) else None,
        "pad_token": token(config, "pad_token", None),
    }
    return SentencePieceTokenizer(model, **{**options, **kwargs})


def read_byt5(folder, config, kwargs):
    extra = [f"<extra_id_{number}>" for number in range(config.get("extra_ids", 125))]
    return ByteTokenizer(**{"extra_tokens": extra, "end": "</s>", **kwargs})


def read_tokenizer_json(folder, config, kwargs):
    definition = read_text("folder", folder / "tokenizer.json")
    start, end = around(json.loads(definition).get("post_processor"))
    options = {"start": start, "end": end, "pad_token": token(config, "pad_token", None)}
    return BytePairTokenizer(definition, **{**options, **kwargs})


READERS = {  # class of Hugging Face -> file, function
    "BertTokenizer": ("vocab.txt", read_word_piece),
    "DistilBertTokenizer": ("vocab.txt", read_word_piece),
    "ElectraTokenizer": ("vocab.txt", read_word_piece),
    "MobileBertTokenizer": ("vocab.txt", read_word_piece),
    "ConvBertTokenizer": ("vocab.txt", read_word_piece),
    "T5Tokenizer": ("spiece.model", read_t5),
    "LlamaTokenizer": ("tokenizer.model", read_llama),
    "ByT5Tokenizer": ("tokenizer_config.json", read_byt5),
}


def class_of_model(config):
    """The tokenizer's class by `config.json`, where `tokenizer_config.json` does not name it."""
    names = {"bert": "BertTokenizer", "distilbert": "DistilBertTokenizer", "electra": "ElectraTokenizer",
             "mobilebert": "MobileBertTokenizer", "convbert": "ConvBertTokenizer", "t5": "T5Tokenizer", "llama": "LlamaTokenizer"}
    return names.get(config.get("model_type"))


def around(processor):
    """The tokens that a post-processor of `tokenizers` puts before and after a text."""
    kind = (processor or {}).get("type")
    if kind == "Sequence":
        found = [around(inner) for inner in processor["processors"]]
        return [token for start, _ in found for token in start], [token for _, end in found for token in end]
    if kind in ("BertProcessing", "RobertaProcessing"):
        return [processor["cls"][0]], [processor["sep"][0]]
    if kind == "TemplateProcessing":
        parts = [part.get("SpecialToken", {}).get("id") for part in processor["single"]]
        text = parts.index(None)
        return parts[:text], parts[text + 1 :]
    return [], []


def token(config, name, default):
    """A special token, which a config holds as a string or as a dict with its `content`."""
    value = config.get(name, default)
    return value.get("content") if isinstance(value, dict) else value


def special_tokens(config):
    """What a config says is special beside padding, unknown, start and end."""
    listed = config.get("additional_special_tokens") or []
    added = (config.get("added_tokens_decoder") or {}).values()
    names = [entry["content"] if isinstance(entry, dict) else entry for entry in listed]
    return names + [entry["content"] for entry in added if entry.get("special")]


def added_tokens(folder, config, size):
    """The tokens that follow the `size` ones of the vocabulary's file."""
    by_id = {int(id): entry["content"] for id, entry in (config.get("added_tokens_decoder") or {}).items()}
    by_id.update({id: name for name, id in (read_json(folder / "added_tokens.json") or {}).items()})
    beyond = sorted(id for id in by_id if id >= size)
    if beyond != list(range(size, size + len(beyond))):
        raise ValueError(f"`folder` must name every added token from id {size} on; received {short_repr(beyond)} in {short_repr(str(folder))}.")
    return [by_id[id] for id in beyond]


def read_json(path):
    """What a JSON file holds; None where there is none."""
    if not path.is_file():
        return None
    try:
        return json.loads(read_text("folder", path))
    except json.JSONDecodeError as error:
        raise ValueError(f"`folder` must hold JSON in {path.name}; received {short_repr(str(path))}: {error}.") from None
