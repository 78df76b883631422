"""Tokenizers, and pipelines from text to `fit`.

Tokenizers turn text into ids, and ids into text. They run inside TensorFlow's graph, and `.keras` files hold them. A
pipeline turns a `tf.data.Dataset` of text into examples for a task; `batch_by_length` or `pack` makes batches of the
examples. `tf.data` itself orders, shuffles, caches, shards and checkpoints. `export` writes a trained model as a
SavedModel of strings.
"""

from keras_txf.text.batching import batch_by_length, bucket_lengths, counted
from keras_txf.text.byte_pair import BytePairTokenizer
from keras_txf.text.characters import ByteTokenizer, CharacterTokenizer
from keras_txf.text.chat_templates import ChatTemplate, chat_template
from keras_txf.text.checkpoint import from_checkpoint
from keras_txf.text.examples import (
    classification,
    contrastive_pairs,
    contrastive_targets,
    next_token,
    question_answering,
    sentence_pairs,
    token_ids,
    translation,
)
from keras_txf.text.export import export
from keras_txf.text.instruction import conversations, instruction
from keras_txf.text.masking import mask_tokens, masked_language_modelling
from keras_txf.text.packing import pack
from keras_txf.text.preferences import preferences
from keras_txf.text.sentence_piece import SentencePieceTokenizer
from keras_txf.text.tags import token_classification
from keras_txf.text.tokenizer import Tokenizer
from keras_txf.text.word_piece import WordPieceTokenizer

__all__ = [
    "ByteTokenizer",
    "BytePairTokenizer",
    "CharacterTokenizer",
    "ChatTemplate",
    "SentencePieceTokenizer",
    "Tokenizer",
    "WordPieceTokenizer",
    "batch_by_length",
    "bucket_lengths",
    "chat_template",
    "classification",
    "contrastive_pairs",
    "contrastive_targets",
    "conversations",
    "counted",
    "export",
    "from_checkpoint",
    "instruction",
    "mask_tokens",
    "masked_language_modelling",
    "next_token",
    "pack",
    "preferences",
    "question_answering",
    "sentence_pairs",
    "token_classification",
    "token_ids",
    "translation",
]
