"""Chat templates: the variables that they may read, their errors, and their files in a folder."""

import datetime
import json
import sys

import numpy as np
import pytest
from chat_cases import CONVERSATIONS, PUBLISHED, TOOLS, assistant, user
from refusals import refused

from keras_txf import strangers, text
from keras_txf.text.chat_templates import find_chat_template

HELLO = [user("Hello!")]
EACH = "{% for message in messages %}{{ message.content }}{% endfor %}"


def render(template, messages=HELLO, **variables):
    return text.ChatTemplate(template, {"eos_token": "</s>"}).render(messages, **variables)


@pytest.mark.parametrize("template, expected", [
    ("{{ messages[0].content }}{{ eos_token }}{{ unknown_token }}", "Hello!</s>"),
    ("{% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
    ("{% for letter in 'abc' %}{% if letter == 'b' %}{% continue %}{% endif %}{{ letter }}{% endfor %}", "ac"),
    ("{% for letter in 'abc' %}{% if letter == 'b' %}{% break %}{% endif %}{{ letter }}{% endfor %}", "a"),
    ("{{ {'b': '<é>', 'a': [1]} | tojson }}", '{"b": "<é>", "a": [1]}'),
    ("{{ {'b': 1, 'a': 'é'} | tojson(ensure_ascii=True, sort_keys=True, separators=(',', ':')) }}",
     '{"a":"\\u00e9","b":1}'),
    ("{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }}", "True True False"),
    ("{% generation %}a{{ messages | length }}{% endgeneration %}b", "a1b"),
    ("{{ strftime_now('%Y') }}", str(datetime.date.today().year)),
], ids=range(9))  # fmt: skip
def test_a_template_has_what_published_ones_use(template, expected):
    assert render(template) == expected


@pytest.mark.parametrize("template", [
    "{{ messages.__class__.__mro__ }}", "{{ ''.__class__ }}", "{{ messages.append(1) }}",
    "{{ cycler.__init__.__globals__.os }}", "{{ raise_exception.__globals__ }}",
])  # fmt: skip
def test_a_template_reads_nothing_of_the_process(template):
    try:
        assert render(template) == ""
    except ValueError as error:
        assert "SecurityError" in str(error)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("template", [
    "{{ 'a' * 3000000000 }}", "{{ ('%01000000000d' | format(1)) | length }}", "{{ 9 ** (9 ** 9) }}",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% set x = namespace(y='ab') %}{% for a in range(23) %}{% set x.y = x.y ~ x.y %}{% endfor %}{{ x.y }}",
], ids=range(5))  # fmt: skip
def test_time_memory_and_text_of_a_template_are_limited(template, monkeypatch):
    monkeypatch.setattr(strangers, "SECONDS", 1)
    with pytest.raises(ValueError, match="MemoryError|it took more than 1 seconds|the text has 16777216 characters"):
        render(template)
    assert render("a") == "a"


@pytest.mark.parametrize("call, words", [
    (lambda: text.ChatTemplate("{% for %}"), "`template` must be a Jinja template; received '{% for %}': .* line 1"),
    (lambda: text.ChatTemplate({"tool_use": "a"}), "with 'default' among its names"),
    (lambda: text.ChatTemplate("a", {"eos_token": 3}), "`special_tokens` must be a dict of strings"),
    (lambda: render("{{ raise_exception('Roles must alternate') }}"), "Roles must alternate"),
    (lambda: render("{{ 1 / 0 }}"), "`messages` must be a conversation that the template renders.*ZeroDivisionError"),
    (lambda: render("a", []), "`messages` must be a list of dicts, at least one; received"),
    (lambda: render("a", [{"content": "b"}]), "`messages` must each have a string as 'role'.* at index 0"),
    (lambda: render("a", [user("b"), {"role": "usr", "content": "b"}]), "as 'role'.* received 'usr' at index 1"),
    (lambda: render("a", [user(5)]), "a string as 'content', or parts .*; received .* at index 0"),
    (lambda: render("a", [{"role": "user"}]), "a string as 'content'"),
    (lambda: render("a", [user([{"type": "text", "text": "b"}])]), "parts that the template reads"),
    (lambda: render("a", [user(object())]), "`messages` must consist of strings, numbers, lists and dicts"),
    (lambda: render("a", tools=["f"]), "`tools` must be a list of dicts"),
    (lambda: text.ChatTemplate("a").render(HELLO, template="rag"), "`template` must be one of .*; received 'rag'"),
    (lambda: text.chat_template("nowhere"), "`folder` must be a folder; received 'nowhere'"),
], ids=range(15))  # fmt: skip
def test_bad_calls_raise_by_name(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_arrays_of_a_parquet_file_are_messages():
    messages = np.array([{"role": "user", "content": "a", "tool_calls": None}, assistant(np.str_("b"))])
    assert render(EACH + "{{ messages[0].tool_calls is defined }}", messages) == "abFalse"
    assert render("{{ k + 1 }}", k=np.int64(2)) == "3"


def test_the_callers_messages_stay_as_they_are():
    messages = [user("a"), assistant("b", thinking="c")]
    assert render("{{ messages[1].reasoning_content }}", messages) == "c"
    assert messages == [user("a"), assistant("b", thinking="c")]


def test_tools_have_a_template_of_their_own():
    template = text.ChatTemplate({"default": "a", "tool_use": "b", "rag": "c"})
    assert [template.render(HELLO), template.render(HELLO, tools=TOOLS)] == ["a", "b"]
    assert template.render(HELLO, template="rag") == "c"
    assert text.ChatTemplate.from_config(template.get_config()).get_config() == template.get_config()


def test_answers_are_the_blocks_or_what_prefixes_add():
    messages = [user("a"), assistant("bc"), user("d"), assistant("e")]
    block = "{% for m in messages %}{% if m.role == 'user' %}<{{ m.content }}>"
    block += "{% else %}{% generation %}{{ m.content }};{% endgeneration %}{% endif %}{% endfor %}"
    plain = block.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    found = [text.ChatTemplate(template).render_answers(messages) for template in (block, plain)]
    assert found == [("<a>bc;<d>e;", [(3, 6), (9, 11)])] * 2


@pytest.mark.parametrize("name", ["qwen3", "deepseek_r1_distill"])
def test_a_template_that_changes_earlier_answers_raises(name):
    template = text.ChatTemplate(PUBLISHED[name], {"bos_token": "<s>"})
    with pytest.raises(ValueError, match="`template` must render the first messages of a conversation as it renders"):
        template.render_answers(CONVERSATIONS["thoughts"])
    if name == "qwen3":
        assert template.render_answers(CONVERSATIONS["thoughts"][2:])[1]


def test_marks_do_not_change_a_text_in_silence():
    template = text.ChatTemplate("{% set a %}{% generation %} b {% endgeneration %}{% endset %}{{ a | trim }}")
    with pytest.raises(ValueError, match="must not change the text of a block of {% generation %}"):
        template.render_answers(HELLO)
    with pytest.raises(ValueError, match="without U.FDD0"):
        text.ChatTemplate("{% generation %}" + EACH + "{% endgeneration %}").render_answers([user("\ufdd0")])


def write(folder, **config):
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_a_folder_is_read_and_written(tmp_path):
    folder = write(tmp_path / "a", chat_template="{{ eos_token }}{{ bos_token }}", eos_token={"content": "</s>"})
    (folder / "special_tokens_map.json").write_text('{"bos_token": "<s>", "eos_token": "no"}')
    assert text.chat_template(folder).render(HELLO) == "</s><s>"
    text.ChatTemplate({"default": "x\r\ny", "rag": "z"}).save(folder)
    assert text.chat_template(folder).templates == {"default": "x\r\ny", "rag": "z"}
    text.ChatTemplate("w").save(folder)
    assert text.chat_template(folder).templates == {"default": "w"}


@pytest.mark.parametrize("value", [3, [], [{"name": "default"}], {"default": "a"}])
def test_a_damaged_folder_is_named(value, tmp_path):
    with pytest.raises(
        ValueError, match="tokenizer_config.json.* `chat_template` must be a string, or a list of dicts"
    ):
        text.chat_template(write(tmp_path, chat_template=value))


def test_a_folder_without_a_template_returns_none(tmp_path):
    assert find_chat_template(write(tmp_path, bos_token="<s>")) is None
    with pytest.raises(ValueError, match="`folder` must hold chat_template.jinja"):
        text.chat_template(tmp_path)
    with pytest.raises(ValueError, match="`template` must have names that are file names; received '../a'"):
        text.ChatTemplate({"default": "a", "../a": "b"}).save(tmp_path)
    (tmp_path / "file").write_text("")
    refused(lambda: text.ChatTemplate("a").save(tmp_path / "file"), ["`folder` must be a writable path"])


def test_without_jinja2_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    template = text.chat_template(write(tmp_path, chat_template="a template of its own"))
    with pytest.raises(ImportError, match="pip install jinja2"):
        template.render(HELLO)
