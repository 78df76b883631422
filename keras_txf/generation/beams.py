"""Beam search without moving a cache: the beams of a sequence share one, and each sees its own way through it.

A step writes the keys of W tokens side by side. Which of the columns belong to a beam is in its mask, so a
beam that goes on from another one takes over its mask, and nothing else moves.

Legend: B batch, W beams, P prompt length, N new tokens at most, L = P + N places, V vocabulary, F candidates
for the next place.
"""

import dataclasses

from keras import ops

from keras_txf import checks
from keras_txf.generation.adjustable import is_finite, number, set_fields
from keras_txf.generation.bounds import log_probabilities
from keras_txf.generation.compilers import while_loop
from keras_txf.generation.decoding import latest, process, stopped, write_column
from keras_txf.generation.ranking import rows, top_k

WORST = -1e9  # of a running beam that does not exist
NONE = -float("inf")  # of an ended beam that does not exist
LARGEST = 1e38  # of the score of one that does


@dataclasses.dataclass(frozen=True)
class Beam:
    """Beam search: keeps the likeliest beginnings, and returns the best of those that ended.

    Scores are sums of log-probabilities divided by (number of tokens) ** length_penalty. Sequences, scores
    and the end of the search are those of Hugging Face's `generate`, where processors too change the
    log-probabilities of several beams, which then no longer sum to 1, and not the logits.

    Args:
        num_beams: how many beginnings are kept.
        length_penalty: above 0 prefers longer sequences, 0 leaves the sum as it is.
        early_stopping: when a sequence has as many ended beams as `num_beams`: False goes on while the best
            beginning would still get among them if it ended now, "never" while it could at any length,
            True stops. One beam is greedy, and stops.

    Raises:
        ValueError: fewer than one beam, another `early_stopping`.

    Example:

    >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> model.generate([[5, 6, 7]], max_new_tokens=4, sampler=txf.generation.Beam(3), num_return_sequences=2).shape
    (1, 2, 7)
    """

    num_beams: int = 4
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    adjustable = True

    @property
    def width(self):
        return self.num_beams

    def __post_init__(self):
        set_fields(
            self,
            num_beams=checks.positive_integer("num_beams", self.num_beams),
            length_penalty=number("length_penalty", self.length_penalty, is_finite, "a finite number"),
        )
        checks.one_of("early_stopping", self.early_stopping, (False, True, "never"))


class BeamDecoding:
    """The loop of a beam search.

    Args:
        reader: with models of width `num_beams`.
        beam: a `Beam`.
        processors: functions of logits, or of the log-probabilities of several beams, and `History`.
        returned: how many sequences for each prompt.
    """

    def __init__(self, reader, beam, processors, returned):
        self.reader, self.beam, self.processors, self.returned = reader, beam, processors, returned

    def start(self, request):
        """Reads the prompts and chooses the first tokens: the state, and what stays as it is, dicts of tensors."""
        width = self.beam.num_beams
        outputs, cache, constant = self.reader.read_prompt(request)
        history = _for_each_beam(request.history, 2 * width)
        nothing = ops.zeros_like(history[:, :width, 0], "float32")
        state = {
            "count": ops.zeros((), "int32"),
            "tokens": history[:, :width, 0],
            "visible": _for_each_beam(request.visible, width),
            "scores": nothing + ops.cast(ops.arange(width) > 0, "float32") * WORST,  # so far all beams are one
            # The running beams and then those that ended.
            "history": history,
            "log_probs": ops.zeros_like(history[:, :, : request.new], "float32"),
            "ended_scores": nothing + NONE,
            "running": ops.ones_like(history[:, 0, 0], "bool"),
            "cache": cache,
        }
        return self._extend(state, _for_each_beam(outputs["logits"], width), request), constant

    def advance(self, state, constant, request, until):
        """Extends the beams until they have `until` tokens, or no row can gain any more."""

        def wanted(state):
            return ops.logical_and(state["count"] < until, ops.any(state["running"]))

        def body(state):
            index = request.prompt_length + self.beam.num_beams * (state["count"] - 1)
            logits, cache, _ = self.reader.read(
                state["tokens"], state["visible"], index, state["cache"], constant, request
            )
            return self._extend({**state, "cache": cache}, logits, request)

        return while_loop(wanted, body, state)

    def results(self, state, request):
        """The best that ended: tokens, int (B · returned, N), -1 after the end, log-probabilities, and scores."""
        first = self.beam.num_beams

        def best(x, first=0):
            return ops.reshape(x[:, first : first + self.returned], (-1, *ops.shape(x)[2:]))

        found = (best(state["ended_scores"]) > NONE)[:, None]  # where fewer sequences exist than beams
        tokens = ops.where(found, best(state["history"], first)[:, request.prompt_length :], -1)
        log_probs = ops.where(found, best(state["log_probs"], first), 0.0)
        return tokens, log_probs, best(state["ended_scores"])

    def _extend(self, state, logits, request):
        """The state with one token more in each beam; logits are (B, W, V)."""
        width, count, vocab_size = self.beam.num_beams, state["count"], logits.shape[-1]
        history = state["history"][:, :width]
        past = ops.reshape(history, (-1, ops.shape(history)[2]))
        log_probs = self._log_probs(ops.reshape(logits, (-1, vocab_size)), past, count, request)
        log_probs = ops.reshape(log_probs, (-1, width, vocab_size))

        # As many candidates as can end at once, and then `num_beams` more.
        totals = ops.reshape(log_probs + state["scores"][..., None], (-1, width * vocab_size))
        totals, choice = top_k(totals, min(width * (1 + request.stops.shape[0]), width * vocab_size))
        before = rows(latest(history, count, request), choice // vocab_size)[..., :-1]
        ends = stopped(ops.concatenate([before, (choice % vocab_size)[..., None]], axis=-1), request)
        ends = ops.logical_or(ends, (count + 1 >= request.limits)[:, None])

        ended_scores, kept_ended = self._ended(state, request, totals, ends)
        scores, kept = ops.top_k(ops.where(ends, WORST, totals), width)
        best_score = ops.max(scores, axis=1)
        running = ops.logical_and(state["running"], best_score > WORST / 2)
        running = ops.logical_and(running, self._may_improve(ended_scores, best_score, count + 1, request))

        # Of the beams that ended before, and then the candidates.
        chosen = ops.concatenate([kept + width, kept_ended], axis=1)
        old, choice = chosen < width, rows(choice, ops.maximum(chosen - width, 0))
        source = ops.where(old, chosen + width, choice // vocab_size)
        tokens = ops.where(old, -1, choice % vocab_size)
        log_probs = ops.where(old, 0.0, rows(ops.reshape(log_probs, (-1, width * vocab_size)), choice))
        visible = rows(state["visible"], source[:, :width])
        # A row that has ended takes no further places: the model may not have them.
        real = ops.logical_and(self.reader.is_real(tokens[:, :width]), running[:, None])
        index = request.prompt_length + width * count
        return {
            **state,
            "count": count + 1,
            "tokens": tokens[:, :width],
            "visible": see_oneself(visible, index, real),
            "scores": scores,
            "history": write_column(rows(state["history"], source), request.prompt_length + count, tokens),
            "log_probs": write_column(rows(state["log_probs"], source), count, log_probs),
            "ended_scores": ended_scores,
            "running": running,
        }

    def _log_probs(self, logits, past, count, request):
        if self.beam.num_beams > 1:
            return process(self.processors, ops.log_softmax(ops.cast(logits, "float32")), past, count, request)
        return log_probabilities(process(self.processors, logits, past, count, request))  # one beam is greedy

    def _ended(self, state, request, totals, ends):
        """The best `num_beams` that ended before or now: scores, `NONE` where none exists, and places, (B, W)."""
        width = self.beam.num_beams
        joins = ops.logical_and(ends, totals > WORST / 2)
        joins = ops.logical_and(joins, ops.arange(totals.shape[1]) < width)  # only one of the best may
        joins = ops.logical_and(joins, state["running"][:, None])
        scores = self._score(totals, state["count"] + 1, request)
        scores = ops.concatenate([state["ended_scores"], ops.where(joins, scores, NONE)], axis=1)
        return ops.top_k(scores, width)

    def _may_improve(self, ended_scores, best_score, length, request):
        """Whether the best of the running beams may yet get among those that ended, (B,)."""
        worst = ops.min(ended_scores, axis=1)
        full = worst > NONE
        if self.beam.early_stopping is True or self.beam.num_beams == 1:  # one beam is greedy
            return ops.logical_not(full)
        if self.beam.early_stopping == "never":
            prefers_longer = ops.convert_to_tensor(request.numbers[0]["length_penalty"], "float32") > 0
            length = ops.where(prefers_longer, request.limits, length)
        possible = self._score(best_score, length, request)
        return ops.logical_or(ops.logical_not(full), possible > worst)

    def _score(self, total, length, request):
        """Of beams whose log-probabilities sum to `total`; finite, whatever the penalty."""
        penalty = ops.convert_to_tensor(request.numbers[0]["length_penalty"], "float32")
        weight = ops.clip(ops.cast(length, "float32") ** penalty, 1e-30, 1e30)
        return ops.clip(total / weight, -LARGEST, LARGEST)


def see_oneself(visible, index, real):
    """What the W tokens of a step may see, (B, W, columns): each itself, from column `index` on, if it is real."""
    own = ops.arange(ops.shape(visible)[2]) - index == ops.arange(real.shape[1])[:, None]
    return ops.logical_or(visible, ops.logical_and(own, real[..., None]))


def _for_each_beam(x, width):
    """(B, ...) -> (B, W, ...)."""
    return ops.repeat(x[:, None], width, axis=1)
