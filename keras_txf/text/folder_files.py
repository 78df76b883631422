"""The JSON files next to a vocabulary in a Hugging Face folder: reading, checking, and adding tokens."""

import json
import re

from keras_txf import checks
from keras_txf.checks import bad_argument, short_repr
from keras_txf.disk import file_of, read_json, reading
from keras_txf.text.byte_pair import BytePairTokenizer
from keras_txf.text.sentence_piece import SentencePieceTokenizer
from keras_txf.text.word_piece import WordPieceTokenizer

TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
RULES = ("single_word", "lstrip", "rstrip")
FLAGS = dict.fromkeys((*RULES, "normalized"), False)
MOST_EXTRA = 2**16  # extra tokens (T5 has 100); a larger number in a broken file would fill the memory


def read_config(folder):
    """Reads `tokenizer_config.json`; an empty dict without the file."""
    return _checked(file_of(folder, "tokenizer_config.json"), CONFIG)


def read_tokenizer_config(folder):
    """Reads `tokenizer_config.json`, and the special tokens in `special_tokens_map.json` of older folders."""
    config = read_config(folder)
    if "added_tokens_decoder" in config:  # transformers reads no other file either
        return config
    return {**config, **_checked(file_of(folder, "special_tokens_map.json"), CONFIG)}


def read_vocabulary(path):
    """Reads the tokens of a JSON file of tokens and ids, such as `vocab.json`, in the order of the ids."""
    ids = read_json(path)
    with reading(path):
        for token, id in ids.items():
            if checks.id_below(token, id) >= len(ids):
                raise ValueError(f"the {len(ids)} tokens must have ids below {len(ids)}; received {id}")
        if len(set(ids.values())) < len(ids):
            raise ValueError(f"the {len(ids)} tokens must have distinct ids")
    return sorted(ids, key=ids.get)


def read_model_type(folder):
    """Reads `model_type` of `config.json`; None if the file lacks it."""
    return _checked(file_of(folder, "config.json"), {"model_type": text}).get("model_type")


def read_normalizer(folder):
    """Reads the normalizer of `tokenizer.json`; an empty dict if the file lacks it."""
    path = file_of(folder, "tokenizer.json")
    normalizer = _checked(path, {"normalizer": mapping}).get("normalizer") or {}
    with reading(path):
        return _check(normalizer, NORMALIZER)


def added_tokens(folder, name, size, config):
    """Reads the added tokens, whose ids follow the ids of the `size` tokens in the file `name`."""
    by_id = {id: entry["content"] for id, entry in added_entries(folder, config).items()}
    beyond = sorted(id for id in by_id if id >= size)
    if beyond != list(range(size, size + len(beyond))):
        raise ValueError(
            f"`folder` must name, in added_tokens.json or tokenizer_config.json, every token from id {size} on, after "
            f"the tokens of {name}; received {short_repr(beyond)} in {short_repr(str(folder))}."
        )
    return [by_id[id] for id in beyond]


def added_entries(folder, config):
    """Reads the added tokens of `tokenizer_config.json` and of the older `added_tokens.json`: dicts by id."""
    path = file_of(folder, "added_tokens.json")
    ids = read_json(path) if path.is_file() else {}
    with reading(path):
        for token, id in ids.items():
            checks.id_below(token, id)
    entries = {int(id): entry for id, entry in (config.get("added_tokens_decoder") or {}).items()}
    named = [content(config.get(name)) for name in TOKENS] + special_tokens(config)
    entries.update(
        {id: {"content": token, "special": token in named} for token, id in ids.items() if id not in entries}
    )
    return entries


def plain_tokens(folder, config):
    """Returns the added tokens that are not special, each of which is one token anywhere in a text."""
    return [entry["content"] for entry in added_entries(folder, config).values() if not entry.get("special")]


def ruled_tokens(folder, config):
    """Returns the entries of the added tokens that absorb the blanks around them, or match whole words only."""
    return [entry for entry in added_entries(folder, config).values() if any(entry.get(name) for name in RULES)]


def special_tokens(config):
    """Returns the special tokens of a config other than padding, unknown, start and end."""
    listed = config.get("additional_special_tokens") or []
    added = (config.get("added_tokens_decoder") or {}).values()
    return [content(token) for token in listed] + [entry["content"] for entry in added if entry.get("special")]


def content(value):
    """Returns the string of a token, which may be a dict with `content`."""
    return value.get("content") if isinstance(value, dict) else value


def check_of(is_right, expected):
    """Returns a check of a value in a file: a function of the name and the value."""

    def check(name, value):
        if not is_right(value):
            raise ValueError(f"`{name}` must be {expected}; received {short_repr(value)}")

    return check


def is_token(value):
    return isinstance(content(value), str)


text = check_of(lambda value: value is None or isinstance(value, str), "a string or null")
mapping = check_of(lambda value: value is None or isinstance(value, dict), "a JSON object or null")
token = check_of(lambda value: value is None or is_token(value), "a string, a dict with it as `content`, or null")
tokens = check_of(
    lambda value: value is None or isinstance(value, list) and all(map(is_token, value)), "a list of tokens or null"
)


def flag_or_null(name, value):
    checks.optional(checks.boolean, name, value)


def number_of_tokens(name, value):
    if not 0 <= checks.integer(name, value) <= MOST_EXTRA:
        raise ValueError(f"`{name}` must be from 0 to {MOST_EXTRA}; received {short_repr(value)}")


def tokens_by_id(name, value):
    mapping(name, value)
    for id, entry in (value or {}).items():
        if not re.fullmatch("0|[1-9][0-9]{0,8}", id):
            raise ValueError(f"`{name}` must have ids of tokens as keys; received {short_repr(id)}")
        is_entry = isinstance(entry, dict) and isinstance(entry.get("content"), str)
        if not is_entry or not isinstance(entry.get("special", False), bool):
            raise ValueError(
                f"`{name}` must have a dict with the token as `content` for {id}; received {short_repr(entry)}"
            )


CONFIG = {
    "tokenizer_class": text, "extra_ids": number_of_tokens, "added_tokens_decoder": tokens_by_id,
    **dict.fromkeys(("model_input_names", "additional_special_tokens"), tokens),
    **dict.fromkeys(("do_lower_case", "split_by_punct", "tokenize_chinese_chars", "separate_vocabs"), checks.boolean),
    **dict.fromkeys(("strip_accents", "legacy", "add_bos_token", "add_eos_token", "add_prefix_space"), flag_or_null),
    **dict.fromkeys(TOKENS, token),
}  # fmt: skip
NORMALIZER = {"lowercase": checks.boolean, "strip_accents": flag_or_null, "handle_chinese_chars": checks.boolean}


def _checked(path, kinds):
    if not path.is_file():
        return {}
    values = read_json(path)
    with reading(path):
        return _check(values, kinds)


def _check(values, kinds):
    for name in kinds.keys() & values.keys():
        kinds[name](name, values[name])
    return values


def with_tokens(tokenizer, tokens):
    """Returns a tokenizer with more tokens, whose ids follow the old ids.

    Each new token is one token anywhere in a text, and `detokenize` shows it.

    Args:
        tokenizer: `WordPieceTokenizer`, `SentencePieceTokenizer` or `BytePairTokenizer`.
        tokens: list of str.
    """
    if type(tokenizer) not in CHANGES:
        names = [cls.__name__ for cls in CHANGES]
        raise bad_argument("tokenizer", f"be of a class that takes more tokens, one of {names}", tokenizer)
    tokens = checks.strings("tokens", tokens)
    known = set(all_tokens(tokenizer))
    again = [token for index, token in enumerate(tokens) if token in known or token in tokens[:index]]
    if again or not tokens or not all(tokens):
        raise bad_argument("tokens", "hold distinct strings that are not tokens yet", again or tokens)
    config = tokenizer.get_config()
    return type(tokenizer).from_config({**config, **CHANGES[type(tokenizer)](config, tokens)})


def all_tokens(tokenizer):
    """Returns the list of tokens in the order of their ids."""
    return [tokenizer.id_to_token(id) for id in range(tokenizer.vocab_size)]


def files_of_more_tokens(folder, before, after):
    """Returns the files that change if a folder's tokenizer gets more tokens: dict of name -> text.

    Args:
        folder: path of the folder.
        before, after: the tokenizer, and the result of `with_tokens`.
    """
    path, config, definition = file_of(folder, "tokenizer.json"), read_tokenizer_config(folder), None
    if isinstance(before, BytePairTokenizer):
        definition = json.loads(before.get_config()["definition"])
    elif path.is_file():
        definition = read_json(path)
    # A lowercasing WordPiece matches added tokens in capital and small letters: `normalized`.
    own = {**FLAGS, "normalized": isinstance(before, WordPieceTokenizer), "special": False}
    new = {id: {"content": after.id_to_token(id), **own} for id in range(before.vocab_size, after.vocab_size)}
    entries = {id: {"content": token, **FLAGS, "special": True} for token, id in before.special_tokens.items()}
    listed = [] if definition is None else definition.get("added_tokens") or []
    entries.update({entry["id"]: {name: entry[name] for name in entry if name != "id"} for entry in listed})
    entries.update({id: {**FLAGS, "special": False, **entry} for id, entry in added_entries(folder, config).items()})
    typed = {name: {"__type": "AddedToken", **config[name]} for name in TOKENS if isinstance(config.get(name), dict)}
    decoder = {str(id): entry for id, entry in sorted({**entries, **new}.items())}
    files = {"tokenizer_config.json": {**config, **typed, "added_tokens_decoder": decoder}}
    if definition is not None:
        more = [{"id": id, **entry} for id, entry in new.items()]
        files["tokenizer.json"] = {**definition, "added_tokens": [*listed, *more]}
    return {name: json.dumps(values, indent=2, ensure_ascii=False) + "\n" for name, values in files.items()}


def _more_words(config, tokens):
    pieces = [token for token in tokens if token.startswith("##")]
    if pieces:
        raise bad_argument("tokens", "not begin with ##, as pieces within words do", pieces)
    return {"vocabulary": [*config["vocabulary"], *tokens], "added_tokens": [*config["added_tokens"], *tokens]}


def _more_pieces(config, tokens):
    return {"extra_tokens": [*config["extra_tokens"], *tokens], "added_tokens": [*config["added_tokens"], *tokens]}


def _more_entries(config, tokens):
    definition = json.loads(config["definition"])
    first = 1 + max(_ids(definition))
    more = [{"id": first + i, "content": token, **FLAGS, "special": False} for i, token in enumerate(tokens)]
    definition["added_tokens"] = [*(definition.get("added_tokens") or []), *more]
    return {"definition": json.dumps(definition, ensure_ascii=False), "added_tokens": []}


def _ids(definition):
    """Returns all ids of a definition of `tokenizers`. A model holds tokens by id, or in the order of ids."""
    pieces = definition["model"]["vocab"]
    ids = [*pieces.values()] if isinstance(pieces, dict) else [*range(len(pieces))]
    return ids + [entry["id"] for entry in definition.get("added_tokens") or []]


CHANGES = {  # class -> function of a configuration and new tokens, which returns the changed values
    WordPieceTokenizer: _more_words, SentencePieceTokenizer: _more_pieces, BytePairTokenizer: _more_entries,
}  # fmt: skip
