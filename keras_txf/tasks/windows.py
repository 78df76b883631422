"""Texts in rows that a model reads at once: long ones are several rows, of whole words or with an overlap.

Legend: W words of a text, T tokens of a context, K tokens of the longest answer, L length of a row.
"""

import dataclasses

import numpy as np

from keras_txf.tasks.errors import bad_argument
from keras_txf.text.lazy_imports import tf
from keras_txf.text.ragged import characters_before_bytes
from keras_txf.text.tags import has_blanks_in_tokens, split_into_words, tokens_of_words


class WordWindows:
    """Tokenizes words into rows of at most `max_length` tokens, which end where a word ends.

    Args:
        tokenizer: the tokenizer.
        max_length: number of tokens of a row, with `start` and `end`.
    """

    def __init__(self, tokenizer, max_length):
        self.tokenizer = tokenizer
        self.room = max_length - len(tokenizer.start) - len(tokenizer.end)
        self.blanks = has_blanks_in_tokens(tokenizer)

    def rows(self, texts):
        """Returns the rows of texts, and whose they are.

        Args:
            texts: list of lists of W words.

        Returns:
            rows: list of int32 (L,).
            owners: for each row the place of its text, and int arrays of the places of words' first tokens in the row,
                and of these words in the text.
        """
        words = tf.ragged.constant(texts, tf.string, 1)
        ids, places, first = tokens_of_words(self.tokenizer, words, self.blanks)
        splits, before = ids.row_splits.numpy(), words.row_splits.numpy()
        places, first = places.flat_values.numpy(), first.flat_values.numpy()
        parts, owners = [], []
        for text in range(len(texts)):
            for start, stop in word_limits(places, splits[text], splits[text + 1], self.room):
                tokens = np.flatnonzero(first[start:stop])
                parts.append((start, stop))
                owners.append((text, tokens + len(self.tokenizer.start), places[start:stop][tokens] - before[text]))
        lengths = [stop - start for start, stop in parts]
        rows = tf.RaggedTensor.from_row_lengths(ids.flat_values, lengths)  # the windows hold all tokens, in order
        rows = self.tokenizer._add_special_tokens(rows)
        return np.split(rows.flat_values.numpy(), rows.row_splits.numpy()[1:-1]) if parts else [], owners

    def split(self, texts):
        """Returns the words of texts, and the places of the words in characters, lists of (begin, end)."""
        words, begins, ends = split_into_words(tf.constant(texts, tf.string))
        found = [[word.decode() for word in row] for row in words.to_list()]
        places = []
        for text, *limits in zip(texts, begins.to_list(), ends.to_list()):
            characters = characters_before_bytes(text)
            places.append([(int(characters[begin]), int(characters[end])) for begin, end in zip(*limits)])
        return found, places


def word_limits(places, start, stop, room):
    """Yields the limits of windows of at most `room` of the tokens from `start` to `stop`; `places` are their words."""
    while start < stop:
        end = min(start + room, stop)
        if end < stop and places[end] == places[end - 1]:
            first = start + int(np.searchsorted(places[start:end], places[end]))
            end = first if first > start else end  # a word of more tokens than there is room
        yield start, end
        start = end


def words_of(name, texts):
    """Returns lists of words. Raises ValueError for other values."""
    must = "be a list of lists of strings"
    texts = texts.tolist() if hasattr(texts, "tolist") else texts
    if not isinstance(texts, (list, tuple)):
        raise bad_argument(name, must, texts)
    rows = []
    for place, row in enumerate(texts):
        row = row.tolist() if hasattr(row, "tolist") else row
        if not isinstance(row, (list, tuple)) or not all(isinstance(word, str) for word in row):
            raise bad_argument(name, must, row, place)
        rows.append(list(row))
    return rows


@dataclasses.dataclass(frozen=True)
class Window:
    """A part of a context in a row.

    Args:
        example: the place of the question.
        first, count: the first token of the context in the row, and the number of its tokens there.
        before: the number of tokens in the row before them.
    """

    example: int
    first: int
    count: int
    before: int

    def place(self, token):
        """The place in the row of a token of the context, or None."""
        return self.before + token - self.first if 0 <= token - self.first < self.count else None


class AnswerWindows:
    """Makes rows of `start`, a question, the separator, a part of the context, `end`.

    Args:
        tokenizer: the tokenizer.
        max_length: number of tokens of a row. A question has at most half of those that are not special.
        overlap: number of tokens that a part of a context shares with the next.
        separator: list of special tokens between question and context.
        token_types: whether rows have token type ids, 0 up to the separator and 1 from the context on.
    """

    def __init__(self, tokenizer, max_length, overlap, separator, token_types):
        self.tokenizer, self.overlap, self.token_types = tokenizer, overlap, token_types
        self.start, self.between, self.end = (
            np.array([tokenizer.special_tokens[token] for token in tokens], "int32")
            for tokens in (tokenizer.start, separator, tokenizer.end)
        )
        self.room = max_length - len(self.start) - len(self.between) - len(self.end)

    def rows(self, questions, contexts):
        """Returns the rows, their windows, and for each question the offsets (T, 2) of its context's tokens."""
        tokens = self._tokens(contexts)
        asked = self._tokens(questions)
        rows, windows = [], []
        for example, (question, context) in enumerate(zip(questions, contexts)):
            head = np.concatenate([self.start, asked[question][0][: self.room // 2], self.between])
            room = self.room + len(self.start) + len(self.between) - len(head)
            ids = tokens[context][0]
            for first in starts(len(ids), room, self.overlap):
                part = ids[first : first + room]
                rows.append(self._row(head, np.concatenate([part, self.end])))
                windows.append(Window(example, first, len(part), len(head)))
        return rows, windows, [tokens[context][1] for context in contexts]

    def _tokens(self, texts):
        distinct = list(dict.fromkeys(texts))
        return dict(zip(distinct, self.tokenizer.tokenize_with_offsets(distinct)))

    def _row(self, head, tail):
        ids = np.concatenate([head, tail])
        if not self.token_types:
            return ids
        return {"token_ids": ids, "token_type_ids": np.repeat([0, 1], [len(head), len(tail)]).astype("int32")}


def starts(length, room, overlap):
    """The first tokens of windows of `room` tokens; neighbours share `overlap`, and the last one may be shorter."""
    return range(0, max(length - overlap, 1), room - overlap) if length > room else [0]


def tokens_of(offsets, start, end):
    """The first and the last token of the characters from `start` to `end`, or None."""
    inside = np.flatnonzero((offsets[:, 1] > start) & (offsets[:, 0] < end))
    return (int(inside[0]), int(inside[-1])) if len(inside) else None


def targets(window, span):
    """The places in a row of an answer's first and last token; those of the row's first token where it is not there."""
    places = [window.place(token) for token in span] if span is not None else [None]
    start, end = (0, 0) if None in places else places
    return {"start_logits": np.int32(start), "end_logits": np.int32(end)}


def best_spans(windows, logits, context, offsets, longest, k, null_threshold):
    """Finds the best answers in a context.

    The score of a span is the sum of the logits of its first and its last token; where two windows hold it, the larger
    one. The score of no answer is the sum of both logits of the first token of a row, in the window where it is least.

    Args:
        windows, logits: the windows of the context, and the logits (L, 2) of each.
        context, offsets: the text, and the offsets of its tokens, int (T, 2).
        longest: number K of tokens of the longest answer.
        k: number of answers.
        null_threshold: how much the score of no answer must be above that of the best span; None where every question
            has an answer.

    Returns:
        A list of at most `k` dicts of `text`, `start`, `end` and `score`, the best first.
    """
    scores = _span_scores(windows, logits, context, offsets, longest)
    flat = scores.ravel()
    null = min((float(rows[0].astype("float64").sum()) for rows in logits), default=0.0)
    candidates = flat if null_threshold is None else np.append(flat, null)
    total = np.logaddexp.reduce(candidates) if len(candidates) else 0.0
    found = {}
    for place in np.argsort(-flat, kind="stable"):
        if len(found) == k or not np.isfinite(flat[place]):
            break
        first, more = divmod(int(place), scores.shape[1])
        start, end = _without_blanks(context, int(offsets[first, 0]), int(offsets[first + more, 1]))
        found.setdefault((start, end), flat[place])  # tokens within a character make the same span
    ranked = [(score, score, *span) for span, score in found.items()]
    if null_threshold is not None:
        ranked = sorted([*ranked, (null - null_threshold, null, 0, 0)], key=lambda one: -one[0])[:k]
    return [
        {"text": context[start:end], "start": start, "end": end, "score": float(np.exp(score - total))}
        for _, score, start, end in ranked
    ]


def _span_scores(windows, logits, context, offsets, longest):
    """The scores of the spans of 1 to K tokens from each token on, float64 (T, K); -inf for what is no span."""
    solid = np.array([bool(context[start:end].strip()) for start, end in offsets], bool)
    count = len(offsets)
    longest = min(longest, count)
    scores = np.full((count, longest), -np.inf)
    for window, rows in zip(windows, logits):
        first, last = rows[window.before : window.before + window.count].astype("float64").T
        for more in range(min(longest, window.count)):
            part = scores[window.first : window.first + window.count - more, more]
            np.maximum(part, first[: window.count - more] + last[more:], out=part)
    ends = np.minimum(np.arange(count)[:, None] + np.arange(longest), count - 1)
    scores[~(solid[:, None] & solid[ends])] = -np.inf
    return scores


def _without_blanks(text, start, end):
    part = text[start:end]
    return start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())
