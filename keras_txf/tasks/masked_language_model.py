"""MaskedLanguageModel: fills in masked words."""

from typing import Any, Self, Unpack

import keras
import numpy as np

from keras_txf import checkpoints, checks, models, text, training
from keras_txf.checkpoints.option_tables import CheckpointOptions
from keras_txf.checks import bad_argument, short_repr
from keras_txf.layers.shown_options import shows_options
from keras_txf.tasks.columns import one_or_many, strings
from keras_txf.tasks.fitting import in_batches, probabilities, rows_of
from keras_txf.tasks.option_tables import FitOptions, MaskedTaskOptions
from keras_txf.tasks.task import Path, Task
from keras_txf.text.datasets import row


class MaskedLanguageModel(Task):
    """Predicts masked tokens, as in the pretraining of BERT.

    Args:
        model: a model of `masked_language_model`.
        tokenizer: tokenizer of the texts, with a special token that masks tokens.
        mask_token: the special token that masks tokens; default the special token with "mask" in its name.
        max_length: truncates longer texts; default the number of positions of the model, or 512.
        learning_rate: default learning rate of `fit`.

    Example:

    >>> lines = ["the cat sat on the mat", "the dog sat on the rug"] * 8
    >>> model = txf.tasks.MaskedLanguageModel.from_scratch(lines, vocab_size=60, num_layers=1, dim=16)
    >>> history = model.fit(lines, epochs=2, verbose=0)
    >>> len(model.fill("the [MASK] sat on the mat", k=2))
    2
    """

    renews = True
    _options = ("mask_token",)

    def __init__(
        self,
        model: keras.Model,
        tokenizer: Any,
        mask_token: str | None = None,
        max_length: int | None = None,
        learning_rate: float = 1e-3,
    ):
        super().__init__(model, tokenizer, max_length, learning_rate)
        known = list(tokenizer.special_tokens)
        masks = [token for token in known if "mask" in token.lower()]
        if mask_token is None and len(masks) != 1:
            raise bad_argument("mask_token", f"be one of the special tokens {short_repr(masks)}", None)
        if mask_token is not None and (not isinstance(mask_token, str) or mask_token not in known):
            raise bad_argument("mask_token", f"be one of the special tokens {short_repr(known)}", mask_token)
        self.mask_token = masks[0] if mask_token is None else mask_token
        self._reader = tokenizer.from_config({**tokenizer.get_config(), "special_tokens_in_text": "keep"})

    @classmethod
    @shows_options
    def from_scratch(cls, texts: Any, columns: Any = None, **options: Unpack[MaskedTaskOptions]) -> Self:
        """Makes an untrained model, with a WordPiece vocabulary of the texts.

        Args:
            texts, columns: the texts to train on, see `fit`.
            {options}
        """
        [texts] = cls._read(texts, [], columns)
        return cls._from_scratch(models.masked_language_model, options, lambda: strings("texts", texts))

    @classmethod
    @shows_options(defaults="elsewhere")
    def from_checkpoint(cls, path: Path, max_length: int | None = None, **options: Unpack[CheckpointOptions]) -> Self:
        """Makes a model of a Hugging Face checkpoint.

        Args:
            path: folder, or the name of a repository on the Hub.
            max_length: truncates longer texts.
            {options}
        """
        folder, tokenizer = cls._find(path, options)
        return cls(checkpoints.load(folder, "masked_lm", **options), tokenizer, None, max_length, learning_rate=5e-5)

    @shows_options
    def fit(self, texts: Any, **options: Unpack[FitOptions]) -> keras.callbacks.History:
        """Trains on texts with 15 % of their tokens masked, drawn anew in each epoch.

        At least one token of each text is masked, but never a special token. The logs have accuracy and perplexity.

        Args:
            texts: list or column of strings, the path of a .txt file with a text in each line, or a table with the
                column "text": see `TextClassifier.fit`.
            {options}

        Returns:
            Keras' history.

        Raises:
            ValueError: no text with a token to mask; see `TextClassifier.fit`.
        """
        return self._fit(texts, [], options)

    def evaluate(self, texts: Any, columns: Any = None, batch_size: int = 32) -> dict[str, float]:
        """Returns loss, accuracy and perplexity on texts, see `fit`. Each call masks the same tokens."""
        return self._evaluate(texts, [], columns, batch_size)

    def fill(self, texts: Any, k: int = 5, batch_size: int = 32, verbose: int | str = "auto") -> list:
        """Predicts the masked token of each text.

        Args:
            texts: a text, or a list of texts, each with the mask token once.
            k: number of predictions.
            batch_size: texts in a batch.
            verbose: 0 shows no progress bar, 1 a bar from ten batches on, "auto" a bar in a terminal after a second.

        Returns:
            List of (token, probability), the likeliest first; for a list of texts a list of lists.

        Raises:
            ValueError: a text without the mask token, or with several mask tokens.
        """
        texts, unpack = one_or_many("texts", texts)
        checks.integer_between("k", k, 1, self.tokenizer.vocab_size)
        mask = self.tokenizer.token_to_id(self.mask_token)
        rows = rows_of(row(self._reader, texts, self.max_length))
        for one, ids in zip(texts, rows):
            if (ids == mask).sum() != 1:
                must = f"each have {self.mask_token} once, in the first {self.max_length} tokens"
                raise bad_argument("texts", must, one)

        def guess(ids):
            return probabilities(self.model, ids)[ids == mask]

        predictions = []
        for scores in in_batches(guess, rows, self._pad_id(), batch_size, self.max_length, verbose):
            best = np.argsort(-scores, kind="stable")[:k]
            predictions.append([(self.tokenizer.id_to_token(int(i)), float(scores[i])) for i in best])
        return unpack(predictions)

    def _examples(self, values):
        ids = text.token_ids(values[0], self.tokenizer, self.max_length).cache()
        return text.mask_tokens(ids, self.tokenizer, mask_token=self.mask_token, at_least_one=True)

    def _batches(self, values, *options, **more):
        batches = super()._batches(values, *options, **more)
        if not any((targets != self.tokenizer.pad_id).any() for _, targets in batches.examples):
            raise bad_argument("texts", "have a token to mask, other than the special tokens", values[0])
        return batches

    def _padding(self):
        return self._pad_id(), self._pad_id()

    def _compilation(self):
        pad_id = self.tokenizer.pad_id
        metrics = [training.TokenAccuracy(pad_id=pad_id), training.Perplexity(pad_id=pad_id)]
        return training.TokenCrossEntropy(pad_id=pad_id), metrics
