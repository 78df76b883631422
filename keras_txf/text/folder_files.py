"""Reads the JSON files beside a vocabulary in a folder of Hugging Face, and checks the type of each value."""

import re

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.reading import file_of, read_json, reading

MOST_EXTRA = 2**16  # extra tokens, of which T5 has 100; a larger number in a broken file would fill the memory


def read_config(folder):
    """Reads `tokenizer_config.json`; an empty dict without the file."""
    return _checked(file_of(folder, "tokenizer_config.json"), CONFIG)


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
    path = file_of(folder, "added_tokens.json")
    ids = read_json(path) if path.is_file() else {}
    with reading(path):
        for token, id in ids.items():
            checks.id_below(token, id)
    by_id = {int(id): entry["content"] for id, entry in (config.get("added_tokens_decoder") or {}).items()}
    by_id.update({id: token for token, id in ids.items()})
    beyond = sorted(id for id in by_id if id >= size)
    if beyond != list(range(size, size + len(beyond))):
        raise ValueError(
            f"`folder` must name, in added_tokens.json or tokenizer_config.json, every token from id {size} on, which "
            "follow those "
            f"of {vocabulary.name}; received {short_repr(beyond)} in {short_repr(str(folder))}."
        )
    return [by_id[id] for id in beyond]


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
    **dict.fromkeys(
        ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token", "bos_token", "eos_token"), token
    ),
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
