"""GenerationScores: BLEU and chrF of generated texts, during `fit`."""

from collections.abc import Sequence
from typing import Any, Unpack

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.generation.option_tables import GenerateOptions
from keras_txf.layers.shown_options import shows_options
from keras_txf.progress import bar

FIXED = (
    "padded", "num_return_sequences", "return_scores", "top_logprobs", "stream", "state", "return_state", "assistant",
    "draft_tokens", "cache",
)  # fmt: skip


@shows_options(defaults="elsewhere")
class GenerationScores(keras.callbacks.Callback):
    """Generates texts for held-out pairs at the end of each epoch, and adds BLEU and chrF to the logs.

    sacrebleu computes `val_bleu` and `val_chrf`, from 0 to 100, over the whole corpus. Later callbacks read the scores
    from the logs: `EarlyStopping("val_bleu", mode="max")`, `ModelCheckpoint`, `CSVLogger`. The history and the progress
    bar show them too. Needs sacrebleu.

    Args:
        inputs: N rows of ids for `model.generate`.
        references: N texts.
        detokenize: a function of a list of ids that returns a text, or an object with such a method, such as a
            tokenizer. It receives the ids that `generate` returns, with the stop token and the prompt of a decoder,
            without ids beyond the tokenizer's vocabulary.
        tokenize: sacrebleu's tokenization of both sides: "13a" (sacrebleu's default), "none" for tokenized texts,
            "intl", "zh", "char" and so on.
        lowercase: whether to ignore case.
        batch_size: the number of rows of similar length in a call of `generate`.
        samples: the number of rows to print with their references.
        prefix: prefix of the names in the logs.
        verbose: 0 shows no progress bar, 1 a bar, "auto" a bar in a terminal after a second.
        {options}

    The options are the options of `model.generate`, with the same defaults.

    Raises:
        ImportError: sacrebleu is not installed.
        ValueError: inputs that are not rows of ids, references that are not strings, different numbers of inputs and
            references, no inputs, an option that `generate` does not have or that changes the form of its result, an
            argument out of range. `generate` raises its own errors at the end of the first epoch; call `score` to see
            them earlier.

    Reference:
        [A Call for Clarity in Reporting BLEU Scores](https://arxiv.org/abs/1804.08771).

    Example:

    ```python
    scores = txf.training.GenerationScores(
        source_ids, texts, tokenizer, samples=3, max_new_tokens=60, start_id=tokenizer.token_to_id("<s>"),
        stop_ids=tokenizer.token_to_id("</s>"),
    )
    model.fit(pairs, epochs=20, callbacks=[scores, keras.callbacks.EarlyStopping("val_bleu", mode="max")])
    scores.score(model)  # at any time
    ```
    """

    def __init__(
        self,
        inputs: Any,
        references: Sequence[str],
        detokenize: Any,
        tokenize: str = "13a",
        lowercase: bool = False,
        batch_size: int = 64,
        samples: int = 0,
        prefix: str = "val_",
        verbose: int | str = "auto",
        **options: Unpack[GenerateOptions],
    ):
        super().__init__()
        inputs, references = _rows(inputs), _texts(references)
        if len(inputs) != len(references) or not len(inputs):
            raise ValueError(
                f"`inputs` and `references` must have the same number of items, at least 1; received {len(inputs)} "
                f"and {len(references)}."
            )
        for name in FIXED:
            if name in options:
                raise ValueError(
                    f"`{name}` must be left out: the callback sets it; received {name}={short_repr(options[name])}."
                )
        checks.known_names("an option of `model.generate`", options, GenerateOptions.__annotations__)
        self.inputs = inputs
        self.references = references
        if isinstance(detokenize, type) and hasattr(detokenize, "detokenize"):
            raise ValueError(f"`detokenize` must be a tokenizer, not its class; received {short_repr(detokenize)}.")
        self.detokenize = getattr(detokenize, "detokenize", detokenize)
        if not callable(self.detokenize):
            raise ValueError(
                f"`detokenize` must be a function, or an object with such a method; received {short_repr(detokenize)}."
            )
        self.known = getattr(detokenize, "vocab_size", float("inf"))
        self.metrics = _metrics(tokenize, checks.boolean("lowercase", lowercase))
        self.batch_size = min(checks.positive_integer("batch_size", batch_size), len(inputs))
        self.samples = checks.integer_between("samples", samples, 0, 2**31 - 1)
        self.prefix = checks.string("prefix", prefix)
        self.verbose = checks.verbosity("verbose", verbose)
        self.options = options

    def set_model(self, model):
        super().set_model(_generating(model))

    def on_epoch_end(self, epoch, logs=None):
        texts = self.generate(self.model)
        if logs is not None:
            logs.update(self._scores(texts))
        print(end="\n" if self.samples else "")  # ends the line of the progress bar
        for text, reference in zip(texts[: self.samples], self.references):
            print(f"reference  {reference}\nmodel      {text}")

    def score(self, model):
        """Returns the scores of a model, a dict."""
        return self._scores(self.generate(model))

    def generate(self, model):
        """Generates the texts of a model, in the order of the inputs."""
        _generating(model)
        texts = [None] * len(self.inputs)
        by_length = np.array(sorted(range(len(self.inputs)), key=lambda i: len(self.inputs[i])))
        starts = range(0, len(texts), self.batch_size)
        for start in bar(starts, unit="batch", name="generating", verbose=self.verbose):
            rows = by_length[start : start + self.batch_size]
            filled = np.resize(rows, self.batch_size)  # a last batch of another size would compile again
            answers = model.generate([self.inputs[i] for i in filled], padded=False, **self.options)
            for i, answer in zip(rows, answers):
                texts[i] = self.detokenize([token for token in answer if token < self.known])
                if not isinstance(texts[i], str):
                    raise ValueError(f"`detokenize` must return a string; received {short_repr(texts[i])}.")
        return texts

    def _scores(self, texts):
        return {
            f"{self.prefix}{name}": metric.corpus_score(texts, [self.references]).score
            for name, metric in self.metrics.items()
        }


def _generating(model):
    if not callable(getattr(model, "generate", None)):
        raise ValueError(
            "`model` must have a method `generate`, as models of decoder_generator and encoder_decoder have; received "
            f"{short_repr(model)}."
        )
    return model


def _rows(inputs):
    """Returns the inputs as rows of ids."""
    inputs = inputs.to_list() if hasattr(inputs, "to_list") else inputs  # a tf.RaggedTensor
    inputs = ops.convert_to_numpy(inputs) if ops.is_tensor(inputs) else inputs
    if not isinstance(inputs, (list, tuple, np.ndarray)) or not all(map(_is_row, inputs)):
        raise ValueError(f"`inputs` must be rows of token ids; received {short_repr(inputs)}.")
    return inputs


def _is_row(row):
    try:
        row = np.asarray(row)
    except ValueError:  # rows of unequal lengths
        return False
    return row.ndim == 1 and (row.dtype.kind in "iu" or not row.size)


def _texts(references):
    references = list(references) if isinstance(references, (list, tuple, np.ndarray)) else references
    return checks.strings("references", references)


def _metrics(tokenize, lowercase):
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as error:
        raise ImportError("BLEU and chrF need sacrebleu: pip install sacrebleu") from error
    checks.one_of("tokenize", tokenize, [*BLEU.TOKENIZERS])
    # `force` silences the warning about texts that look tokenized: the caller has `tokenize` for such texts.
    return {"bleu": BLEU(lowercase=lowercase, tokenize=tokenize, force=True), "chrf": CHRF(lowercase=lowercase)}
