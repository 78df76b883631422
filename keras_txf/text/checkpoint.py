"""The tokenizer of a Hugging Face folder.

The class that `tokenizer_config.json` names decides how to read the file of a vocabulary.
"""

import functools
import os
from typing import Any, Unpack

from keras_txf import checks
from keras_txf.checks import bad_argument, short_repr
from keras_txf.disk import file_of, parse_json, reading
from keras_txf.layers.shown_options import shows_options
from keras_txf.text import folder_files
from keras_txf.text.byte_pair import BytePairTokenizer
from keras_txf.text.characters import ByteTokenizer
from keras_txf.text.chat_templates import read_templates
from keras_txf.text.lazy_imports import tokenizers
from keras_txf.text.sentence_piece import SentencePieceOptions, SentencePieceTokenizer
from keras_txf.text.sentence_piece_model import read_model
from keras_txf.text.vocabulary import from_files, read_bytes, read_text, read_tokens
from keras_txf.text.word_piece import WordPieceOptions, WordPieceTokenizer

ENDOFTEXT = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
ROBERTA = {
    "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>",
    "cls_token": "<s>", "mask_token": "<mask>",
}  # fmt: skip


class AnyTokenizerOptions(WordPieceOptions, SentencePieceOptions, total=False):
    """Options of the tokenizers that a folder may ask for."""


@shows_options(defaults="elsewhere")
def from_checkpoint(folder: str | os.PathLike, target: bool = False, **options: Unpack[AnyTokenizerOptions]) -> Any:
    """Makes the tokenizer of a Hugging Face folder, with the special tokens around a text that the model expects.

    Reads `vocab.txt` of BERT, DistilBERT, ELECTRA, MobileBERT and ConvBERT, `spiece.model` of T5, `spm.model` of
    DeBERTa v2 and v3, `tokenizer.model` of Llama 1 and 2, `source.spm` and `target.spm` of Marian, and ByT5. The
    package `tokenizers` runs any other `tokenizer.json`; and without that file `vocab.json` and `merges.txt` of GPT-2,
    OPT, RoBERTa and BART, and `sentencepiece.bpe.model` of XLM-RoBERTa.

    Args:
        folder: path of the folder. `tokenizer_config.json` in it names the class of the tokenizer.
        target: whether to make the tokenizer of the targets, if a folder has two tokenizers (Marian). A single
            tokenizer serves both sides.
        {options}

    The options override the folder's options. An option that the tokenizer does not have raises ValueError. Hugging
    Face keeps special tokens in a text, like `special_tokens_in_text="keep"`; the default here is "escape".

    Returns:
        A `WordPieceTokenizer`, `SentencePieceTokenizer`, `ByteTokenizer` or `BytePairTokenizer`.

    Raises:
        ImportError: a `tokenizer.json` needs the package `tokenizers`, which is not installed.
        ValueError: a path that is not a folder; a missing or damaged file, which the message names; an unknown class,
            for which the message lists the files of the folder.

    Example:

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> characters = (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    >>> characters = (folder / "vocab.txt").write_text("[PAD]\\n[UNK]\\n[CLS]\\n[SEP]\\nhello\\n")
    >>> txf.text.from_checkpoint(folder, length=5)("Hello").numpy().tolist()
    [2, 4, 3, 0, 0]
    """
    folder, target = checks.path("folder", folder), checks.boolean("target", target)
    if not folder.is_dir():
        must = "be a folder, such as `txf.checkpoints.find` downloads from the Hub"
        raise bad_argument("folder", must, str(folder))
    config = folder_files.read_tokenizer_config(folder)
    name = config.get("tokenizer_class") or CLASSES.get(folder_files.read_model_type(folder))
    known = (name or "").removesuffix("Fast")
    own, others = READERS.get(known), [("tokenizer.json", read_tokenizer_json), WITHOUT_JSON.get(known)]
    ruled = _active_rules(folder, config, options) if own else []
    readers = [*others, own] if ruled else [own, *others]  # `tokenizers` implements such rules
    file, read = reader = next((one for one in readers if one and file_of(folder, one[0]).is_file()), (None, None))
    if read is not None:
        if ruled and reader == own:
            rules = [name for name in folder_files.RULES if ruled[0].get(name)]
            raise ValueError(
                f"Added tokens must have no {short_repr(rules)} for this class of tokenizer without a tokenizer.json; "
                f"received {short_repr(ruled[0])} in {short_repr(str(folder))}."
            )
        make, defaults = read(folder, {**config, "target": target})
        used = dict.fromkeys((file, "tokenizer_config.json", "added_tokens.json", "tokenizer.json"))
        paths = [file_of(folder, name) for name in used]
        return from_files(make, [path for path in paths if path.is_file()], defaults, options)
    files_of_folder = sorted(file.name for file in folder.iterdir())
    files = {name: file for name, (file, _) in {**READERS, **WITHOUT_JSON}.items()}
    raise ValueError(
        f"`folder` must hold tokenizer.json, or the class of its tokenizer and the file of the class, one of "
        f"{files}; received {short_repr(str(folder))}, of class "
        f"{short_repr(name)}, with {files_of_folder}."
    )


def _active_rules(folder, config, options):
    """Returns the added tokens with rules that apply to texts: a special token only if a text may hold it."""
    ruled = folder_files.ruled_tokens(folder, config)
    plain = [entry for entry in ruled if not entry.get("special")]
    if ruled == plain or options.get("special_tokens_in_text") == "keep" or read_templates(folder)[0]:
        return ruled
    return plain


def read_word_piece(folder, config):
    vocabulary = read_tokens("folder", file_of(folder, "vocab.txt"))
    vocabulary += folder_files.added_tokens(folder, "vocab.txt", len(vocabulary), config)
    normalizer = folder_files.read_normalizer(folder)
    options = {
        "lowercase": config.get("do_lower_case", normalizer.get("lowercase", True)),
        "strip_accents": config.get("strip_accents", normalizer.get("strip_accents")),
        "split_chinese": config.get("tokenize_chinese_chars", normalizer.get("handle_chinese_chars", True)),
        "added_tokens": folder_files.plain_tokens(folder, config),
    }
    named = {
        "pad_token": token(config, "pad_token", "[PAD]"), "unk_token": token(config, "unk_token", "[UNK]"),
        "start": token(config, "cls_token", "[CLS]"), "end": token(config, "sep_token", "[SEP]"),
    }  # fmt: skip
    special = dict.fromkeys(
        [*named.values(), token(config, "mask_token", "[MASK]"), *folder_files.special_tokens(config)]
    )
    options["special_tokens"] = [name for name in special if name in vocabulary]
    return functools.partial(WordPieceTokenizer, vocabulary), options | named


def read_pieces(folder, config, name, ids=None, size=None):
    """Reads a SentencePiece model. Returns a function that makes its tokenizer, and the options of added tokens.

    Args:
        name: the file.
        ids, size: the file of the tokens' ids, and the number of tokens, if this file is not the model.
    """
    path = file_of(folder, name)
    model = read_bytes("folder", path)
    with reading(path):
        pieces = len(read_model(model).pieces)
    extra = folder_files.added_tokens(folder, ids or name, size or pieces, config)
    options = {"extra_tokens": extra, "added_tokens": folder_files.plain_tokens(folder, config)}
    return functools.partial(SentencePieceTokenizer, model), options


def read_t5(folder, config):
    make, options = read_pieces(folder, config, "spiece.model")
    numbered = [f"<extra_id_{number}>" for number in reversed(range(config.get("extra_ids", 100)))]
    return make, {
        **options,
        "extra_tokens": options["extra_tokens"] or numbered,
        "end": token(config, "eos_token", "</s>"),
        "pad_token": token(config, "pad_token", "<pad>"),
    }


def read_llama(folder, config):
    make, options = read_pieces(folder, config, "tokenizer.model")
    no_prefix = config.get("add_prefix_space") is False  # null means the default
    return make, {
        **options,
        "prefix_space": "never" if no_prefix else "always" if config.get("legacy", True) else "first",
        "start": token(config, "bos_token", "<s>") if config.get("add_bos_token", True) else None,
        "end": token(config, "eos_token", "</s>") if config.get("add_eos_token", False) else None,
        "pad_token": token(config, "pad_token", None),
    }


def read_marian(folder, config):
    side = "target" if config["target"] else "source"
    ids = f"{side}_vocab.json" if config["target"] and config.get("separate_vocabs") else "vocab.json"
    vocabulary = folder_files.read_vocabulary(file_of(folder, ids))
    make, options = read_pieces(folder, config, f"{side}.spm", ids, len(vocabulary))
    named = {"end": token(config, "eos_token", "</s>"), "pad_token": token(config, "pad_token", "<pad>")}
    return make, {**options, "vocabulary": vocabulary, **named}


def read_deberta(folder, config):
    for name in ("do_lower_case", "split_by_punct"):
        if config.get(name):
            raise ValueError(
                f"tokenizer_config.json must have `{name}` false next to spm.model, as SentencePiece does not do it; "
                "received true. Without spm.model a tokenizer.json is read, which may do it."
            )
    make, options = read_pieces(folder, config, "spm.model")
    return make, {
        **options,
        "extra_tokens": options["extra_tokens"] or [token(config, "mask_token", "[MASK]")],
        "start": token(config, "cls_token", "[CLS]"),
        "end": token(config, "sep_token", "[SEP]"),
        "pad_token": token(config, "pad_token", "[PAD]"),
    }


def read_byt5(folder, config):
    extra = [f"<extra_id_{number}>" for number in range(config.get("extra_ids", 125))]
    return ByteTokenizer, {"extra_tokens": extra, "end": "</s>"}


def read_tokenizer_json(folder, config):
    path = file_of(folder, "tokenizer.json")
    return of_definition(path, read_text("folder", path), config)


def read_byte_pairs(defaults, folder, config):
    config = {**config, "added_tokens_decoder": folder_files.added_entries(folder, config)}
    path, merges = file_of(folder, "vocab.json"), file_of(folder, "merges.txt")
    return of_definition(path, byte_pair_definition(path, merges, config, defaults), config, defaults)


def read_xlm_roberta(folder, config):
    config = {**config, "added_tokens_decoder": folder_files.added_entries(folder, config)}
    path = file_of(folder, "sentencepiece.bpe.model")
    model = read_bytes("folder", path)
    with reading(path):
        model = read_model(model)
    return of_definition(path, xlm_roberta_definition(path, model, config), config, ROBERTA)


def of_definition(path, definition, config, defaults=None):
    """Returns the class and the options for a definition of `tokenizers`, from a file."""
    with reading(path):
        start, end = special_token_template(parse_json(definition).get("post_processor"))
    pad_token = token(config, "pad_token", (defaults or {}).get("pad_token"))
    options = {"start": start, "end": end, "pad_token": pad_token}
    return functools.partial(BytePairTokenizer, definition), options


BERTS = ("Bert", "DistilBert", "Electra", "MobileBert", "ConvBert")
READERS = {  # class in Hugging Face -> file, function that reads it
    **{f"{name}Tokenizer": ("vocab.txt", read_word_piece) for name in BERTS},
    "T5Tokenizer": ("spiece.model", read_t5),
    "LlamaTokenizer": ("tokenizer.model", read_llama),
    "MarianTokenizer": ("source.spm", read_marian),
    "DebertaV2Tokenizer": ("spm.model", read_deberta),
    "ByT5Tokenizer": ("tokenizer_config.json", read_byt5),
}
WITHOUT_JSON = {  # the same, for folders without a tokenizer.json
    "GPT2Tokenizer": ("vocab.json", functools.partial(read_byte_pairs, ENDOFTEXT)),
    **dict.fromkeys(("RobertaTokenizer", "BartTokenizer"), ("vocab.json", functools.partial(read_byte_pairs, ROBERTA))),
    "XLMRobertaTokenizer": ("sentencepiece.bpe.model", read_xlm_roberta),
}


CLASSES = {  # `model_type` of `config.json` -> class, if `tokenizer_config.json` does not name the class
    "bert": "BertTokenizer", "distilbert": "DistilBertTokenizer", "electra": "ElectraTokenizer",
    "mobilebert": "MobileBertTokenizer", "convbert": "ConvBertTokenizer", "t5": "T5Tokenizer",
    "llama": "LlamaTokenizer", "marian": "MarianTokenizer", "gpt2": "GPT2Tokenizer", "opt": "GPT2Tokenizer",
    "roberta": "RobertaTokenizer", "bart": "BartTokenizer", "xlm-roberta": "XLMRobertaTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
}  # fmt: skip


def special_token_template(processor):
    """Returns the tokens that a post-processor of `tokenizers` puts before and after a text."""
    type_ = (processor or {}).get("type")
    if type_ == "Sequence":
        templates = [special_token_template(inner) for inner in processor["processors"]]
        return [token for start, _ in templates for token in start], [token for _, end in templates for token in end]
    if type_ in ("BertProcessing", "RobertaProcessing"):
        return [processor["cls"][0]], [processor["sep"][0]]
    if type_ == "TemplateProcessing":
        parts = [part.get("SpecialToken", {}).get("id") for part in processor["single"]]
        text = parts.index(None)
        return parts[:text], parts[text + 1 :]
    return [], []


def token(config, name, default):
    """Returns a special token of a config; None for null."""
    return folder_files.content(config.get(name, default))


def byte_pair_definition(vocabulary, merges, config, defaults):
    """Returns the `tokenizer.json` of a byte-level BPE, from `vocab.json` and `merges.txt`.

    Args:
        vocabulary, merges: paths of the two files.
        config: values of `tokenizer_config.json`.
        defaults: the special tokens of the class by name.
    """
    for file in (vocabulary, merges):
        read_text("folder", file)  # raises ValueError for a file that is not text
    try:
        pieces, pairs = tokenizers.models.BPE.read_file(str(vocabulary), str(merges))
        model = tokenizers.models.BPE(pieces, pairs, fuse_unk=False)
    except ImportError:
        raise
    except Exception as error:  # the package raises plain `Exception`s
        raise ValueError(
            f"`folder` must hold a vocabulary of byte pairs; received {short_repr(str(vocabulary))} and "
            f"{short_repr(merges.name)}: {error}."
        ) from None
    kernel = tokenizers.Tokenizer(model)
    prefix_space = bool(config.get("add_prefix_space"))
    kernel.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    kernel.decoder = tokenizers.decoders.ByteLevel()
    named = add_tokens(kernel, config, defaults)
    if defaults is ROBERTA:
        sep, cls = named["sep_token"], named["cls_token"]
        kernel.post_processor = tokenizers.processors.RobertaProcessing(
            (sep, kernel.token_to_id(sep)), (cls, kernel.token_to_id(cls)), True, prefix_space
        )
    else:
        start = [named["bos_token"]] if config.get("add_bos_token") else []
        surround(kernel, start, [named["eos_token"]] if config.get("add_eos_token") else [])
    return kernel.to_str()


def xlm_roberta_definition(path, model, config):
    """Returns the `tokenizer.json` of a SentencePiece model, with the first tokens and the mask of XLM-R.

    Args:
        path: path of the file.
        model: `Model` of the file.
        config: values of `tokenizer_config.json`.
    """
    named = {name: folder_files.content(config.get(name, default)) for name, default in ROBERTA.items()}
    first = [named[name] for name in ("bos_token", "pad_token", "eos_token", "unk_token")]
    pieces = [(token, 0.0) for token in first]
    pieces += [*zip(model.pieces, model.scores, strict=True)][3:] + [(named["mask_token"], 0.0)]
    with reading(path):
        kernel = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=3, byte_fallback=False))
    if model.rules:
        kernel.normalizer = tokenizers.normalizers.Precompiled(model.rules)
    scheme = "always" if config.get("add_prefix_space", True) else "never"
    parts = tokenizers.pre_tokenizers
    kernel.pre_tokenizer = parts.Sequence([parts.WhitespaceSplit(), parts.Metaspace("▁", prepend_scheme=scheme)])
    kernel.decoder = tokenizers.decoders.Metaspace("▁", prepend_scheme=scheme)
    add_tokens(kernel, config, ROBERTA, model.user_defined)
    surround(kernel, [named["bos_token"]], [named["eos_token"]])
    return kernel.to_str()


def add_tokens(kernel, config, defaults, user_defined=()):
    """Marks the special tokens, and adds the tokens beyond the vocabulary. Returns named special tokens by name."""
    tokens = [(entry, bool(entry.get("special"))) for _, entry in sorted(config["added_tokens_decoder"].items())]
    named = {name: config.get(name, defaults.get(name)) for name in folder_files.TOKENS}
    tokens += [(token, True) for token in (*named.values(), *(config.get("additional_special_tokens") or ()))]
    tokens += [(token, False) for token in user_defined]
    known = {}
    for token, special in tokens:
        if token is not None:
            known.setdefault(folder_files.content(token), as_added_token(token, special))
    kernel.add_tokens([*known.values()])
    return {name: folder_files.content(token) for name, token in named.items()}


def as_added_token(token, special):
    flags = token if isinstance(token, dict) else {}
    flags = {name: flags[name] for name in ("lstrip", "rstrip", "single_word", "normalized") if name in flags}
    return tokenizers.AddedToken(folder_files.content(token), special=special, **{"normalized": not special, **flags})


def surround(kernel, start, end):
    """Makes the tokenizer put tokens before and after each text."""
    special = [(token, kernel.token_to_id(token)) for token in (*start, *end)]
    kernel.post_processor = tokenizers.processors.TemplateProcessing(
        single=[*start, "$A", *end], pair=[*start, "$A", *end, *start, "$B", *end], special_tokens=special
    )
