"""What the tests of tokenizers share: a small text to learn from, one tokenizer of each kind, and hard strings."""

import functools
import io
import json

import sentencepiece
from hypothesis import strategies as st

from keras_txf import text
from keras_txf.text import bert
from keras_txf.text.lazy_imports import tf

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "A fox is no dog; dogs aren't foxes. The dogs jumped, the foxes slept!",
    "Ein kleiner Fuchs läuft über die Straße, denn der Hund schläft: «ÄÖÜ».",
    "Ο γρήγορος σκύλος ΟΔΥΣΣΕΥΣ, İstanbul, naïve façade, e\u0301te\u0301, ﬁne",
    "狗和狐狸在睡觉。 개와 여우가 자고 있다. 犬と狐が眠っている。",
    "1 + 1 = 2, [3, 4] <tag> {x_1} 100 % ~ `a` | b \\ c @ d # e $ f ^ g & h * i",
] * 3

# Of each of these one must do what it does to Unicode differently from the letters of English.
HARD = "".join(
    chr(code)
    for ranges in (bert.WHITESPACE, bert.CONTROL, bert.PUNCTUATION, bert.REORDERED, bert.NOT_DECOMPOSED)
    for code in bert.code_points(ranges)[:40]
)
HARD += "İıſẞßΣςσŉǰΐΰ\u0301\u0327\u0345\u0334\u0903\u302e\U0001d165\U0001d15e"
HARD += "한각가힣漢\uf900\ufa0eÅÅỐﬁ\0\ufffd\U0001e94a\U0001e944\U00010570ꟋĲ𐐀"

WORDS = "The fox dogs naïve ÄÖÜ 狗和 sleeping !? [MASK] </s> ##s".split()
STRINGS = st.lists(
    st.one_of(st.text(max_size=30), st.text(st.sampled_from(HARD), max_size=30),
              st.text(st.sampled_from("ab Éé漢!'\u0301\u034f\u1b44\u302e"), max_size=30),
              st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)),
    max_size=6,
)  # fmt: skip


LEARN = {
    "WordPiece": lambda: text.WordPieceTokenizer.train(CORPUS, 300),
    "unigram": lambda: text.SentencePieceTokenizer.train(CORPUS, 200),
    "bpe": lambda: text.SentencePieceTokenizer.train(CORPUS, 480, "bpe", byte_fallback=True, normalization="identity"),
    "bytes": lambda: text.ByteTokenizer(),
    "characters": lambda: text.CharacterTokenizer.train(CORPUS, special_tokens=["[PAD]", "[UNK]", "[START]", "[END]"]),
    "byte pairs": lambda: text.BytePairTokenizer.train(CORPUS, 320),
}


@functools.cache
def learnt(name, /, **options):
    """A tokenizer of the corpus. All that have a name have the same vocabulary."""
    if not options:
        return LEARN[name]()
    tokenizer = learnt(name)
    return type(tokenizer).from_config({**tokenizer.get_config(), **options})


START_AND_END = {
    "WordPiece": ("[CLS]", "[SEP]"), "bytes": ("</s>", "</s>"), "characters": ("[START]", "[END]"),
    **dict.fromkeys(["unigram", "bpe", "byte pairs"], ("<s>", "</s>")),
}  # fmt: skip


def columns(*parts):
    """A data set of tuples, or of the values of one column."""
    return tf.data.Dataset.from_tensor_slices(parts if len(parts) > 1 else parts[0])


PIPELINES = {  # the names of the columns, and a function of a data set, a tokenizer and a length
    "classification": ("text, label", lambda data, ids, *most: text.classification(data, ids, 3, *most)),
    "sentence pairs": ("first, second, label", lambda data, ids, *most: text.sentence_pairs(data, ids, 3, *most)),
    "next token": ("text", text.next_token),
    "translation": ("source, target", lambda data, ids, *most: text.translation(data, ids, None, *most)),
    "question answering":
        ("context, question, answer", lambda data, ids, *most: text.question_answering(data, ids, None, *most)),
    "masking": ("text", text.masked_language_modelling),
    "contrastive": ("anchor, positive", text.contrastive_pairs),
}  # fmt: skip


def columns_of(name, texts, others=None, labels=None):
    """The columns of a pipeline: its texts, the others in the second column, the labels."""
    names = PIPELINES[name][0].split(", ")
    others, labels = others or texts, labels or [0] * len(texts)
    return [labels if column == "label" else others if i == 1 else texts for i, column in enumerate(names)]


def piece_model(lines=CORPUS, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, minloglevel=2, hard_vocab_limit=False, **options
    )
    return model.getvalue()


def folder_of(base, files):
    for name, content in files.items():
        content = json.dumps(content) if isinstance(content, dict) else content
        (base / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return base


class Named(dict):
    """What hypothesis prints short."""

    def __repr__(self):
        return f"Named({sorted(self)})"
