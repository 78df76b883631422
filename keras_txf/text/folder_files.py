"""Reads the JSON files beside a vocabulary in a folder of Hugging Face, and checks the type of each value."""

import re

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.reading import file_of, read_json, reading

TOKENS = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "bos_token", "eos_token")
RULES = ("single_word", "lstrip", "rstrip")
MOST_EXTRA = 2**16  # extra tokens, of which T5 has 100; a larger number in a broken file would fill the memory


def read_config(folder):
    """Reads `tokenizer_config.json`; an empty dict without the file."""
    return _checked(file_of(folder, "tokenizer_config.json"), CONFIG)


def read_tokenizer_config(folder):
    """Reads `tokenizer_config.json`, and the special tokens in `special_tokens_map.json` of older folders."""
    config = read_config(folder)
    if "added_tokens_decoder" in config:  # transformers too then reads no other file
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
            raise ValueError(f"the {len(ids)} tokens must have ids of their own")
    return sorted(ids, key=ids.get)


def read_model_type(folder):
    """Reads `model_type` of `config.json`; None without it."""
    return _checked(file_of(folder, "config.json"), {"model_type": text}).get("model_type")


def read_normalizer(folder):
    """Reads the normalizer of `tokenizer.json`; an empty dict without it."""
    path = file_of(folder, "tokenizer.json")
    normalizer = _checked(path, {"normalizer": mapping}).get("normalizer") or {}
    with reading(path):
        return _check(normalizer, NORMALIZER)


def added_tokens(vocabulary, size, config):
    """Reads the added tokens, whose ids follow those of the `size` tokens in the file `vocabulary`."""
    folder = vocabulary.parent
    by_id = {id: entry["content"] for id, entry in added_entries(folder, config).items()}
    beyond = sorted(id for id in by_id if id >= size)
    if beyond != list(range(size, size + len(beyond))):
        raise ValueError(
            f"`folder` must name, in added_tokens.json or tokenizer_config.json, every token from id {size} on, which "
            "follow those "
            f"of {vocabulary.name}; received {short_repr(beyond)} in {short_repr(str(folder))}."
        )
    return [by_id[id] for id in beyond]


def added_entries(folder, config):
    """Reads the added tokens of `tokenizer_config.json` and of the older `added_tokens.json`, dicts by their ids."""
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
    """Returns the added tokens that are not special: each is one token wherever it stands in a text."""
    return [entry["content"] for entry in added_entries(folder, config).values() if not entry.get("special")]


def ruled_tokens(folder, config):
    """Returns the entries of the added tokens that absorb the blanks around them, or match whole words only."""
    return [entry for entry in added_entries(folder, config).values() if any(entry.get(name) for name in RULES)]


def special_tokens(config):
    """Returns the special tokens of a config beside padding, unknown, start and end."""
    listed = config.get("additional_special_tokens") or []
    added = (config.get("added_tokens_decoder") or {}).values()
    return [content(token) for token in listed] + [entry["content"] for entry in added if entry.get("special")]


def content(value):
    """Returns the string of a token, which may be a dict with `content`."""
    return value.get("content") if isinstance(value, dict) else value


def text(name, value):
    if value is not None and not isinstance(value, str):
        raise ValueError(f"`{name}` must be a string or null; received {short_repr(value)}")


def mapping(name, value):
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"`{name}` must be a JSON object or null; received {short_repr(value)}")


def flag_or_null(name, value):
    checks.optional(checks.boolean, name, value)


def number_of_tokens(name, value):
    if not 0 <= checks.integer(name, value) <= MOST_EXTRA:
        raise ValueError(f"`{name}` must be from 0 to {MOST_EXTRA}; received {short_repr(value)}")


def token(name, value):
    if value is not None and not isinstance(content(value), str):
        raise ValueError(
            f"`{name}` must be a string, a dict with it as `content`, or null; received {short_repr(value)}"
        )


def tokens(name, value):
    if value is not None and not (isinstance(value, list) and all(isinstance(content(one), str) for one in value)):
        raise ValueError(f"`{name}` must be a list of tokens or null; received {short_repr(value)}")


def tokens_by_id(name, value):
    mapping(name, value)
    for id, entry in (value or {}).items():
        if not re.fullmatch("0|[1-9][0-9]{0,8}", id):
            raise ValueError(f"`{name}` must have ids of tokens as keys; received {short_repr(id)}")
        if (
            not isinstance(entry, dict)
            or not isinstance(entry.get("content"), str)
            or not isinstance(entry.get("special", False), bool)
        ):
            raise ValueError(
                f"`{name}` must have a dict with the token as `content` for {id}; received {short_repr(entry)}"
            )


CONFIG = {
    "tokenizer_class": text,
    "model_input_names": tokens,
    "do_lower_case": checks.boolean,
    "split_by_punct": checks.boolean,
    "strip_accents": flag_or_null,
    "tokenize_chinese_chars": checks.boolean,
    "legacy": flag_or_null,
    "add_bos_token": flag_or_null,
    "add_eos_token": flag_or_null,
    "extra_ids": number_of_tokens,
    "additional_special_tokens": tokens,
    "added_tokens_decoder": tokens_by_id,
    "add_prefix_space": flag_or_null,
    "separate_vocabs": checks.boolean,
    **dict.fromkeys(TOKENS, token),
}
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
