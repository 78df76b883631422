"""Tokens that a tokenizer gets after its training, and the files of its folder that say so."""

import json

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.reading import file_of, read_json
from keras_txf.text.byte_pair import BytePairTokenizer
from keras_txf.text.folder_files import TOKENS, added_entries, read_tokenizer_config
from keras_txf.text.sentence_piece import SentencePieceTokenizer
from keras_txf.text.word_piece import WordPieceTokenizer

RULES = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def with_tokens(tokenizer, tokens):
    """Returns a tokenizer with more tokens, whose ids follow the old ones.

    Each is one token wherever it stands in a text; `detokenize` does not skip it.

    Args:
        tokenizer: `WordPieceTokenizer`, `SentencePieceTokenizer` or `BytePairTokenizer`.
        tokens: list of str.
    """
    if type(tokenizer) not in CHANGES:
        names = [kind.__name__ for kind in CHANGES]
        raise ValueError(
            f"`tokenizer` must be of a class that takes more tokens, one of {names}; received {short_repr(tokenizer)}."
        )
    tokens = checks.strings("tokens", tokens)
    known = set(all_tokens(tokenizer))
    again = [token for place, token in enumerate(tokens) if token in known or token in tokens[:place]]
    if again or not tokens or not all(tokens):
        raise ValueError(
            f"`tokens` must hold strings that are not tokens yet, each once; received {short_repr(again or tokens)}."
        )
    config = tokenizer.get_config()
    return type(tokenizer).from_config({**config, **CHANGES[type(tokenizer)](config, tokens)})


def all_tokens(tokenizer):
    """Returns the list of the tokens, in the order of their ids."""
    return [tokenizer.id_to_token(id) for id in range(tokenizer.vocab_size)]


def files_of_more_tokens(folder, before, after):
    """Returns the files that change where a folder's tokenizer gets more tokens: dict of names -> texts.

    Args:
        folder: path of the folder.
        before, after: the tokenizer, and the one that `with_tokens` returns.
    """
    path, config, definition = file_of(folder, "tokenizer.json"), read_tokenizer_config(folder), None
    if isinstance(before, BytePairTokenizer):
        definition = json.loads(before.get_config()["definition"])
    elif path.is_file():
        definition = read_json(path)
    # Lowercasing WordPiece finds added tokens in capital and in small letters, as `normalized` asks for.
    own = {**RULES, "normalized": isinstance(before, WordPieceTokenizer), "special": False}
    new = {id: {"content": after.id_to_token(id), **own} for id in range(before.vocab_size, after.vocab_size)}
    entries = {id: {"content": token, **RULES, "special": True} for token, id in before.special_tokens.items()}
    listed = [] if definition is None else definition.get("added_tokens") or []
    entries.update({entry["id"]: {name: entry[name] for name in entry if name != "id"} for entry in listed})
    entries.update({id: {**RULES, "special": False, **entry} for id, entry in added_entries(folder, config).items()})
    typed = {name: {"__type": "AddedToken", **config[name]} for name in TOKENS if isinstance(config.get(name), dict)}
    decoder = {str(id): entry for id, entry in sorted({**entries, **new}.items())}
    files = {"tokenizer_config.json": {**config, **typed, "added_tokens_decoder": decoder}}
    if definition is not None:
        more = [{"id": id, **entry} for id, entry in new.items()]
        files["tokenizer.json"] = {**definition, "added_tokens": [*listed, *more]}
    return {name: json.dumps(values, indent=2, ensure_ascii=False) + "\n" for name, values in files.items()}


def _more_words(config, tokens):
    pieces = [token for token in tokens if token.startswith("##")]
    if pieces:
        raise ValueError(f"`tokens` must not begin with ##, as pieces within words do; received {short_repr(pieces)}.")
    return {"vocabulary": [*config["vocabulary"], *tokens], "added_tokens": [*config["added_tokens"], *tokens]}


def _more_pieces(config, tokens):
    return {"extra_tokens": [*config["extra_tokens"], *tokens], "added_tokens": [*config["added_tokens"], *tokens]}


def _more_entries(config, tokens):
    definition = json.loads(config["definition"])
    first = 1 + max(_ids(definition))
    more = [{"id": first + i, "content": token, **RULES, "special": False} for i, token in enumerate(tokens)]
    definition["added_tokens"] = [*(definition.get("added_tokens") or []), *more]
    return {"definition": json.dumps(definition, ensure_ascii=False), "added_tokens": []}


def _ids(definition):
    """Returns all ids of a definition of `tokenizers`: a model has its tokens by id, or in their order."""
    pieces = definition["model"]["vocab"]
    ids = [*pieces.values()] if isinstance(pieces, dict) else [*range(len(pieces))]
    return ids + [entry["id"] for entry in definition.get("added_tokens") or []]


CHANGES = {  # class -> function of a configuration and of tokens that returns what changes in the configuration
    WordPieceTokenizer: _more_words, SentencePieceTokenizer: _more_pieces, BytePairTokenizer: _more_entries,
}  # fmt: skip
