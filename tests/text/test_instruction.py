"""Instructions and conversations: only answers have weight."""

import numpy as np
import pytest
from chat_cases import CONVERSATIONS, PUBLISHED, SYSTEM, TOOLS, assistant, user
from text_cases import CORPUS, LEARN, learnt

from keras_txf import text
from keras_txf.text.lazy_imports import tf

PROMPTS = [line[:20] for line in CORPUS[:5]]
RESPONSES = [line[20:35] for line in CORPUS[:5]]
CHATS = [
    [SYSTEM, user(first), assistant(second), user(second[::-1]), assistant(first[3:9])]
    for first, second in zip(PROMPTS, RESPONSES)
]
BLOCK = "{% for m in messages %}{{ m.role[0] }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }};"
BLOCK += "{% endgeneration %}{% else %}{{ m.content }};{% endif %}{% endfor %}"
BLOCK += "{% if add_generation_prompt %}a{% endif %}"
PLAIN = BLOCK.replace("{% generation %}", "").replace("{% endgeneration %}", "")
BYTES = text.ByteTokenizer(end="</s>")


def written(ids):
    return bytes(int(id) - 3 for id in ids).decode()


@pytest.mark.drawn(4)
@pytest.mark.parametrize("template", [BLOCK, PLAIN])
def test_weights_are_of_the_bytes_of_the_answers(template):
    examples = text.conversations(CHATS, BYTES, text.ChatTemplate(template))
    for chat, (ids, targets, weights) in zip(CHATS, examples.as_numpy_iterator(), strict=True):
        whole = "".join(f"{message['role'][0]}{message['content']};" for message in chat)
        assert written(ids) == whole.encode()[:-1].decode("utf-8", "ignore") and written(targets) == whole[1:]
        answers = "".join(f"{message['content']};" for message in chat if message["role"] == "assistant")
        assert written(targets[weights == 1]) == answers and set(weights) == {0, 1}
        assert (ids.dtype, targets.dtype, weights.dtype) == ("int32", "int32", "float32")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in LEARN if kind != "bytes"])
def test_tokens_of_every_tokenizer_equal_the_whole_text(kind):
    tokenizer, template = learnt(kind), text.ChatTemplate(BLOCK.replace(";", " ; ").replace("[0] }}", " }} : "))
    examples = text.conversations(CHATS, tokenizer, template)
    for chat, (ids, targets, weights) in zip(CHATS, examples.as_numpy_iterator(), strict=True):
        whole, parts = template.render_answers(chat)
        np.testing.assert_array_equal([ids[0], *targets], tokenizer.tokenize(whole))
        answers = "".join(whole[slice(*part)] for part in parts)
        # A blank belongs to the token after it, and a tokenizer may change characters.
        found, expected = (tokenizer.detokenize(row) for row in (targets[weights == 1], tokenizer.tokenize(answers)))
        assert found.replace(" ", "") == expected.replace(" ", "") and found.count(";") == 2


@pytest.mark.slow
def test_a_token_in_an_answer_in_part_belongs_to_it():
    tokenizer = text.BytePairTokenizer.train(["xyz xyz xyz"], 261, special_tokens=["<pad>"])
    assert len(tokenizer.tokenize("xyz")) == 1
    answer = "{% generation %}{{ messages[1].content }}{% endgeneration %}"
    template = text.ChatTemplate("- {{ messages[0].content }}" + answer + "z")
    [(_, targets, weights)] = text.conversations([[user("x"), assistant("y")]], tokenizer, template).as_numpy_iterator()
    assert tokenizer.detokenize(targets[weights == 1]).strip() == "xyz"


@pytest.mark.slow
def test_prompts_and_responses():
    tokenizer = text.ByteTokenizer(extra_tokens=["<s>"], start="<s>", end="</s>")
    start, end = (tokenizer.token_to_id(token) for token in ("<s>", "</s>"))
    examples = text.instruction((PROMPTS, RESPONSES), tokenizer)
    for prompt, response, (ids, targets, weights) in zip(PROMPTS, RESPONSES, examples.as_numpy_iterator(), strict=True):
        prompt, response = (tokenizer.tokenize(part).numpy().tolist() for part in (prompt, response))
        assert [*ids, targets[-1]] == [start, *prompt, *response, end] and targets[:-1].tolist() == ids[1:].tolist()
        assert weights.tolist() == [0] * len(prompt) + [1] * (len(response) + 1)
    dataset = tf.data.Dataset.from_tensor_slices((PROMPTS, RESPONSES))
    template = text.ChatTemplate(BLOCK)
    found = text.instruction(dataset, BYTES, template)
    expected = text.conversations([[user(a), assistant(b)] for a, b in zip(PROMPTS, RESPONSES)], BYTES, template)
    for parts in zip(found.as_numpy_iterator(), expected.as_numpy_iterator(), strict=True):
        assert all((one == other).all() for one, other in zip(*parts, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("side", ["right", "left"])
def test_long_examples_are_truncated_and_those_without_an_answer_left_out(side):
    tokenizer = text.ByteTokenizer(end="</s>", truncation_side=side)
    columns = (["abcd", "a", "a"], ["ef", "b", ""])
    examples = list(text.instruction(columns, tokenizer, max_length=4).as_numpy_iterator())
    assert [len(ids) for ids, _, _ in examples] == [4, 2, 1]
    ids, targets, weights = examples[0]
    end = tokenizer.token_to_id("</s>")
    if side == "right":
        assert written(ids) == "abcd" and written(targets) == "bcde" and weights.tolist() == [0, 0, 0, 1]
        assert not list(text.instruction((["abcdef"], ["g"]), tokenizer, max_length=4).as_numpy_iterator())
    else:
        assert written(ids) == "cdef" and targets[-1] == end and weights.tolist() == [0, 1, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("in_text, count", [("escape", 1), ("keep", 3)])
def test_a_message_slips_in_no_special_token(in_text, count):
    tokenizer = text.ByteTokenizer(end="</s>", special_tokens_in_text=in_text)
    template = text.ChatTemplate(BLOCK + "{{ eos_token }}", {"eos_token": "</s>"})
    messages = [user("a</s>b</</s>s>"), assistant("c\ufdd2d")]
    ((ids, targets, weights),) = text.conversations([messages], tokenizer, template).as_numpy_iterator()
    found = [ids[0], *targets]
    assert found.count(tokenizer.token_to_id("</s>")) == count
    assert tokenizer.detokenize(targets[weights == 1]) == "cd;"
    if in_text == "escape":
        assert tokenizer.detokenize(found) == "ua</s>b</</s>s>;acd;"


@pytest.mark.slow
def test_variables_of_all_and_of_one():
    template = text.ChatTemplate("{{ tools | length }}{{ x }}{% generation %}a{% endgeneration %}")
    chats = [{"messages": [user("a")], "tools": TOOLS * 2}, [user("b")]]
    examples = text.conversations(chats, BYTES, template, tools=TOOLS, x=7)
    assert [written([ids[0], *targets]) for ids, targets, _ in examples.as_numpy_iterator()] == ["27a", "17a"]


@pytest.mark.parametrize("call, words", [
    (lambda: text.conversations([], BYTES, text.ChatTemplate(BLOCK)), "`dataset` must be a list of conversations"),
    (lambda: text.conversations(CHATS, BYTES, BLOCK), "`template` must be a ChatTemplate; received"),
    (lambda: text.conversations([*CHATS, [user("a")]], BYTES, text.ChatTemplate(BLOCK)),
     "with an answer of the assistant; received 'ua;' at index 5"),
    (lambda: text.conversations([CHATS[0], [3]], BYTES, text.ChatTemplate(BLOCK)),
     "at index 1 that cannot be rendered: `messages` must be a list of dicts"),
    (lambda: text.conversations([CONVERSATIONS["thoughts"]], BYTES, text.ChatTemplate(PUBLISHED["qwen3"])),
     "at index 0 .* `template` must render the first messages"),
    (lambda: text.instruction((["a"], ["b", "c"]), BYTES), "`dataset` must have columns of one length"),
    (lambda: text.instruction(["a"], BYTES), r"`dataset` must be a tf.data.Dataset of \(prompt, response\)"),
], ids=range(7))  # fmt: skip
def test_bad_calls_raise_by_name(call, words):
    with pytest.raises(ValueError, match=words):
        call()
