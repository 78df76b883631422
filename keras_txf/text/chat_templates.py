"""Chat templates: messages to the text that a model was trained on, by the Jinja template of a checkpoint.

A template runs in another process, with limits on its time and memory.
"""

import functools
import importlib.util
import os
import re
from typing import Any, Self

import numpy as np

from keras_txf import checks
from keras_txf.checks import bad_argument, short_repr
from keras_txf.disk import atomic_file, file_of, read_json, reading, writing
from keras_txf.layers.serialization import register
from keras_txf.strangers import StrangersError, ask
from keras_txf.strangers_process import MARKS
from keras_txf.text.folder_files import TOKENS, content, read_config
from keras_txf.text.lazy_imports import require_jinja2
from keras_txf.text.vocabulary import read_text

ROLES = ("system", "user", "assistant", "tool")  # of every template; a template may name further roles
REASONING = ("reasoning_content", "thinking", "reasoning")  # names of the reasoning in messages of different models
FILE, OTHERS = "chat_template.jinja", "additional_chat_templates"


@register
class ChatTemplate:
    """Renders messages to the text of a conversation, as `apply_chat_template` of transformers does.

    For `conversations`, which trains on the answers of a conversation, and for `txf.tasks.TextGenerator`, which chats.
    The template runs in jinja2's sandbox, in another process with limits of 10 seconds and 512 MiB. It reads the
    messages alone.

    Args:
        template: str, a Jinja template; or a dict of templates by name. "default" is for conversations, and "tool_use",
            if present, for conversations with tools.
        special_tokens: dict of the special tokens that the template may name: {"bos_token": "<s>", "eos_token": ...}.

    Raises:
        ImportError: `render` needs the package `jinja2`, which is not installed.
        ValueError: a string that is not a Jinja template, or a dict without "default".

    Reference:
        [Chat templates](https://huggingface.co/docs/transformers/chat_templating) of transformers.

    Example:

    >>> lines = "{% for message in messages %}{{ message.role }}: {{ message.content }}{{ eos_token }}\\n{% endfor %}"
    >>> answer = "{% if add_generation_prompt %}assistant:{% endif %}"
    >>> template = txf.text.ChatTemplate(lines + answer, {"eos_token": "</s>"})
    >>> template.render([{"role": "user", "content": "Hello!"}], add_generation_prompt=True)
    'user: Hello!</s>\\nassistant:'
    """

    def __init__(self, template: str | dict[str, str], special_tokens: dict[str, str] | None = None):
        templates = {"default": template} if isinstance(template, str) else template
        if not isinstance(templates, dict) or "default" not in templates or not _all_strings(templates):
            must = "be a Jinja template, or a dict of templates with 'default' among its names"
            raise bad_argument("template", must, template)
        special_tokens = {} if special_tokens is None else special_tokens
        if not isinstance(special_tokens, dict) or not _all_strings(special_tokens):
            raise bad_argument("special_tokens", "be a dict of strings, such as {'eos_token': '</s>'}", special_tokens)
        self.templates, self.special_tokens = dict(templates), dict(special_tokens)
        if importlib.util.find_spec("jinja2"):  # a checkpoint with a template loads without jinja2
            for source in self.templates.values():
                has_generation(source)  # raises ValueError if it is not a template

    def render(
        self,
        messages: Any,
        add_generation_prompt: bool = False,
        tools: list[dict[str, Any]] | None = None,
        documents: list[dict[str, Any]] | None = None,
        template: str | None = None,
        **variables: Any,
    ) -> str:
        """Renders a conversation.

        Args:
            messages: list of dicts with the keys "role" and "content". A role is "system", "user", "assistant", "tool"
                or another role that the template names. The content is a string; or a list of parts such as {"type":
                "text", "text": "Hi"}, if the template reads their "text". Keys with the value None are left out.
            add_generation_prompt: whether to end with the prompt of an answer, which a model then writes.
            tools: list of dicts, the JSON schemas of functions that the model may call.
            documents: list of dicts, texts that the model may refer to.
            template: the name of one of several templates.
            **variables: further variables of the template, such as `enable_thinking=False`; they may replace special
                tokens.

        Returns:
            The text. It does not tell a special token in a message from a special token of the template.

        Raises:
            ValueError: messages, tools, documents or variables of another form; a conversation that the template
                rejects, with the template's reason.
        """
        checks.boolean("add_generation_prompt", add_generation_prompt)
        options = dict(tools=tools, documents=documents, add_generation_prompt=add_generation_prompt, **variables)
        return self._render(self._source(template, tools), messages, options)

    def render_answers(self, messages: Any, **variables: Any) -> tuple[str, list[tuple[int, int]]]:
        """Renders a conversation, and returns the spans of the assistant's answers in the text.

        Answers are the blocks of `{% generation %}` in a template. Without such blocks an answer begins at the end of
        the messages before it, rendered with `add_generation_prompt`. The answer ends at the end of the messages up to
        it. Such a template must render earlier messages alike when later messages follow.

        Args:
            messages: list of dicts, see `render`.
            **variables: `tools`, `documents`, `template` and variables of `render`.

        Returns:
            The text, and a list of spans (start, end) of characters of the text.

        Raises:
            ValueError: see `render`; a template without `{% generation %}` that renders a part of a conversation in
                another way than the whole.
        """
        source = self._source(variables.pop("template", None), variables.get("tools"))
        options = {"tools": None, "documents": None, "add_generation_prompt": False, **variables}
        text = self._render(source, messages, options)
        if has_generation(source):
            return text, _marked_parts(text, self._render(source, messages, options, marks=True))
        answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        parts = []
        for index in answers:
            before = self._render(source, messages[:index], {**options, "add_generation_prompt": True})
            whole = self._render(source, messages[: index + 1], options)
            if not whole.startswith(before) or not text.startswith(whole):
                raise ValueError(
                    "`template` must render the first messages of a conversation as it renders them within the whole, "
                    "or mark answers with {% generation %}; received a template that renders the messages before "
                    f"message {index}, or up to it, in another way."
                )
            parts.append((len(before), len(whole)))
        return text, parts

    def save(self, folder: str | os.PathLike) -> None:
        """Writes `chat_template.jinja`, and the other templates to `additional_chat_templates`, as transformers does.

        The tokenizer's files hold the special tokens, which this method does not write.

        Args:
            folder: the folder of a checkpoint.

        Raises:
            ValueError: a folder that cannot be written to, or a template whose name is not a file name.
        """
        write_templates(checks.path("folder", folder), self.templates)

    def get_config(self) -> dict[str, Any]:
        return {"template": dict(self.templates), "special_tokens": dict(self.special_tokens)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**config)

    def _source(self, name, tools):
        if name is None:
            name = "tool_use" if tools is not None and "tool_use" in self.templates else "default"
        return self.templates[checks.one_of("template", name, tuple(self.templates))]

    def _render(self, source, messages, options, marks=False):
        variables = {name: plain(name, value) for name, value in options.items()}
        for name in ("tools", "documents"):
            if variables[name] is not None and not all_dicts(variables[name]):
                raise bad_argument(name, "be a list of dicts", options[name])
        messages = checked_messages("messages", messages, source)
        return rendered(source, {**self.special_tokens, **variables, "messages": messages}, marks)


def chat_template(folder: str | os.PathLike) -> ChatTemplate:
    """Reads the chat template of a Hugging Face folder.

    Reads `chat_template.jinja` and `additional_chat_templates/*.jinja`, or `chat_template` of `tokenizer_config.json`,
    which is a template or a list of named templates. Reads the special tokens of `tokenizer_config.json` and
    `special_tokens_map.json`.

    Args:
        folder: path of the folder.

    Returns:
        A `ChatTemplate`.

    Raises:
        ValueError: a path that is not a folder, a folder without a chat template, a damaged file, which the message
            names.

    Example:

    >>> import json, pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> config = {"chat_template": "{{ bos_token }}{{ messages[0].content }}", "bos_token": "<s>"}
    >>> characters = (folder / "tokenizer_config.json").write_text(json.dumps(config))
    >>> txf.text.chat_template(folder).render([{"role": "user", "content": "Hello!"}])
    '<s>Hello!'
    """
    template = find_chat_template(folder)
    if template is None:
        must = "hold chat_template.jinja, or a `chat_template` in tokenizer_config.json"
        raise bad_argument("folder", must, os.fspath(folder))
    return template


def find_chat_template(folder):
    """Returns the chat template of a folder, or None."""
    folder = checks.path("folder", folder)
    if not folder.is_dir():
        raise bad_argument("folder", "be a folder", str(folder))
    templates, special_tokens = read_templates(folder)
    return ChatTemplate(templates, special_tokens) if templates else None


def _marked_parts(text, marked):
    """Returns the spans between marks, in characters of the text without the marks."""
    first, last = MARKS
    if first in text or last in text or marked.replace(first, "").replace(last, "") != text:
        must = (
            "not change the text of a block of {% generation %} outside of the block, and `messages` must be "
            "without U+FDD0 and U+FDD1"
        )
        raise bad_argument("template", must, text)
    parts, position, start = [], 0, 0
    for piece in re.split(f"([{first}{last}])", marked):
        if piece == first:
            start = position
        elif piece == last:
            parts.append((start, position))
        else:
            position += len(piece)
    return parts


def _all_strings(values):
    return all(isinstance(name, str) and isinstance(value, str) for name, value in values.items())


def read_templates(folder):
    """Returns the templates of a folder and its special tokens, two dicts by name.

    Template files override `tokenizer_config.json`.

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
    """Returns the templates of `chat_template` of a config: a string, a list of named templates, or None."""
    if value is None or isinstance(value, str):
        return {"default": value} if value else {}
    if isinstance(value, list) and value and all(map(_is_named, value)):
        return {entry["name"]: entry["template"] for entry in value}
    raise ValueError(
        f"`chat_template` must be a string, or a list of dicts with `name` and `template`; received {short_repr(value)}"
    )


def write_templates(folder, templates):
    """Writes each template to a file, atomically, and removes files of other templates."""
    with writing("folder", folder):
        for name, template in templates.items():
            if name != "default" and (name in ("", ".", "..") or set(name) & set("/\\\0")):
                raise bad_argument("template", "have names that are file names", name)
            with atomic_file(folder / FILE if name == "default" else folder / OTHERS / f"{name}.jinja") as temporary:
                temporary.write_text(template, encoding="utf-8")
        for file in (folder / OTHERS).glob("*.jinja"):
            if file.stem not in templates:
                file.unlink()


def _is_named(entry):
    return isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)


def checked_messages(name, messages, source):
    """Returns messages in the form that a template reads: a list of dicts of JSON's types, without None.

    A template would write a misspelt role, or a content that is not a text, without an error.
    """
    messages = plain(name, messages)
    if not isinstance(messages, list) or not messages or not all_dicts(messages):
        raise bad_argument(name, "be a list of dicts, at least one", messages)
    checked = []
    for index, message in enumerate(messages):
        message = {key: value for key, value in message.items() if value is not None}
        role = message.get("role")
        if not isinstance(role, str):
            raise bad_argument(name, "each have a string as 'role'", message, index)
        if role not in ROLES and role not in source:
            must = f"each have one of {list(ROLES)} as 'role', or one that the template names"
            raise bad_argument(name, must, role, index)
        _check_content(name, message, index, source)
        reasoning = next((message[key] for key in REASONING if key in message), None)
        if reasoning is not None:
            message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
        checked.append(message)
    return checked


def _check_content(name, message, index, source):
    """Raises ValueError if the template does not read the content. A tool's message may have content of any type."""
    content = message.get("content")
    if isinstance(content, str) or content is None and message.keys() & {"tool_calls", *REASONING}:
        return
    if content is not None and message["role"] not in ROLES[:3]:
        return
    if content and all_dicts(content) and re.search(r"""\.text\b|['"]text['"]""", source):
        return
    raise bad_argument(name, "each have a string as 'content', or parts that the template reads", message, index)


def plain(name, value):
    """Copies a value of JSON's types, or a NumPy array. Raises ValueError for objects, whose methods could run."""
    if isinstance(value, np.ndarray):
        return plain(name, value.tolist())
    if isinstance(value, np.generic):
        return plain(name, value.item())
    if value is None or type(value) in (str, bool, int, float):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (list, tuple)):
        return [plain(name, inner) for inner in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: plain(name, inner) for key, inner in value.items()}
    raise bad_argument(name, "consist of strings, numbers, lists and dicts", value)


def all_dicts(values):
    return isinstance(values, list) and all(isinstance(value, dict) for value in values)


@functools.lru_cache(maxsize=64)
def has_generation(source):
    """Whether a template marks answers by `{% generation %}`. Raises ValueError if it is not a template."""
    try:
        return ask("check", source)
    except StrangersError as error:
        line = "" if error.line is None else f", line {error.line}"
        raise ValueError(
            f"`template` must be a Jinja template; received {short_repr(source)}: {short_repr(error.reason)}{line}."
        ) from None


def rendered(source, variables, marks=False):
    """Returns the text of a template.

    Args:
        source: str, the template.
        variables: dict of the variables of the template, of JSON's types.
        marks: whether to put `strangers_process.MARKS` around the text of a `{% generation %}` block.

    Raises:
        ImportError: jinja2 is not installed.
        ValueError: variables that the template rejects, or too much time, memory or text.
    """
    require_jinja2()
    try:
        return ask("render", source, marks, variables)
    except StrangersError as error:
        raise ValueError(
            "`messages` must be a conversation that the template renders; received "
            f"{short_repr(variables['messages'])}: {error.kind}: {short_repr(error.reason)}."
        ) from error
