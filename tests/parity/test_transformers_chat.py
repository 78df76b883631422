"""Chat templates render as in transformers, and the answers are the tokens that transformers takes for them."""

import numpy as np
import pytest
import transformers
from chat_cases import CONVERSATIONS, PUBLISHED, TOOLS, assistant, tokenizer_folder, user

import keras_txf as txf

pytestmark = pytest.mark.parity
DOCUMENTS = [{"title": "Rain", "text": "It is <wet> & cold."}]
VARIABLES = {
    "plain": {},
    "generation prompt": {"add_generation_prompt": True},
    "tools": {"tools": TOOLS, "add_generation_prompt": True},
    "documents and variables": {"documents": DOCUMENTS, "enable_thinking": False, "add_generation_prompt": True},
}
MARKED = [name for name in PUBLISHED if name.endswith("_training")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tokenizer_folder(tmp_path_factory.mktemp("chat"))


@pytest.fixture(scope="module")
def theirs(folder):
    return transformers.AutoTokenizer.from_pretrained(folder)


def rendered(render, errors=Exception):
    """Returns the result of a call, or None for a conversation that the template rejects."""
    try:
        return render()
    except errors:
        return None


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_templates_render_as_in_transformers(name, theirs):
    ours = txf.text.ChatTemplate(PUBLISHED[name], theirs.special_tokens_map)
    count = 0
    for kind, messages in CONVERSATIONS.items():
        for variables in VARIABLES.values():
            options = dict(chat_template=PUBLISHED[name], tokenize=False, **variables)
            expected = rendered(lambda: theirs.apply_chat_template(messages, **options))
            if kind == "parts" and ("A cat." not in (expected or "") or "'type'" in expected):
                expected = None  # the template leaves the text out or writes Python's list: we raise ValueError
            assert rendered(lambda: ours.render(messages, **variables), ValueError) == expected
            count += expected is not None
    assert count >= len(VARIABLES) and len(PUBLISHED) >= 10


@pytest.mark.parametrize("kind", ["file", "files", "string", "list"])
def test_a_folder_has_the_template_that_transformers_finds(kind, tmp_path):
    first, second = PUBLISHED["qwen2_5"], PUBLISHED["phi3"]
    named = [{"name": "default", "template": first}, {"name": "tool_use", "template": second}]
    config = {"string": {"chat_template": first}, "list": {"chat_template": named}}.get(kind, {"chat_template": "no"})
    folder = tokenizer_folder(tmp_path, first if "file" in kind else None, **config)
    if kind == "files":
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text(second, encoding="utf-8")
    ours, theirs = txf.text.chat_template(folder), transformers.AutoTokenizer.from_pretrained(folder)
    assert ours.special_tokens == theirs.special_tokens_map
    for options in ({}, {"tools": TOOLS}):
        messages = CONVERSATIONS["several turns"]
        assert ours.render(messages, **options) == theirs.apply_chat_template(messages, tokenize=False, **options)
    assert len(ours.templates) == 1 + (kind in ("files", "list"))
    ours.save(tmp_path / "again")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "again" / file).write_bytes((folder / file).read_bytes())
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert again.chat_template == theirs.chat_template


@pytest.mark.parametrize("name", MARKED)
def test_targets_are_the_tokens_that_transformers_takes_for_answers(name, folder, theirs):
    ours = txf.text.ChatTemplate(PUBLISHED[name], theirs.special_tokens_map)
    tokenizer = txf.text.from_checkpoint(folder, special_tokens_in_text="keep")
    known, conversations = {}, {**CONVERSATIONS, "special": [user("a <|im_end|>b"), assistant("c</s><|end|> d")]}
    for case, messages in conversations.items():
        options = dict(chat_template=PUBLISHED[name], return_assistant_tokens_mask=True)
        found = rendered(lambda: theirs.apply_chat_template(messages, **options))
        text_is_lost = case == "parts" and found is not None and "A cat." not in theirs.decode(found["input_ids"])
        if found is not None and any(found["assistant_masks"]) and not text_is_lost:
            known[case] = np.array(found["input_ids"]), np.array(found["assistant_masks"])
    assert len(known) >= 2
    examples = txf.text.conversations([conversations[case] for case in known], tokenizer, ours)
    for (ids, targets, weights), (all_ids, mask) in zip(examples.as_numpy_iterator(), known.values(), strict=True):
        np.testing.assert_array_equal(ids, all_ids[:-1])
        np.testing.assert_array_equal(targets, all_ids[1:])
        np.testing.assert_array_equal(weights, mask[1:])
        assert 0 < weights.sum() < len(weights)


@pytest.mark.parametrize("name", ["qwen2_5", "phi3", "smolvlm"])
def test_answers_without_marks_are_those_of_the_marked_template(name, theirs):
    """The same template without `{% generation %}` gives the same answers, found by rendering prefixes."""
    tokens = {**theirs.special_tokens_map, "eos_token": ""}
    plain, marked = (txf.text.ChatTemplate(PUBLISHED[key], tokens) for key in (name, f"{name}_training"))
    messages = CONVERSATIONS["parts" if name == "smolvlm" else "several turns"]
    found, expected = plain.render_answers(messages), marked.render_answers(messages)
    assert found[0] == expected[0]
    # Qwen's marks take the line break before an answer for a part of it.
    found, expected = ([text[slice(*part)].strip() for part in parts] for text, parts in (found, expected))
    assert found == [answer for answer in expected if answer] and len(found) == sum(
        message["role"] == "assistant" for message in messages
    )


@pytest.mark.parametrize("name", ["qwen2_5", "phi3"])
def test_a_message_slips_in_no_special_token_as_where_transformers_sanitizes(name, folder, theirs):
    ours = txf.text.ChatTemplate(PUBLISHED[name], theirs.special_tokens_map)
    messages = [user("a <|im_end|>b"), assistant("c <|user|> d")]
    options = dict(chat_template=PUBLISHED[name], sanitize_control_tokens=True)
    expected = theirs.apply_chat_template(messages, **options)["input_ids"]
    tokenizer = txf.text.from_checkpoint(folder)
    ((ids, targets, _),) = txf.text.conversations([messages], tokenizer, ours).as_numpy_iterator()
    found, special = [ids[0], *targets], set(tokenizer.special_tokens.values())
    assert [id for id in found if id in special] == [id for id in expected if id in special]
    assert tokenizer.detokenize(found) == tokenizer.detokenize(expected)
