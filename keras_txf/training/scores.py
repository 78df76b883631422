"""BLEU and chrF of what a model generates, during `fit`."""

import keras
import numpy as np
from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr

# Of `model.generate`.
OPTIONS = ("max_new_tokens", "sampler", "stop_ids", "seed", "start_id", "max_length", "stop_sequences", "processors")
FIXED = ("padded", "num_return_sequences", "return_scores", "stream")


class GenerationScores(keras.callbacks.Callback):
    """Generates for held-out pairs at the end of each epoch, and puts BLEU and chrF into its logs.

    They are `val_bleu` and `val_chrf`, from 0 to 100, as sacrebleu computes them over the whole corpus. The
    callbacks after this one find them there: `EarlyStopping("val_bleu", mode="max")`, `ModelCheckpoint`,
    `CSVLogger`; the history and the progress bar too. Needs sacrebleu.

    Args:
        inputs: what `model.generate` takes: N rows of ids.
        references: N texts.
        detokenize: a function of a list of ids that returns a text, or an object with such a method, as
            tokenizers have. It sees what `generate` returns, its stop token and a decoder's prompt included, but no
            ids beyond the tokenizer's, of which models may have some: they stand for no text.
        tokenize: sacrebleu's tokenization of both sides: "13a", its default; "none" where texts are
            tokenized; "intl", "zh", "char" and so on.
        lowercase: whether case counts for nothing.
        batch_size: rows that are generated together, of like length.
        samples: so many of the first rows are printed, with their references.
        prefix: of the names in the logs.
        **options: of `model.generate`: `max_new_tokens`, `sampler`, `stop_ids`, `start_id` ...

    Raises:
        ImportError: sacrebleu is missing.
        ValueError: inputs that are no rows of ids, references that are no strings, unequal numbers of them, none at all,
            an option that `generate` does not have or that changes the form of what it returns, an argument out of range.
            What `generate` itself refuses comes up at the end of the first epoch: call `score` before to see it.

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
        self, inputs, references, detokenize, tokenize="13a", lowercase=False, batch_size=64, samples=0, prefix="val_",
        **options,
    ):  # fmt: skip
        super().__init__()
        inputs, references = _rows(inputs), _texts(references)
        if len(inputs) != len(references) or not len(inputs):
            raise ValueError(
                f"`inputs` and `references` must be of one number, at least 1; received {len(inputs)} and {len(references)}."
            )
        for name in FIXED:
            if name in options:
                raise ValueError(f"`{name}` must be left to the callback; received {name}={short_repr(options[name])}.")
        checks.known_names("an option of `model.generate`", options, OPTIONS)
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
        self.options = options

    def set_model(self, model):
        super().set_model(_generating(model))

    def on_epoch_end(self, epoch, logs=None):
        texts = self.generate(self.model)
        if logs is not None:
            logs.update(self._scores(texts))
        print(end="\n" if self.samples else "")  # the progress bar's line is not at its end
        for text, reference in zip(texts[: self.samples], self.references):
            print(f"reference  {reference}\nmodel      {text}")

    def score(self, model):
        """The scores of a model, a dict."""
        return self._scores(self.generate(model))

    def generate(self, model):
        """The texts that a model generates, in the order of the inputs."""
        _generating(model)
        texts = [None] * len(self.inputs)
        by_length = np.array(sorted(range(len(self.inputs)), key=lambda i: len(self.inputs[i])))
        for start in range(0, len(texts), self.batch_size):
            rows = by_length[start : start + self.batch_size]
            filled = np.resize(rows, self.batch_size)  # a last batch of another size would be compiled anew
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
            "`model` must have a method `generate`, as those of decoder_generator and encoder_decoder have; received "
            f"{short_repr(model)}."
        )
    return model


def _rows(inputs):
    """The inputs, rows of ids each."""
    inputs = inputs.to_list() if hasattr(inputs, "to_list") else inputs  # a tf.RaggedTensor
    inputs = ops.convert_to_numpy(inputs) if ops.is_tensor(inputs) else inputs
    if not isinstance(inputs, (list, tuple, np.ndarray)) or not all(map(_is_row, inputs)):
        raise ValueError(f"`inputs` must be rows of token ids; received {short_repr(inputs)}.")
    return inputs


def _is_row(row):
    try:
        row = np.asarray(row)
    except ValueError:  # uneven rows
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
    # `force` silences its warning about texts that look tokenized: that is what `tokenize` is for.
    return {"bleu": BLEU(lowercase=lowercase, tokenize=tokenize, force=True), "chrf": CHRF(lowercase=lowercase)}
