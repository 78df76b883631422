"""Texts in, generated texts out: in batches of similar length, or as a stream of whole characters."""

import numpy as np

from keras_txf import checks
from keras_txf.generation.stop_strings import REPLACEMENT, StopStrings, before_open_stop, before_stop, string_list
from keras_txf.models.generate_defaults import default_stop_strings
from keras_txf.tasks.batches import batch_bar
from keras_txf.tasks.columns import one_or_many
from keras_txf.tasks.errors import bad_argument


class Answers:
    """Generates the answers of a model to texts.

    Args:
        model: a model with `generate`.
        reader: the tokenizer of the texts.
        writer: the tokenizer of the answers.
        options: of `generate`; those of None have the model's defaults.
        return_prompt: whether an answer begins with its text; None where a model writes answers alone.
        joins: whether an answer continues the text, so that a blank between them belongs to the answer.
    """

    def __init__(self, model, reader, writer, options, return_prompt=None, joins=True):
        self.model, self.reader, self.writer = model, reader, writer
        self.options = {name: value for name, value in options.items() if value is not None}
        self.stops = string_list(self.options.get("stop_strings", default_stop_strings(model)))
        self.joins = joins
        self.return_prompt = return_prompt
        self.continues = return_prompt is not None
        start = options.get("start_id")
        self.starts = len(start) if isinstance(start, (list, tuple)) else int(start is not None)  # `generate` checks it
        for name in ("padded", "stream", "return_scores", "top_logprobs", "num_return_sequences", "tokenizer"):
            if name in options:
                call = "pass it with token ids to `task.model.generate`"
                raise bad_argument(name, f"not be given, as a task returns texts alone: {call}", options[name])

    def __call__(self, texts, batch_size, stream, verbose):
        """The answers, or an iterator of their pieces if `stream` is True."""
        return self.stream(texts) if checks.boolean("stream", stream) else self.all(texts, batch_size, verbose)

    def all(self, texts, batch_size, verbose):
        """The answer to a text, or a list of answers. For `verbose` see `batch_bar`."""
        texts, back = one_or_many("texts", texts)
        checks.positive_integer("batch_size", batch_size)
        rows, answers = self._read(texts), [None] * len(texts)
        order = np.argsort([len(row) for row in rows], kind="stable")
        for start in batch_bar(range(0, len(rows), batch_size), verbose):
            places = order[start : start + batch_size]
            found = self._generate([rows[i] for i in places], padded=False)
            for place, ids in zip(places, found):
                read = (self.starts + len(rows[place])) * self.continues
                answers[place] = self._write(list(ids[read:]), rows[place])
        return back(answers)

    def stream(self, texts):
        """Yields pieces of the answer to a text, or lists of pieces, some of them empty: whole characters."""
        texts, back = one_or_many("texts", texts)
        rows = self._read(texts)
        tokens = self._generate(rows, stream=True)

        def pieces():
            ids, shown = [[] for _ in rows], [""] * len(rows)
            if self.return_prompt:
                shown = [self._write([], row) for row in rows]
                yield back(shown[:])
            for step in tokens:
                new = []
                for row, token in enumerate(step):
                    if token >= 0:
                        ids[row].append(int(token))
                    text = self._write(ids[row], rows[row], more=True) if token >= 0 else shown[row]
                    text = text if whole_characters(text) else shown[row]
                    new.append(text[len(shown[row]) :])
                    shown[row] = text
                if any(new):  # else within a character, or a special token
                    yield back(new)
            rest = [self._write(row, prompt)[len(text) :] for row, prompt, text in zip(ids, rows, shown)]
            if any(rest):  # bytes that are no character
                yield back(rest)

        return pieces()

    def _generate(self, rows, **form):
        """The model's answers to rows of ids, which end at the stop strings too."""
        stops = StopStrings(self.stops, lambda places, ids: self._texts(ids, [rows[place] for place in places])[1])
        options = {**self.options, "stop_strings": stops} if self.stops else self.options
        return self.model.generate(rows, **form, **options)

    def _read(self, texts):
        ids = self.reader(texts)
        rows = ids.to_list() if hasattr(ids, "to_list") else np.asarray(ids).tolist()
        rows = [[token for token in row if token != self.reader.pad_id] for row in rows]  # as `generate` returns them
        for place, row in enumerate(rows):
            if not row:
                raise bad_argument("texts", "each have a token", texts[place], place)
        return rows

    def _write(self, ids, prompt, more=False):
        """The text of new ids, before the first stop string.

        With `more`, tokens may follow: the end of the text is left out where a stop string may begin with it.
        """
        [before], [text], [whole] = self._texts([ids], [prompt])
        kept = before_stop(text, self.stops)
        kept = before_open_stop(text, self.stops) if more and kept == text else kept
        if not self.return_prompt:
            return kept
        return whole if kept == text else before + kept

    def _texts(self, rows, prompts):
        """The texts of prompts, of new ids, and of both together.

        A continuation is cut from the whole text, as a blank belongs to the piece after it.
        """
        stop = self.options.get("stop_ids")
        ends = {stop} if isinstance(stop, int) else set(stop or ())
        rows = [[token for token in ids if token not in ends and token < self.writer.vocab_size] for ids in rows]
        if not self.continues or not self.joins:
            texts = self.writer.detokenize(rows)
            return [""] * len(rows), texts, texts
        both = [[*prompt, *ids] for prompt, ids in zip(prompts, rows)]
        before, whole = self.writer.detokenize(prompts), self.writer.detokenize(both)
        new = [text[len(prompt) :] if text.startswith(prompt) else None for prompt, text in zip(before, whole)]
        if None in new:
            alone = self.writer.detokenize(rows)
            new = [text if known is None else known for known, text in zip(new, alone)]
        return before, new, whole


def whole_characters(text):
    """Whether a text does not end within a character, which has four bytes at most."""
    return not text.endswith(REPLACEMENT) or text.endswith(4 * REPLACEMENT)


def stop_ids_of(tokenizer):
    """The option `stop_ids` of `generate`: the token that ends a text."""
    return {"stop_ids": tokenizer.token_to_id(tokenizer.end[0])} if tokenizer.end else {}
