"""What `TextGenerator` needs to chat: a template, the messages of a call, the tokens that end an answer."""

from keras_txf.reading import file_of, read_json
from keras_txf.tasks.errors import bad_argument
from keras_txf.text.chat_templates import ChatTemplate, read_templates
from keras_txf.text.instruction import ChatReader, to_messages

# A new vocabulary has a special token for each role, and one that ends a message.
ROLES = tuple(f"<|{role}|>" for role in ("system", "user", "assistant", "tool"))
END = "<|end|>"
PLAIN = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' }}"
    "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}<|end|>{% endgeneration %}"
    "{% else %}{{ message.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def template_of(value, tokenizer):
    """Returns the `ChatTemplate` of an argument: one as it is, its `get_config`, a Jinja template, or None."""
    if value is None or isinstance(value, ChatTemplate):
        return value
    if isinstance(value, dict):
        try:
            return ChatTemplate.from_config(value)
        except TypeError as error:
            raise bad_argument("chat_template", "be of `get_config` where it is a dict", value) from error
    if not isinstance(value, str):
        raise bad_argument("chat_template", "be a txf.text.ChatTemplate, a Jinja template or None", value)
    tokens = {"bos_token": [*tokenizer.start, None][0], "eos_token": [*tokenizer.end, None][0],
              "pad_token": tokenizer.pad_token, "unk_token": tokenizer.unk_token}  # fmt: skip
    return ChatTemplate(value, {name: token for name, token in tokens.items() if token is not None})


def needed(template):
    """Returns a template. Raises ValueError for None."""
    if template is None:
        must = (
            "be given to the task, or be in the folder of its checkpoint, for conversations: pass chat_template=, a "
            "Jinja template or `txf.text.chat_template(folder)`, to from_scratch, from_checkpoint or TextGenerator"
        )
        raise bad_argument("chat_template", must, None)
    return template


def is_conversations(values):
    """Whether a column holds conversations: lists of messages, or dicts of them."""
    return bool(values) and isinstance(values[0], (list, dict))


def contents(values):
    """The texts of a column of texts or of conversations, from which a vocabulary is made."""
    if not is_conversations(values):
        return values
    found = []
    for place, conversation in enumerate(values):
        messages = conversation.get("messages") if isinstance(conversation, dict) else conversation
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise bad_argument("texts", "hold strings, or lists of messages", conversation, place)
        if not all("role" in message for message in messages):
            raise bad_argument("texts", "hold messages with 'role' and 'content'", messages, place)
        found += [message["content"] for message in messages if isinstance(message.get("content"), str)]
    return found


def conversations_of(messages):
    """Returns a list of conversations, and a function that gives the answer to one alone where there was one.

    Args:
        messages: a text of a user, a list of messages; or a list of such texts or lists.
    """
    is_list = isinstance(messages, (list, tuple)) and bool(messages)
    one = isinstance(messages, str) or (is_list and isinstance(messages[0], dict))
    if not one and not is_list:
        raise bad_argument("messages", "be a text, a list of messages, or a list of such", messages)
    many = [messages] if one else messages
    many = [to_messages(conversation) if isinstance(conversation, str) else conversation for conversation in many]
    return many, (lambda answers: answers[0]) if one else (lambda answers: answers)


def rendered(render, conversations):
    """Renders conversations; an error names the conversation where there are several."""
    texts = []
    for place, conversation in enumerate(conversations):
        try:
            texts.append(render(conversation))
        except ValueError as error:
            if len(conversations) == 1:
                raise
            message = f"`messages` has a conversation at place {place} that cannot be rendered: {error}"
            raise ValueError(message) from error
    return texts


def end_ids(template, tokenizer):
    """The ids that end an answer: the special token after it in the template, `eos_token`, the tokenizer's `end`."""
    special, answer = tokenizer.special_tokens, "answer"
    found = {special.get(token) for token in (template.special_tokens.get("eos_token"), *tokenizer.end[:1])}
    try:
        _, _, rest = template.render(to_messages("question", answer)).rpartition(answer)
    except ValueError:  # a template that needs more messages
        rest = ""
    after = ChatReader(tokenizer)([rest]).to_list()[0]
    found.update([id for id in after if id in special.values()][:1])
    return sorted(found - {None})


def with_end(tokenizer, folder):
    """Returns a tokenizer that ends a text, with the end token of a checkpoint's folder where it has none."""
    if tokenizer.end:
        return tokenizer
    _, tokens = read_templates(folder)
    config = file_of(folder, "config.json")
    id = read_json(config).get("eos_token_id") if config.is_file() else None
    id = id[0] if isinstance(id, list) and id else id
    known = isinstance(id, int) and 0 <= id < tokenizer.vocab_size
    token = tokens.get("eos_token", tokenizer.id_to_token(id) if known else None)
    if token not in tokenizer.special_tokens:
        return tokenizer
    return tokenizer.from_config({**tokenizer.get_config(), "end": [token]})
