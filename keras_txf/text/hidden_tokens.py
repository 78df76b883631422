"""Special tokens under names that no text has, for the package `tokenizers`: ordinary text never becomes one."""

import functools
import json
import secrets

from keras_txf.checks import short_repr
from keras_txf.text.lazy_imports import tokenizers

PREFIX = secrets.token_hex(16)  # of this process; letters and digits, which normalizers leave alone


def escaping(kernel, parts, special):
    """Returns a tokenizer with the same ids that takes special tokens in a text for ordinary text.

    Args:
        kernel: `tokenizers.Tokenizer`. It is changed, or not used any more.
        parts: the parsed JSON of `kernel`.
        special: list of its special tokens.
    """
    if not _makes(parts["model"], _hidden(parts["model"], special)):
        kernel.encode_special_tokens = True
        return kernel
    return _renamed(parts, special)[0]


@functools.lru_cache(maxsize=4)
def with_secret_names(definition):
    """Returns a tokenizer that finds special tokens under secret names alone, and a dict of these names by token.

    Args:
        definition: JSON of a `tokenizers.Tokenizer`, without padding and truncation.
    """
    parts = json.loads(definition)
    return _renamed(parts, [token["content"] for token in parts["added_tokens"] if token["special"]])


def _hidden(model, special):
    """The special tokens that are pieces of a model, without the unknown token."""
    pieces = model["vocab"] if isinstance(model["vocab"], dict) else dict(model["vocab"])
    return {token for token in special if token in pieces} - {model.get("unk_token")}


def _makes(model, hidden):
    """Whether a model may make one of these pieces of ordinary text."""
    if model["type"] != "BPE" or model.get("ignore_merges"):  # whole words or pieces are looked up
        return bool(hidden)
    return any(_merged(model, _pair(merge)) in hidden for merge in model["merges"])


def _pair(merge):
    return merge if isinstance(merge, list) else merge.split(" ", 1)


def _merged(model, pair):
    return pair[0] + pair[1].removeprefix(model.get("continuing_subword_prefix") or "")


def _renamed(parts, special):
    """The tokenizer of `parts` that has its special tokens under secret names, and these names by token.

    The unknown token keeps its name.
    """
    model = dict(parts["model"])
    names = {token: f"{PREFIX}{token.encode().hex()}x" for token in special if token != model.get("unk_token")}
    pieces = model["vocab"]
    if isinstance(pieces, dict):
        model["vocab"] = {names.get(piece, piece): id for piece, id in pieces.items()}
    else:
        model["vocab"] = [[names.get(piece, piece), value] for piece, value in pieces]
    if model["type"] == "BPE":
        pairs = [_pair(merge) for merge in model["merges"]]
        model["merges"] = [pair for pair in pairs if names.keys().isdisjoint([*pair, _merged(model, pair)])]
    added = [
        {**token, "content": names[token["content"]], "special": False} if token["content"] in names else token
        for token in parts["added_tokens"]
    ]
    others = {**parts, "model": model, "added_tokens": added, "post_processor": None}
    encoder = tokenizers.Tokenizer.from_str(json.dumps(others))
    encoder.encode_special_tokens = True
    for token in parts["added_tokens"]:
        if encoder.token_to_id(names.get(token["content"], token["content"])) != token["id"]:
            raise ValueError(
                "`definition` must keep the ids of special tokens under other names; received "
                f"{short_repr(token['content'])}, which has another id then."
            )
    return encoder, names
