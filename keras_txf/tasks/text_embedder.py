"""TextEmbedder: a vector for each text, and search by meaning."""

from typing import Any, Self, Unpack

import keras
import numpy as np
from keras import ops

from keras_txf import checkpoints, checks, layers, models, text
from keras_txf.checkpoints.option_tables import CheckpointOptions
from keras_txf.checks import bad_argument
from keras_txf.layers.heads import POOLINGS
from keras_txf.layers.norms import UnitNormalization
from keras_txf.layers.shown_options import shows_options
from keras_txf.layers.token_input import embedded_input, inputs_by_name
from keras_txf.tasks import sentence_modules
from keras_txf.tasks.columns import numbers, one_or_many, strings
from keras_txf.tasks.fitting import in_batches, rows_of
from keras_txf.tasks.labels import correlations
from keras_txf.tasks.option_tables import EmbedderOptions, FitOptions
from keras_txf.tasks.task import Path, Task
from keras_txf.text.datasets import row


class TextEmbedder(Task):
    """Embeds each text as a vector of length 1; texts of similar meaning have a large dot product.

    Args:
        model: ids (B, T) -> embeddings (B, D), such as an encoder with `Pooling` and `UnitNormalization` on it.
        tokenizer: tokenizer of the texts.
        max_length: truncates longer texts; default the number of positions of the model, or 512.
        temperature: divides the similarities in the loss of `fit`.
        learning_rate: default learning rate of `fit`.

    Reference:
        [Sentence-BERT](https://arxiv.org/abs/1908.10084).

    Example:

    >>> pairs = ["a dog", "a cat", "the sea"] * 8, ["dogs", "cats", "seas"] * 8
    >>> embedder = txf.tasks.TextEmbedder.from_scratch(*pairs, vocab_size=60, num_layers=1, dim=16)
    >>> history = embedder.fit(*pairs, epochs=2, batch_size=3, verbose=0)
    >>> embedder.index(["dogs", "seas"]).search("a dog", k=1)[0][0] in ("dogs", "seas")
    True
    """

    columns = {"anchors": "anchor", "positives": "positive"}
    _options = ("temperature",)

    def __init__(
        self,
        model: keras.Model,
        tokenizer: Any,
        max_length: int | None = None,
        temperature: float = 0.05,
        learning_rate: float = 1e-3,
    ):
        super().__init__(model, tokenizer, max_length, learning_rate)
        if len(getattr(model.output, "shape", ())) != 2 or len(inputs_by_name(model)) != 1:
            raise bad_argument("model", "turn ids (B, T) into vectors (B, D)", model.output)
        self.temperature = checks.positive_number("temperature", temperature)
        self._towers = self._encoder = None
        self.texts, self.embeddings = [], None

    @classmethod
    @shows_options
    def from_scratch(
        cls, anchors: Any, positives: Any = None, columns: Any = None, **options: Unpack[EmbedderOptions]
    ) -> Self:
        """Makes an untrained embedder, with a WordPiece vocabulary of the texts.

        Args:
            anchors, positives, columns: the texts to train on, see `fit`.
            {options}
        """
        read = cls._read(anchors, [positives], columns)
        texts = [one for name, column in zip(cls.columns, read) for one in strings(name, column)]
        return cls._from_scratch(_mean_encoder, options, lambda: texts)

    @classmethod
    @shows_options(defaults="elsewhere")
    def from_checkpoint(
        cls, path: Path, pooling: str | None = None, max_length: int | None = None, **options: Unpack[CheckpointOptions]
    ) -> Self:
        """Makes an embedder of a Hugging Face checkpoint, such as a model of sentence-transformers.

        Args:
            path: folder, or the name of a repository on the Hub.
            pooling: the kind of `Pooling`, instead of the folder's modules after its encoder. Default the folder's
                pooling and Dense layers (EmbeddingGemma), or "mean". The vectors have length 1 in any case.
            max_length: truncates longer texts; default the folder's length for sentence-transformers.
            {options}

        A decoder may have no token of padding, or a padding token that texts have. Then `pad_id` is a token that no
        text has; default the model's last token, if the tokenizer lacks it.

        Raises:
            ValueError: a decoder without such a token; other modules of sentence-transformers than a transformer, a
                pooling, Dense layers and a normalization, in this order; a prompt that the folder adds to each text.
        """
        checks.optional(checks.one_of, "pooling", pooling, sorted(POOLINGS))
        uses_modules = pooling is None
        folder, tokenizer = cls._find(path, options)
        pooling = sentence_modules.read_pooling(folder, tokenizer) if uses_modules else pooling
        if "pad_id" not in options:
            [ids] = rows_of(row(tokenizer, ["a"], None))
            options.update(sentence_modules.padding_of_decoder(folder, ids, tokenizer.vocab_size))
        encoder = checkpoints.load(folder, "encoder", **options)
        dense = sentence_modules.read_dense_layers(folder, encoder.output.shape[-1]) if uses_modules else []
        task = cls(_pooled(encoder, pooling, dense), tokenizer, max_length, learning_rate=2e-5)
        task._encoder = encoder
        longest = sentence_modules.read_max_length(folder)
        if max_length is None and longest is not None:
            task.max_length = min(longest, task._limit() or longest)
        return task

    @shows_options
    def fit(self, anchors: Any, positives: Any = None, **options: Unpack[FitOptions]) -> keras.callbacks.History:
        """Trains on pairs of texts with the same meaning; the other positives of a batch are a pair's negatives.

        Args:
            anchors, positives: lists or columns of strings. Or `anchors` is a table of the columns "anchor" and
                "positive", or of the names in `columns`: see `TextClassifier.fit`.
            {options}

        Returns:
            Keras' history. The accuracy is the share of anchors whose own positive is the most similar in the batch.
        """
        return self._fit(anchors, [positives], options)

    def evaluate(
        self, anchors: Any, positives: Any = None, scores: Any = None, columns: Any = None, batch_size: int = 32
    ) -> dict[str, float]:
        """Returns the scores of the task on pairs of texts.

        Args:
            anchors, positives: see `fit`.
            scores: list or column of numbers, the similarity of each pair, such as in STS-B. For a table,
                `columns=("anchor", "positive", "score")` or three other names.
            columns: names of the columns of a table.
            batch_size: pairs in a batch.

        Returns:
            Loss and accuracy of `fit`, which depend on the batch size. With scores, Spearman's and Pearson's
            correlations between the scores and the similarities of the vectors.
        """
        if scores is None and not (isinstance(columns, (list, tuple)) and len(columns) == 3):
            return self._evaluate(anchors, [positives], columns, batch_size)
        checks.size("batch_size", batch_size)
        names = {**self.columns, "scores": "score"}
        *pairs, scores = self._read(anchors, [positives, scores], columns, names)
        one, other = (self.encode(column, batch_size, verbose=0) for column in self._checked(pairs))
        return correlations((one * other).sum(-1), numbers("scores", scores))

    def encode(self, texts: Any, batch_size: int = 64, verbose: int | str = 1) -> np.ndarray:
        """Embeds texts.

        Args:
            texts: a text, or a list of texts.
            batch_size: texts in a batch, of similar length.
            verbose: 0 shows no progress bar, 1 shows a bar from ten batches on.

        Returns:
            float32 (D,) for a text, or (N, D). A text without tokens has zeros: "", if the tokenizer adds no special
            token.
        """
        texts, unpack = one_or_many("texts", texts)

        def embed(ids):
            return ops.convert_to_numpy(ops.cast(self.model.predict_on_batch(ids), "float32"))

        rows = in_batches(embed, self._ids(texts), self._pad_id(), batch_size, self.max_length, verbose)
        return unpack(np.stack(rows) if rows else np.zeros((0, self.model.output.shape[-1]), "float32"))

    def index(self, texts: Any, batch_size: int = 64, verbose: int | str = 1, columns: Any = None) -> Self:
        """Embeds the texts for `search`; returns the task.

        Args:
            texts: list or column of texts, or a table with the column "text", such as the path of a .txt file.
            batch_size, verbose: see `encode`.
            columns: the name of a table's column, if it is not "text".
        """
        try:
            [column] = self._read(texts, [], columns, {"texts": "text"})
        except ValueError as error:
            raise ValueError(f"`texts` must be texts, or a table of them: {error}") from error
        self.texts, self.embeddings = column, self.encode(column, batch_size, verbose)
        return self

    def search(self, queries: Any, k: int = 5, batch_size: int = 64) -> list:
        """Finds the k texts of `index` that are most similar to a query, exactly, with one matrix product.

        Args:
            queries: a text, or a list of texts.
            k: number of texts.
            batch_size: queries in a batch.

        Returns:
            List of (text, similarity), the most similar first; for a list of queries a list of lists.

        Raises:
            ValueError: no call of `index` since the task was made or trained.
        """
        checks.positive_integer("k", k)
        checks.size("batch_size", batch_size)
        queries, unpack = one_or_many("queries", queries)
        if self.embeddings is None:
            raise ValueError("`index` must be called before `search`, and again after `fit`; received no texts.")
        results = []
        for start in range(0, len(queries), batch_size):
            similarity = self.encode(queries[start : start + batch_size], batch_size, verbose=0) @ self.embeddings.T
            best = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
            results += [[(self.texts[i], float(row[i])) for i in indices] for row, indices in zip(similarity, best)]
        return unpack(results)

    def export(self, folder: Path, overwrite: bool = False) -> None:
        """Writes a SavedModel from strings to embeddings, see `txf.text.export`.

        Raises:
            ValueError: a model with another padding than its tokenizer, such as some decoders.
        """
        if self._pad_id() != super()._pad_id():
            raise ValueError(
                f"`export` needs a model with the padding of its tokenizer, {super()._pad_id()}; received one with "
                f"pad_id={self._pad_id()}."
            )
        self._export(folder, overwrite)

    def _pad_id(self):
        """Returns the padding that the model masks, else the tokenizer's."""
        [name] = inputs_by_name(self.model)
        tokens = embedded_input(self.model, name)
        return super()._pad_id() if tokens is None or tokens.pad_id is None else tokens.pad_id

    def _trained(self):
        """Returns a model of the similarity of each anchor and each positive, with the weights of `model`."""
        if self._towers is None:
            inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("anchor_ids", "positive_ids")}
            anchors, positives = map(self.model, inputs.values())
            similarity = ops.matmul(anchors, ops.transpose(positives)) / self.temperature
            self._towers = keras.Model(inputs, similarity)
        return self._towers

    def _prepare(self, learning_rate, steps):
        super()._prepare(learning_rate, steps)
        self.embeddings = None  # of the old weights

    def _examples(self, values):
        pairs = text.contrastive_pairs(tuple(values), self.tokenizer, self.max_length)
        return pairs.map(
            lambda pair: (pair, np.int32(0))
        )  # `_finish` makes the target, the index of the pair in the batch

    def _finish(self, batch):
        inputs, targets = batch
        return inputs, np.arange(len(targets), dtype="int32")

    def _padding(self):
        return {"anchor_ids": self._pad_id(), "positive_ids": self._pad_id()}, 0

    def _compilation(self):
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True), ["accuracy"]

    def checkpoint_model(self) -> keras.Model:
        pooling = [layer for layer in self.model.layers if isinstance(layer, layers.Pooling)]
        if self._encoder is None:
            self._encoder = keras.Model(self.model.input, pooling[0].input) if len(pooling) == 1 else self.model
        return self._encoder

    def _check_format(self):
        sentence_modules.check_modules(self.model)

    def _save_beside(self, folder):
        """Writes the modules of sentence-transformers."""
        sentence_modules.write_modules(folder, self.model, self.max_length)


def _mean_encoder(vocab_size, **options):
    return _pooled(models.encoder(vocab_size, **options), "mean")


def _pooled(encoder, pooling, dense=()):
    pooled = layers.Pooling(pooling, name="pooling")(encoder.output)
    for layer in dense:
        pooled = layer(pooled)
    return keras.Model(encoder.input, UnitNormalization(name="embedding_norm")(pooled))
