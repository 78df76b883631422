"""QuestionAnswerer: finds the part of a text that answers a question."""

import functools
from typing import Any, Self, Unpack

import keras
import numpy as np

from keras_txf import checkpoints, checks, models, training
from keras_txf.checkpoints.option_tables import ClassifierCheckpointOptions
from keras_txf.checks import bad_argument
from keras_txf.layers.shown_options import shows_options
from keras_txf.layers.token_input import inputs_by_name
from keras_txf.tasks import pairs
from keras_txf.tasks.columns import is_file, strings
from keras_txf.tasks.fitting import in_batches
from keras_txf.tasks.option_tables import FitOptions, SpanTaskOptions
from keras_txf.tasks.pairs import SQUAD, AnswerWindows, answers_of, best_spans, read_squad, targets, tokens_of
from keras_txf.tasks.task import Path, Task
from keras_txf.text.datasets import checked_tokenizer, separator_tokens

OUTPUTS = ("start_logits", "end_logits")
OVERLAP = 128  # tokens, of the windows of BERT on SQuAD


class QuestionAnswerer(Task):
    """Finds the answer to a question in a text: extractive question answering, as on SQuAD.

    A long context is read in windows that overlap. The answer is the span, in any window, with the largest sum of the
    logits of its first and its last token.

    Args:
        model: a model of `span_classifier`, or one like it: ids (B, T) -> a dict of `start_logits` and `end_logits`
            (B, T), perhaps with a second input `token_type_ids`.
        tokenizer: tokenizer of questions and contexts, with `start` and `end`.
        separator: special token between question and context, or a list of them; default the tokenizer's `end`.
        max_length: number of tokens of a window, with the question; default the number of positions of the model, or
            512. A question has at most half of these tokens.
        overlap: number of tokens of the context that neighbouring windows share, less than half of `max_length`;
            default 128, or a quarter of `max_length`.
        max_answer_length: number of tokens of the longest answer.
        null_threshold: a number if a question may have no answer, as on SQuAD 2.0. The score of no answer is the sum of
            the logits of the first token. The answer is "" if this score leads the best span's by more than the
            threshold.
        learning_rate: default learning rate of `fit`.

    Raises:
        ValueError: a model without these outputs, a tokenizer without `start` or `end`, an argument out of range.

    Reference:
        [BERT](https://arxiv.org/abs/1810.04805), sections 4.2 and 4.3.

    Example:

    >>> questions, contexts = ["who sings", "who runs"] * 8, ["Ada sings and Bo runs", "Bo sings and Ada runs"] * 8
    >>> answers = ["Ada", "Ada"] * 8
    >>> answerer = txf.tasks.QuestionAnswerer.from_scratch(questions, contexts, vocab_size=80, num_layers=1, dim=16)
    >>> history = answerer.fit(questions, contexts, answers, epochs=20, learning_rate=0.01, verbose=0)
    >>> answer = answerer.predict("who sings", "Ada sings and Bo runs")
    >>> answer["text"], answer["start"], answer["end"]
    ('Ada', 0, 3)
    """

    columns = {"questions": "question", "contexts": "context", "answers": "answers"}
    _options = ("separator", "overlap", "max_answer_length", "null_threshold")

    def __init__(
        self,
        model: keras.Model,
        tokenizer: Any,
        separator: Any = None,
        max_length: int | None = None,
        overlap: int | None = None,
        max_answer_length: int = 30,
        null_threshold: float | None = None,
        learning_rate: float = 1e-3,
    ):
        super().__init__(model, tokenizer, max_length, learning_rate)
        outputs = self.model.output
        if not isinstance(outputs, dict) or not {*OUTPUTS} <= {*outputs}:
            must = f"return a dict of {' and '.join(OUTPUTS)}, as a model of `span_classifier` does"
            raise bad_argument("model", must, sorted(outputs) if isinstance(outputs, dict) else outputs)
        checked_tokenizer("tokenizer", tokenizer, needs=("start", "end"))
        special = pairs.special_tokens(tokenizer, separator, self.max_length)
        self.separator = separator
        most = (self.max_length - special + 1) // 2 - 1
        self.overlap = min(OVERLAP, self.max_length // 4, most) if overlap is None else overlap
        checks.integer_between("overlap", self.overlap, 0, most)
        self.max_answer_length = checks.size("max_answer_length", max_answer_length)
        self.null_threshold = checks.optional(checks.finite_number, "null_threshold", null_threshold)
        self._token_types = "token_type_ids" in inputs_by_name(model)

    @classmethod
    @shows_options
    def from_scratch(
        cls,
        questions: Any,
        contexts: Any = None,
        columns: Any = None,
        overlap: int | None = None,
        max_answer_length: int = 30,
        null_threshold: float | None = None,
        **options: Unpack[SpanTaskOptions],
    ) -> Self:
        """Makes an untrained model for questions, with a WordPiece vocabulary of the texts.

        Args:
            questions, contexts, columns: the texts to train on, see `fit`.
            overlap, max_answer_length, null_threshold: see the constructor.
            {options}
        """
        texts = pairs.texts_of_pairs(cls, questions, contexts, columns)
        build = functools.partial(models.span_classifier, **pairs.TOKEN_TYPES)
        own = {"overlap": overlap, "max_answer_length": max_answer_length, "null_threshold": null_threshold}
        return cls._from_scratch(build, options, lambda: texts, **own)

    @classmethod
    @shows_options(defaults="elsewhere")
    def from_checkpoint(
        cls,
        path: Path,
        max_length: int | None = None,
        overlap: int | None = None,
        max_answer_length: int = 30,
        null_threshold: float | None = None,
        **options: Unpack[ClassifierCheckpointOptions],
    ) -> Self:
        """Makes the task of a Hugging Face checkpoint, with a new head if the checkpoint has no head for answers.

        Args:
            path: folder, or the name of a repository on the Hub.
            max_length, overlap, max_answer_length, null_threshold: see the constructor. Give a `null_threshold`, such
                as 0.0, to a checkpoint that was trained on SQuAD 2.0.
            {options}
        """
        folder, tokenizer = cls._find(path, options)
        options, separator = pairs.pair_format(folder, options)
        model = checkpoints.load(folder, "question_answering", **options)
        own = {"overlap": overlap, "max_answer_length": max_answer_length, "null_threshold": null_threshold}
        return cls(model, tokenizer, separator, max_length, learning_rate=5e-5, **own)

    @shows_options
    def fit(
        self, questions: Any, contexts: Any = None, answers: Any = None, **options: Unpack[FitOptions]
    ) -> keras.callbacks.History:
        """Trains on answered questions. The logs have exact match and F1 of held-out questions.

        Args:
            questions, contexts: lists or columns of strings. Or `questions` is a table of the columns "question",
                "context" and "answers", or of the names in `columns`, see `TextClassifier.fit`. Or `questions` is the
                path of a .json file in the format of SQuAD 1.1 or 2.0.
            answers: the answer to each question, a part of its context. An answer is a string, whose first occurrence
                in the context counts; a list of strings, for several answers; or a dict of two lists, `text` and
                `answer_start`, as in Hugging Face's data sets. For a task with a `null_threshold`, "" or empty lists
                mean no answer. Training uses the first answer, the scores the best answer.
            {options}

        Returns:
            Keras' history, with `val_exact_match` and `val_f1` of held-out questions, see `txf.training.answer_scores`.

        Raises:
            ValueError: columns of different lengths, an answer that is not in its context or has no token, a question
                without an answer for a task without `null_threshold`.
        """
        return self._fit(questions, [contexts, answers], options)

    def predict(
        self, questions: Any, contexts: Any, k: int | None = None, batch_size: int = 32, verbose: int | str = 1
    ) -> Any:
        """Answers questions.

        Args:
            questions, contexts: two texts, or two lists of texts of one length.
            k: number of answers to each question; None for the best answer alone.
            batch_size: windows in a batch.
            verbose: 0 shows no progress bar, 1 shows a bar from ten batches on.

        Returns:
            A dict of `text`, the answer; `start` and `end`, its span in the context in characters; and `score`, its
            probability among all spans of at most `max_answer_length` tokens, and no answer if the task allows it. No
            answer is "" from 0 to 0. With `k` a list of at most `k` dicts, the best first. For lists of texts a list of
            results.

        Raises:
            ValueError: lists of different lengths, a context without a token.
        """
        questions, contexts, unpack = pairs.paired_texts(questions=questions, contexts=contexts)
        checks.optional(checks.size, "k", k)
        rows, windows, offsets = self._windows().rows(questions, contexts)
        outputs = in_batches(self._outputs, rows, self._input_padding(), batch_size, self.max_length, verbose)
        of_question = [([], []) for _ in questions]
        for window, logits in zip(windows, outputs):
            of_question[window.example][0].append(window)
            of_question[window.example][1].append(logits)
        answers = []
        for index, (context, tokens, parts) in enumerate(zip(contexts, offsets, of_question)):
            best = best_spans(*parts, context, tokens, self.max_answer_length, k or 1, self.null_threshold)
            if not best:
                raise bad_argument("contexts", "each have a token", context, index)
            answers.append(best[0] if k is None else best)
        return unpack(answers)

    def evaluate(
        self, questions: Any, contexts: Any = None, answers: Any = None, columns: Any = None, batch_size: int = 32
    ) -> dict[str, float]:
        """Returns the losses, exact match and F1 on answered questions, see `fit`."""
        return self._evaluate(questions, [contexts, answers], columns, batch_size)

    def _windows(self):
        separator = separator_tokens(self.tokenizer, self.separator)
        return AnswerWindows(self.tokenizer, self.max_length, self.overlap, separator, self._token_types)

    def _outputs(self, inputs):
        outputs = self.model.predict_on_batch(inputs)
        return np.stack([keras.ops.convert_to_numpy(outputs[name]) for name in OUTPUTS], axis=-1).astype("float32")

    @classmethod
    def _read(cls, data, others, columns, known=None):
        if not is_file(data, SQUAD):
            return super()._read(data, others, columns, known)
        if columns is not None or any(other is not None for other in others):
            raise ValueError(
                "`questions` must be given alone where it is a file in SQuAD's format; received further columns too."
            )
        return read_squad(data)[: len(known or cls.columns)]

    def _checked(self, values):
        questions, contexts = strings("questions", values[0]), strings("contexts", values[1])
        answers = answers_of(values[2], contexts)
        if self.null_threshold is None and not all(answers):
            index = next(index for index, one in enumerate(answers) if not one)
            must = "hold an answer to each question of a task without `null_threshold`"
            raise bad_argument("answers", must, values[2][index], index)
        return [questions, contexts, answers]

    def _examples(self, values):
        questions, contexts, answers = values
        rows, windows, offsets = self._windows().rows(questions, contexts)
        spans = []
        for index, (tokens, known) in enumerate(zip(offsets, answers)):
            span = tokens_of(tokens, known[0][1], known[0][1] + len(known[0][0])) if known else None
            if known and span is None:
                raise bad_argument("answers", "each have a token", known[0][0], index)
            spans.append(span)
        return [(row, targets(window, spans[window.example])) for row, window in zip(rows, windows)]

    def _padding(self):
        return self._input_padding(), dict.fromkeys(OUTPUTS, 0)  # of the positions of the answer

    def _compilation(self):
        return {name: keras.losses.SparseCategoricalCrossentropy(from_logits=True) for name in OUTPUTS}, None

    def _scores(self, values, batch_size):
        questions, contexts, answers = values
        predictions = self.predict(questions, contexts, batch_size=batch_size, verbose=0)
        true = [[answer for answer, _ in known] for known in answers]
        return training.answer_scores(true, [one["text"] for one in predictions])
