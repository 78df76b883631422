"""Tokenizers: text in, ids out, and back. They run inside TensorFlow's graph and save with the model."""

from keras_txf.text.byte import ByteTokenizer
from keras_txf.text.byte_pair import BytePairTokenizer
from keras_txf.text.characters import CharacterTokenizer
from keras_txf.text.checkpoint import from_checkpoint
from keras_txf.text.sentence_piece import SentencePieceTokenizer
from keras_txf.text.tokenizer import Tokenizer
from keras_txf.text.word_piece import WordPieceTokenizer

__all__ = [
    "ByteTokenizer",
    "BytePairTokenizer",
    "CharacterTokenizer",
    "SentencePieceTokenizer",
    "Tokenizer",
    "WordPieceTokenizer",
    "from_checkpoint",
]
