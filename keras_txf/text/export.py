"""export: a model with its tokenizers as a SavedModel, string in, string out, without this package or Keras.

Legend: B texts, C classes, D model dim.
"""

import inspect
import os
from collections.abc import Sequence
from typing import Unpack

import keras

from keras_txf import checks
from keras_txf.checks import bad_argument, short_repr
from keras_txf.disk import atomic_folder, writing
from keras_txf.generation.option_tables import ExportOptions
from keras_txf.layers.shown_options import shows_options
from keras_txf.progress import bar
from keras_txf.text.byte_pair import BytePairTokenizer
from keras_txf.text.lazy_imports import tf
from keras_txf.text.serving import classifier, completer, logits_of, pair_classifier, tagger, translator
from keras_txf.text.tokenizer import Tokenizer


@shows_options(defaults="elsewhere")
def export(
    model: keras.Model,
    tokenizer: Tokenizer,
    folder: str | os.PathLike,
    target_tokenizer: Tokenizer | None = None,
    labels: Sequence[str] | None = None,
    overwrite: bool = False,
    pairs: bool = False,
    separator: str | Sequence[str] | None = None,
    verbose: int | str = "auto",
    multi_label: bool = False,
    thresholds: Sequence[float] | None = None,
    **options: Unpack[ExportOptions],
) -> None:
    """Writes a SavedModel that takes text and returns answers, with the tokenizer and the decoding loop inside.

    Use it to serve a model by TensorFlow Serving, or in a process that imports only `tensorflow` and
    `tensorflow_text`. The answers depend on the model, and their numbers are float32 under every policy:

    - a classifier, from `encoder_classifier` or with `labels`: `logits` (B, C). With `labels` also `probabilities` (B,
      C) and `label`, string (B,), the most probable class. With `multi_label` the probabilities are sigmoids, and
      `labels`, string (B, C), has "" for each label whose probability is not above its threshold;
    - a classifier of tokens with `labels`, such as a `token_classifier`: `word`, string (B, W), the words of the texts,
      split at blanks and around punctuation, `tag` (B, W), and `score`, the tag's probability. Shorter texts are padded
      with "" and 0. Words beyond the tokenizer's `length` have the tag "";
    - any other model with one vector for a text: `embeddings` (B, D);
    - from `decoder_generator`: `text`, string (B,), the prompt and its continuation, and `scores` (B,), see `Scored`;
    - from `encoder_decoder`: `text`, the answer, and `scores`.

    With `pairs` a classifier reads two texts in one row, see `sentence_pairs`. A model of one logit then also returns
    `score` (B,), the sigmoid of the logit.

    The signature `serving_default` and the loaded object's `serve` take `text`, string (B,), or a list; with `pairs`
    `first` and `second`. `serve_ragged` takes ragged text (B, any). The answers equal the answers in Python, such as
    `tokenizer.detokenize(model.generate(tokenizer(text)))`, up to the rounding of floats. The tokenizer's `length`
    truncates a longer text. A prompt begins with the tokenizer's `start` and has no `end`. The answer to a prompt
    without a token is empty.

    Args:
        model: a functional model from a builder, or a model on top of it, such as `Pooling` on an `encoder`; or a
            `Sequential` that knows its inputs.
        tokenizer: tokenizer of the texts.
        folder: the new folder, such as `models/translator/1`. `export` makes the folders above.
        target_tokenizer: tokenizer of an encoder-decoder's answers; default `tokenizer`.
        labels: list of str, the names of the C classes.
        overwrite: whether the new SavedModel replaces an older SavedModel, by two renames. Between the two, no folder
            has the name.
        pairs: whether the model reads pairs of texts.
        separator: separator of the two texts of a pair, see `sentence_pairs`.
        verbose: 0 shows no progress bar, 1 a bar, "auto" a bar in a terminal after a second.
        multi_label: whether a text may have several of the `labels`.
        thresholds: with `multi_label`, list of C numbers between 0 and 1; default 0.5 for each label.
        {options}

    The options are the options of the model's `generate`, with its defaults, fixed in the SavedModel. Answers stop at
    the first token of `end` of their tokenizer, unless the caller passes `stop_ids` or `stop_sequences` (`stop_ids=[]`:
    nowhere). Answers of an encoder-decoder begin with the first token of `start`. Random draws depend on `seed` and the
    index of a text in the batch. With a seed all calls draw the same, and with `jit_compile` the same as `generate`.
    Without a seed each call draws anew.

    Raises:
        ValueError: another backend than TensorFlow, a `BytePairTokenizer`, which runs in Python, a vocabulary, padding
            or length that the model does not have, options that do not fit the model, a folder that exists, a disk that
            is full or read-only.

    Example:

    ```python
    txf.text.export(model, english, "translator", target_tokenizer=german, sampler=txf.generation.Beam(5))

    import tensorflow as tf, tensorflow_text  # another process
    translator = tf.saved_model.load("translator")
    translator.serve(["A dog runs.", "Two."])["text"]
    ```
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"`export` needs Keras on TensorFlow; received the backend {short_repr(keras.backend.backend())}."
        )
    if not isinstance(model, keras.Model) or not getattr(model, "inputs", None):
        raise bad_argument("model", "be a functional Keras model that is built", model)
    if isinstance(model, keras.Sequential):  # a `Sequential` has no `input` before its first call
        model = keras.Model(model.inputs[0], model.outputs[0], name=model.name)
    _check_target(checks.path("folder", folder), checks.boolean("overwrite", overwrite))
    for name, value in (("tokenizer", tokenizer), ("target_tokenizer", target_tokenizer)):
        if (value is not None or name == "tokenizer") and not isinstance(value, Tokenizer):
            raise bad_argument(name, "be a tokenizer of `txf.text`", value)
        if isinstance(value, BytePairTokenizer):
            must = "run in TensorFlow's graph, unlike a BytePairTokenizer"
            raise bad_argument(name, must, value)
    checks.known_names("an option of `export`", options, ExportOptions.__annotations__)
    own = {
        "target_tokenizer": target_tokenizer, "labels": labels, "separator": separator, "thresholds": thresholds
    }  # fmt: skip
    own["multi_label"] = checks.boolean("multi_label", multi_label) or None
    options |= {name: value for name, value in own.items() if value is not None}
    answer = _task(model, options, checks.boolean("pairs", pairs))(model, tokenizer, **options)
    names = ["first", "second"] if pairs else ["text"]
    with (
        bar(total=3, unit="step", name="export", verbose=verbose) as shown,
        writing("folder", folder, tf.errors.OpError),
        atomic_folder(folder) as temporary,
    ):
        _save(answer, model, names, str(temporary), shown)


def _check_target(folder, overwrite):
    """Raises ValueError if the folder exists, unless it holds a SavedModel and `overwrite` is True."""
    if folder.exists() and not (overwrite and (folder / "saved_model.pb").is_file()):
        why = "holds no SavedModel: remove it yourself" if overwrite else "exists: overwrite=True replaces a SavedModel"
        raise ValueError(f"`folder` must be new; received {short_repr(str(folder))}, which {why}.")


def _save(answer, model, names, path, shown):
    texts = [tf.TensorSpec([None], tf.string, name) for name in names]
    traced = tf.function(answer, texts, autograph=False).get_concrete_function()  # a tf.function would be traced twice
    shown.update()

    def serve(text):
        return traced(text)

    def serve_pairs(first, second):
        return traced(first, second)

    def serve_ragged(text):
        return {name: text.with_values(value) for name, value in traced(text.values).items()}

    module = tf.Module()
    module.variables_of_model = [variable.value for variable in model.variables]
    # With a signature a list becomes a tensor; without, each new list of strings would be traced.
    is_one = len(texts) == 1
    module.serve = tf.function(serve if is_one else serve_pairs, input_signature=texts, autograph=False)
    if is_one:
        ragged = [tf.RaggedTensorSpec([None, None], tf.string)]
        module.serve_ragged = tf.function(serve_ragged, input_signature=ragged, autograph=False)
    shown.update()
    tf.saved_model.save(module, path, {"serving_default": module.serve.get_concrete_function()})
    shown.update()


def _task(model, options, pairs):
    """Returns the function of `serving` for a model. Raises ValueError for options that do not fit the model."""
    generates = hasattr(model, "generate")
    takes_more = {tensor.name for tensor in model.inputs if "float" in tensor.dtype or "bool" in tensor.dtype}
    if generates and takes_more:
        raise bad_argument("model", "take token ids, and nothing else", sorted(takes_more))
    has_source = generates and "source_ids" in inspect.signature(model.generate).parameters
    if pairs and generates:
        raise ValueError(f"`pairs` must be False for a model that generates, {short_repr(model.name)}; received True.")
    if generates:
        make = translator if has_source else completer
    elif pairs:
        make = pair_classifier
    else:
        rank = len(getattr(logits_of(model.output), "shape", ()))
        make = tagger if "labels" in options and rank == 3 else classifier
    allowed = {*ExportOptions.__annotations__} if generates else {"labels"}
    own = {translator: {"target_tokenizer"}, pair_classifier: {"separator"}}
    if make is classifier and "labels" in options:
        allowed |= {"multi_label", *(["thresholds"] if "multi_label" in options else [])}
    allowed |= own.get(make, set())
    for name in sorted({*options} - allowed):
        raise ValueError(f"`{name}` does not fit the model {short_repr(model.name)}: {sorted(allowed)} do.")
    return make
