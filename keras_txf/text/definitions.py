"""The content of a `tokenizer.json`, made of the older files of a folder of Hugging Face.

The parts are those that the class of the tokenizer in transformers puts together.
"""

from keras_txf.checks import short_repr
from keras_txf.reading import reading
from keras_txf.text.folder_files import TOKENS, content
from keras_txf.text.lazy_imports import tokenizers
from keras_txf.text.vocabulary import read_text

ENDOFTEXT = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
ROBERTA = {
    "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>", "pad_token": "<pad>",
    "cls_token": "<s>", "mask_token": "<mask>",
}  # fmt: skip


def byte_pair_definition(vocabulary, merges, config, defaults):
    """The definition of a byte-level BPE of `vocab.json` and `merges.txt`.

    Args:
        vocabulary, merges: paths of the two files.
        config: values of `tokenizer_config.json`.
        defaults: the special tokens of the class, by their names.
    """
    for file in (vocabulary, merges):
        read_text("folder", file)  # says what is wrong with a file that is not text
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
        start = [named["bos_token"]] * bool(config.get("add_bos_token"))
        surround(kernel, start, [named["eos_token"]] * bool(config.get("add_eos_token")))
    return kernel.to_str()


def xlm_roberta_definition(path, model, config):
    """The definition of a SentencePiece model whose first three tokens, and the mask, XLM-R has otherwise.

    Args:
        path: of the file.
        model: its `Model`.
        config: values of `tokenizer_config.json`.
    """
    named = {name: content(config.get(name, default)) for name, default in ROBERTA.items()}
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
    """Marks the special tokens and adds those beyond the vocabulary; returns the named ones by their names."""
    tokens = [(entry, bool(entry.get("special"))) for _, entry in sorted(config["added_tokens_decoder"].items())]
    named = {name: config.get(name, defaults.get(name)) for name in TOKENS}
    tokens += [(token, True) for token in (*named.values(), *(config.get("additional_special_tokens") or ()))]
    tokens += [(token, False) for token in user_defined]
    known = {}
    for token, special in tokens:
        if token is not None:
            known.setdefault(content(token), as_added_token(token, special))
    kernel.add_tokens([*known.values()])
    return {name: content(token) for name, token in named.items()}


def as_added_token(token, special):
    flags = token if isinstance(token, dict) else {}
    flags = {name: flags[name] for name in ("lstrip", "rstrip", "single_word", "normalized") if name in flags}
    return tokenizers.AddedToken(content(token), special=special, **{"normalized": not special, **flags})


def surround(kernel, start, end):
    """Has the tokenizer put tokens before and after each text."""
    special = [(token, kernel.token_to_id(token)) for token in (*start, *end)]
    kernel.post_processor = tokenizers.processors.TemplateProcessing(
        single=[*start, "$A", *end], pair=[*start, "$A", *end, *start, "$B", *end], special_tokens=special
    )
