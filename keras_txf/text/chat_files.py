"""The chat templates and special tokens in a folder of Hugging Face."""

from keras_txf.atomic_write import atomic_file, writing
from keras_txf.checks import short_repr
from keras_txf.reading import file_of, read_json, reading
from keras_txf.text.folder_files import content, read_config
from keras_txf.text.vocabulary import read_text

FILE, OTHERS = "chat_template.jinja", "additional_chat_templates"
TOKENS = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))


def read_templates(folder):
    """Returns the templates of a folder and its special tokens, dicts by name. Files go before `tokenizer_config.json`.

    Raises:
        ValueError: a damaged file.
    """
    config = read_config(folder)
    templates = {file.stem: read_text("folder", file) for file in sorted((folder / OTHERS).glob("*.jinja"))}
    if file_of(folder, FILE).is_file():
        templates["default"] = read_text("folder", file_of(folder, FILE))
    if not templates:
        with reading(folder / "tokenizer_config.json"):
            templates = by_name(config.get("chat_template"))
    older = folder / "special_tokens_map.json"
    tokens = {**(read_json(older) if older.is_file() else {}), **config}
    tokens = {name: content(tokens.get(name)) for name in TOKENS}
    return templates, {name: token for name, token in tokens.items() if isinstance(token, str)}


def by_name(value):
    """Returns the templates of `chat_template` of a config: a string, a list of named ones, or None."""
    if value is None or isinstance(value, str):
        return {"default": value} if value else {}
    if isinstance(value, list) and value and all(map(_is_named, value)):
        return {entry["name"]: entry["template"] for entry in value}
    raise ValueError(
        f"`chat_template` must be a string, or a list of dicts with `name` and `template`; received {short_repr(value)}"
    )


def write_templates(folder, templates):
    """Writes templates as files, each atomically; removes those of other names, which would be read with them."""
    with writing("folder", folder):
        for name, template in templates.items():
            if name != "default" and (name in ("", ".", "..") or set(name) & set("/\\\0")):
                raise ValueError(f"`template` must have names of files; received {short_repr(name)}.")
            with atomic_file(folder / FILE if name == "default" else folder / OTHERS / f"{name}.jinja") as temporary:
                temporary.write_text(template, encoding="utf-8")
        for file in (folder / OTHERS).glob("*.jinja"):
            if file.stem not in templates:
                file.unlink()


def _is_named(entry):
    return isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)
