"""Packages that a tokenizer imports at its first use: TensorFlow, tensorflow-text and optional packages."""

import functools
import importlib

from keras_txf.backend.startup import INSTALL, without_startup_lines
from keras_txf.checks import short_repr


class Package:
    """Imports a package at the first use of one of its names."""

    def __init__(self, load):
        self._load = load

    def __getattr__(self, name):
        return getattr(self._load(), name)


def require_tensorflow():
    """Imports TensorFlow. If it is missing, the ImportError tells how to install it."""
    needed = f"Tokenizers, pipelines and tasks need TensorFlow, on every backend: {INSTALL.format('tensorflow')}."
    with without_startup_lines():
        return _required("tensorflow", needed)


def require_tensorflow_text():
    """Imports TensorFlow, then tensorflow-text. If one is missing, the ImportError tells how to install it."""
    require_tensorflow()
    needed = "WordPiece, SentencePiece and the splitting into words need tensorflow-text: "
    return _required("tensorflow_text", f"{needed}pip install tensorflow-text; there is no version for Windows.")


def require_jinja2():
    return _optional("jinja2")


def _required(name, needed):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ImportError(needed) from error


def _optional(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"This needs the package {short_repr(name)}: pip install {name}.") from error


tf = Package(functools.cache(require_tensorflow))
tf_text = Package(functools.cache(require_tensorflow_text))
tokenizers = Package(lambda: _optional("tokenizers"))
sentencepiece = Package(lambda: _optional("sentencepiece"))
