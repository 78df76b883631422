"""What the tests of chats share: published templates, conversations, a folder of a small tokenizer."""

import json
import pathlib

import keras_txf as txf

FOLDER = pathlib.Path(__file__).parent / "text" / "chat_templates"
PUBLISHED = {file.stem: file.read_text(encoding="utf-8") for file in sorted(FOLDER.glob("*.jinja"))}
TOKENS = {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<pad>"}


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


SYSTEM = {"role": "system", "content": "Be brief – «kurz»."}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"place": "Zürich", "days": 2}}}
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string", "description": "A <town> & 'more'."}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Says it.", "parameters": PARAMETERS}}]
CONVERSATIONS = {
    "one turn": [user("What is 2 + 3?")],
    "system": [SYSTEM, user("Hello!")],
    "several turns": [SYSTEM, user("Hello!"), assistant("Hi. What now?"), user("a\n\n b "), assistant("\nYes, <b>\n")],
    "reasoning": [user("2 + 3?"), assistant("5", reasoning_content="Two and three.")],
    "thoughts": [user("2 + 3?"), assistant("<think>\nHm.\n</think>\n\n5"), user("4 + 4?"), assistant("8")],
    "call": [user("Will it rain?"), assistant("", tool_calls=[CALL]),
             {"role": "tool", "name": "weather", "content": "No."}, assistant("No.")],
    "parts": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]},
              {"role": "assistant", "content": [{"type": "text", "text": "A cat."}]}],
    "none": [{"role": "user", "content": "Hello!", "tool_calls": None, "name": None}],
}  # fmt: skip


def tokenizer_folder(folder, template=None, **config):
    """Writes a folder with a tokenizer of byte pairs whose special tokens are those of the templates."""
    special = ["<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>", "<|system|>",
               "<|end|>", "<|start|>", "<|message|>", "<|channel|>", "<|return|>"]  # fmt: skip
    texts = [str(message["content"]) for messages in CONVERSATIONS.values() for message in messages] * 2
    tokenizer = txf.text.BytePairTokenizer.train(texts + ["user assistant system\n"] * 3, 330, special)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(tokenizer.get_config()["definition"], encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **TOKENS, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder
