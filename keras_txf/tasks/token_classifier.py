"""TokenClassifier: a label for each word, and the entities that the labels make."""

import functools
import pathlib
from typing import Any, Self, Unpack

import keras
import numpy as np

from keras_txf import checks, models, text, training
from keras_txf.checkpoints.option_tables import ClassifierCheckpointOptions
from keras_txf.checkpoints.saved_config import labels_of
from keras_txf.checks import bad_argument, short_repr
from keras_txf.layers.shown_options import shows_options
from keras_txf.layers.token_input import logits_of
from keras_txf.tasks.columns import is_file, one_or_many
from keras_txf.tasks.labels import OneLabel, label_list, load_classifier, numbers_of
from keras_txf.tasks.option_tables import FitOptions, TokenTaskOptions
from keras_txf.tasks.task import Path, Task, word_pieces
from keras_txf.tasks.words import CONLL, WordWindows, read_conll, words_of
from keras_txf.text.tags import checked_names

IGNORED = -100  # target of tokens that do not count


class TokenClassifier(Task):
    """Predicts the label of each word: names of people and places, parts of speech.

    Args:
        model: a model of `token_classifier`, or one like it: ids (B, T) -> logits (B, T, C).
        tokenizer: tokenizer of the words.
        labels: list of the C labels, strings, in the order of the logits. Labels like "B-PER", "I-PER" and "O" make
            entities.
        label_all_tokens: whether `fit` trains on all tokens of a word, see `txf.text.token_classification`.
        max_length: number of tokens that the model reads at once; default its number of positions, or 512. `fit`
            truncates longer texts; `predict` reads longer texts in parts.
        learning_rate: default learning rate of `fit`.

    Raises:
        ValueError: another number of labels than the model has classes.

    Example:

    >>> words = [["Ada", "is", "here"], ["Who", "saw", "Ada", "?"]] * 4
    >>> tags = [["B-PER", "O", "O"], ["O", "O", "B-PER", "O"]] * 4
    >>> tagger = txf.tasks.TokenClassifier.from_scratch(words, tags, vocab_size=60, num_layers=1, dim=16)
    >>> history = tagger.fit(words, tags, epochs=20, learning_rate=0.01, verbose=0)
    >>> tagger.predict(["Ada", "is", "here"])
    ['B-PER', 'O', 'O']
    >>> [(entity["text"], entity["label"], entity["start"]) for entity in tagger.entities("Who is Ada?")]
    [('Ada', 'PER', 7)]
    """

    columns = {"words": "words", "tags": "tags"}
    _options = ("labels", "label_all_tokens")

    def __init__(
        self,
        model: keras.Model,
        tokenizer: Any,
        labels: Any,
        label_all_tokens: bool = False,
        max_length: int | None = None,
        learning_rate: float = 1e-3,
    ):
        super().__init__(model, tokenizer, max_length, learning_rate)
        self.labels = checked_names(label_list(labels))
        self.label_all_tokens = checks.boolean("label_all_tokens", label_all_tokens)
        logits = logits_of(self.model)
        if len(logits.shape) != 3 or len(self.labels) != logits.shape[-1]:
            must = f"be one for each class of a model with logits (B, T, C), {logits.shape}"
            raise bad_argument("labels", must, len(self.labels))
        self._windows = WordWindows(self.tokenizer, self.max_length)

    @classmethod
    @shows_options
    def from_scratch(
        cls,
        words: Any,
        tags: Any = None,
        labels: Any = None,
        columns: Any = None,
        label_all_tokens: bool = False,
        **options: Unpack[TokenTaskOptions],
    ) -> Self:
        """Makes an untrained classifier, with a WordPiece vocabulary of the words.

        Args:
            words, tags, columns: the words to train on and their tags, see `fit`.
            labels: list of the labels; default the distinct tags, sorted.
            label_all_tokens: see the constructor.
            {options}
        """
        words, tags = cls._read(words, [tags], columns)
        lines = [" ".join(row) for row in words_of("words", words)]
        labels = label_list([tag for row in words_of("tags", tags) for tag in row] if labels is None else labels)
        own = {"labels": labels, "label_all_tokens": label_all_tokens}
        cased = functools.partial(word_pieces, lowercase=False, strip_accents=False)
        return cls._from_scratch(models.token_classifier, options, lambda: lines, len(labels), train=cased, **own)

    @classmethod
    @shows_options(defaults="elsewhere")
    def from_checkpoint(
        cls,
        path: Path,
        labels: Any = None,
        label_all_tokens: bool = False,
        max_length: int | None = None,
        **options: Unpack[ClassifierCheckpointOptions],
    ) -> Self:
        """Makes a classifier of a Hugging Face checkpoint, with a new head if the checkpoint has other labels.

        Args:
            path: folder, or the name of a repository on the Hub.
            labels: list of the labels; default the checkpoint's labels. See `TextClassifier.from_checkpoint`.
            label_all_tokens, max_length: see the constructor.
            {options}
        """
        folder, tokenizer = cls._find(path, options)
        known = labels_of(folder, "TokenClassification")
        labels = OneLabel().known_labels(known) if labels is None else label_list(labels)
        model = load_classifier(folder, "token_classification", known, labels, options)
        return cls(model, tokenizer, labels, label_all_tokens, max_length, learning_rate=5e-5)

    @shows_options
    def fit(
        self, words: Any, tags: Any = None, class_weight: Any = None, **options: Unpack[FitOptions]
    ) -> keras.callbacks.History:
        """Trains on tagged words. The logs have loss and accuracy of words, and `val_f1` of held-out entities.

        Args:
            words: list or column of lists of words; or a table of the columns "words" and "tags", or of the names in
                `columns`, see `TextClassifier.fit`; or the path of a .conll, .conllu, .iob, .bio, .txt or .tsv file
                with a word and its tag in each line, and a blank line after each text. The word is in the first column
                and the tag in the last; in CoNLL-U in FORM and UPOS; or in the columns that the first line names "word"
                and "tag". Other columns need numbers: `columns=(1, 4)` are FORM and XPOS.
            tags: list or column of lists of tags: labels, or the numbers of labels.
            class_weight: dict of labels -> weight in the loss of a word with the label, or "balanced".
            {options}

        Returns:
            Keras' history, with `val_precision`, `val_recall` and `val_f1` on held-out examples if the labels make
            entities.

        Raises:
            ValueError: columns of different lengths, a tag that is not a label of the task.
        """
        return self._fit(words, [tags], options, class_weight)

    def predict(
        self, words: Any, batch_size: int = 32, return_probabilities: bool = False, verbose: int | str = 1
    ) -> Any:
        """Predicts the labels of words.

        Args:
            words: the words of a text, a list of strings; or a list of lists of words.
            batch_size: texts in a batch.
            return_probabilities: whether to return probabilities float32 (W, C) instead of the labels of W words.
                Probabilities are 0 for a word without a token, such as "".
            verbose: 0 shows no progress bar; it comes from ten batches on.

        Returns:
            The list of the words' labels, or a list of lists. A word without a token has the label "O", or None if "O"
            is not a label.
        """
        checks.boolean("return_probabilities", return_probabilities)
        one = isinstance(words, (list, tuple)) and bool(words) and isinstance(words[0], str)
        rows = words_of("words", [words] if one else words)
        results = self._word_probabilities(rows, batch_size, verbose)
        results = results if return_probabilities else [self._tags(row) for row in results]
        return results[0] if one else results

    def entities(self, texts: Any, batch_size: int = 32, verbose: int | str = 1) -> Any:
        """Finds the entities of texts, of labels like "B-PER", see `txf.training.entities`.

        Args:
            texts: a text, or a list of texts. Blanks and punctuation separate words; each punctuation mark is a word.
            batch_size: texts in a batch.
            verbose: 0 shows no progress bar; it comes from ten batches on.

        Returns:
            A list of dicts for a text, or a list of lists. A dict has `text`, `label`, `start` and `end`, the entity's
            span in characters, and `score`, the mean probability of its words' labels.
        """
        texts, unpack = one_or_many("texts", texts)
        if not self._makes_entities():
            raise ValueError(f"`entities` needs labels like 'B-PER'; received a task of {short_repr(self.labels)}.")
        words, spans_of_texts = self._windows.split(texts)
        answers = [[] for _ in texts]
        for answer, whole, spans, row in zip(
            answers, texts, spans_of_texts, self._word_probabilities(words, batch_size, verbose)
        ):
            for label, first, last in training.entities(self._tags(row)):
                start, end, score = spans[first][0], spans[last - 1][1], float(row[first:last].max(axis=1).mean())
                answer.append({"text": whole[start:end], "label": label, "start": start, "end": end, "score": score})
        return unpack(answers)

    def evaluate(self, words: Any, tags: Any = None, columns: Any = None, batch_size: int = 32) -> dict[str, float]:
        """Returns loss, accuracy of words, and precision, recall and F1 of entities, on tagged words, see `fit`."""
        return self._evaluate(words, [tags], columns, batch_size)

    def export(self, folder: Path, overwrite: bool = False) -> None:
        """Writes a SavedModel from strings to words, tags and scores, see `txf.text.export`."""
        self._export(folder, overwrite)

    def _makes_entities(self):
        return all(label == "O" or label[:2] in ("B-", "I-", "E-", "S-") for label in self.labels)

    def _tags(self, probabilities):
        outside = "O" if "O" in self.labels else None
        return [self.labels[int(row.argmax())] if row.any() else outside for row in probabilities]

    def _word_probabilities(self, words, batch_size, verbose):
        """Returns probabilities (W, C), float32, for each text; 0 for a word without a token."""
        rows, owners = self._windows.rows(words)
        outputs = self._probabilities(rows, batch_size, verbose)
        answers = [np.zeros((len(row), len(self.labels)), "float32") for row in words]
        for probabilities, (index, tokens, of_word) in zip(outputs, owners):
            answers[index][of_word] = probabilities[tokens]
        return answers

    @classmethod
    def _read(cls, data, others, columns, known=None):
        if not is_file(data, CONLL):
            return super()._read(data, others, columns, known)
        if others[0] is not None:
            raise ValueError("`tags` must be left out if `words` is a file of both; received both.")
        return read_conll(pathlib.Path(data), columns)

    def _checked(self, values):
        words = words_of("words", values[0])
        numbers = []
        for index, (row, tags) in enumerate(zip(words, values[1])):
            if not isinstance(tags, list) or len(tags) != len(row):
                raise bad_argument("tags", f"hold a list of a tag for each of {len(row)} words", tags, index)
            are_numbers = all(type(tag) is int and 0 <= tag < len(self.labels) for tag in tags)
            numbers.append(tags if are_numbers else numbers_of("tags", tags, self.labels, index))
        return [words, numbers]

    def _examples(self, values):
        return text.token_classification(
            tuple(values), self.tokenizer, self.labels, self.max_length, self.label_all_tokens, IGNORED
        )

    def _padding(self):
        return self._pad_id(), IGNORED

    def _compilation(self):
        return training.TokenCrossEntropy(IGNORED), [training.TokenAccuracy(IGNORED, name="accuracy")]

    def _scores(self, values, batch_size):
        words, numbers = values
        predictions = self.predict(words, batch_size, verbose=0)
        true = [[self.labels[number] for number in row] for row in numbers]
        right = [one == other for pair in zip(true, predictions) for one, other in zip(*pair)]
        scores = {"accuracy": float(np.mean(right))}
        return {**scores, **training.entity_scores(true, predictions)} if self._makes_entities() else scores
