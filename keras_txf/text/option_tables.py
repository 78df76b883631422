"""The options of tokenizers: the type, default and meaning of each; see `layers.shown_options`."""

from typing import Annotated

from keras_txf.layers.option_tables import LayerOptions


class TokenizerOptions(LayerOptions, total=False):
    """Options of every tokenizer."""

    length: Annotated[
        int | str | None,
        None,
        'None for ragged ids; "longest" to pad ids to the longest text of the batch; or an integer, to pad or truncate '
        "each text to. Truncation keeps the tokens of `start` and `end`.",
    ]
    start: Annotated[
        str | list[str] | tuple[str, ...] | None,
        None,
        "a special token, or a list of them, before the ids of each text. Calling the tokenizer adds them, `tokenize` "
        "does not.",
    ]
    end: Annotated[str | list[str] | tuple[str, ...] | None, None, "the same after the ids of each text."]
    special_tokens_in_text: Annotated[
        str,
        "escape",
        '"escape" takes the special tokens in a text for ordinary text, so that no user can insert one; "keep" gives '
        "each its own id.",
    ]
    padding_side: Annotated[str, "right", '"right" or "left".']
    truncation_side: Annotated[str, "right", '"right" or "left".']
    added_tokens: Annotated[
        list[str] | tuple[str, ...],
        (),
        "list of str, tokens of the vocabulary that get their own id wherever they stand in a text, as special tokens "
        'do, but are text: `detokenize` shows them, and "escape" does not hide them.',
    ]


class WordPieceOptions(TokenizerOptions, total=False):
    """Options of `WordPieceTokenizer`."""

    lowercase: Annotated[bool, True, "whether to lower-case text."]
    strip_accents: Annotated[bool | None, None, "whether to drop accents; default, as `lowercase`."]
    split_chinese: Annotated[bool, True, "whether each Chinese character is a word."]
    clean: Annotated[bool, True, "whether control characters are dropped."]
    special_tokens: Annotated[
        list[str] | tuple[str, ...] | None,
        None,
        "list of str, the special tokens; default `[PAD]`, `[UNK]`, `[CLS]`, `[SEP]` and `[MASK]`, those of them that "
        "a given vocabulary has.",
    ]
    pad_token: Annotated[str | None, "[PAD]", "the special token of padding."]
    unk_token: Annotated[
        str | None, "[UNK]", "the special token of unknown words, among them those longer than 100 characters."
    ]


class CharacterOptions(TokenizerOptions, total=False):
    """Options of `CharacterTokenizer`."""

    pad_token: Annotated[str | None, "[PAD]", "the special token of padding."]
    unk_token: Annotated[str | None, "[UNK]", "the special token of characters that are not in the vocabulary."]


class BytePairOptions(TokenizerOptions, total=False):
    """Options of `BytePairTokenizer`."""

    pad_token: Annotated[
        str | None,
        None,
        "special token of padding; default `<pad>` or `[PAD]` where there is one, else None. A tokenizer without one, "
        "such as GPT-2's, can pad with any special token.",
    ]


class SentencePieceOptions(TokenizerOptions, total=False):
    """Options of `SentencePieceTokenizer`."""

    extra_tokens: Annotated[
        list[str] | tuple[str, ...],
        (),
        "list of str, tokens whose ids follow those of the model, such as T5's `<extra_id_99>`, ..., `<extra_id_0>`. "
        "They are special, but for those among the `added_tokens`.",
    ]
    prefix_space: Annotated[
        str | None,
        None,
        'where to add a space: "first", before the first word of a text; "always", after special tokens too; "never". '
        'Default, "always" or "never" as in the model. "always" is `legacy=True` of Hugging Face\'s T5 and Llama, '
        '"first" is `legacy=False`.',
    ]
    pad_token: Annotated[
        str | None,
        None,
        "special token of padding; default `<pad>` where the model has it, else None. A model without one, such as "
        "Llama's, can pad with any special token.",
    ]


class AnyTokenizerOptions(WordPieceOptions, SentencePieceOptions, total=False):
    """Options of the tokenizers that a folder may ask for."""
