"""Tasks on text: a model and a tokenizer that train on strings and answer in strings."""

from keras_txf.tasks.masked_language_model import MaskedLanguageModel
from keras_txf.tasks.pair_classifier import PairClassifier
from keras_txf.tasks.question_answerer import QuestionAnswerer
from keras_txf.tasks.text_classifier import TextClassifier
from keras_txf.tasks.text_embedder import TextEmbedder
from keras_txf.tasks.text_generator import TextGenerator
from keras_txf.tasks.text_to_text import TextToText
from keras_txf.tasks.token_classifier import TokenClassifier

__all__ = [
    "MaskedLanguageModel",
    "PairClassifier",
    "QuestionAnswerer",
    "TextClassifier",
    "TextEmbedder",
    "TextGenerator",
    "TextToText",
    "TokenClassifier",
]
