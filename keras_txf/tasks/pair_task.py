"""PairTask: what the tasks share whose model reads two texts together."""

from keras_txf.tasks.columns import texts
from keras_txf.tasks.task import Task
from keras_txf.tasks.tokens import word_pieces_or


class PairTask(Task):
    """A task of two texts. Its first two `columns` are the texts; `_token_types` says whether the model has that input.

    A subclass sets `_token_types` in its constructor.
    """

    @classmethod
    def _tokenizer_or(cls, tokenizer, data, second, columns, vocab_size):
        """The tokenizer that a caller gives, or a WordPiece tokenizer of both columns of texts."""
        columns = columns[:2] if isinstance(columns, (list, tuple)) and len(columns) == 3 else columns
        names = dict([*cls.columns.items()][:2])
        read = cls._read(data, [second], columns, names)
        known = [one for name, column in zip(names, read) for one in texts(name, column)]
        return word_pieces_or(tokenizer, lambda: known, vocab_size)

    def _input_padding(self):
        """The value that fills up each input of the model."""
        ids = self._pad_id()
        return {"token_ids": ids, "token_type_ids": 0} if self._token_types else ids
