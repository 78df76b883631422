"""The packages that a tokenizer imports at its first use: TensorFlow, tensorflow-text and the optional ones."""

import importlib

from keras_txf.checks import short_repr


class Package:
    """Imports a package at the first use of one of its names."""

    def __init__(self, load):
        self._load = load

    def __getattr__(self, name):
        return getattr(self._load(), name)


def _tensorflow():
    import tensorflow

    return tensorflow


def _tensorflow_text():
    import tensorflow_text

    return tensorflow_text


def _optional(name):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"This needs the package {short_repr(name)}: pip install {name}.") from error


tf = Package(_tensorflow)
tf_text = Package(_tensorflow_text)
tokenizers = Package(lambda: _optional("tokenizers"))
sentencepiece = Package(lambda: _optional("sentencepiece"))
jinja2 = Package(lambda: [_optional(f"jinja2{part}") for part in ("", ".ext", ".sandbox")][0])
