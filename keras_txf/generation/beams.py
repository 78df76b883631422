"""Beam search without moving a cache: the beams of a sequence share one, and each sees its own way through it.

A step writes the keys of W tokens side by side. Which of the columns belong to a beam is in its mask, so a
beam that goes on from another one takes over its mask, and nothing else moves.

Legend: B batch, W beams, P prompt length, N new tokens at most, L = P + N places, V vocabulary, F candidates
for the next place.
"""

import dataclasses

from keras import ops

from keras_txf import checks
from keras_txf.generation.decoding import process, stopped, write_column
from keras_txf.generation.ranking import top_k

WORST = -1e9  # of a beam that does not exist


@dataclasses.dataclass(frozen=True)
class Beam:
    """Beam search: keeps the likeliest beginnings, and returns the best of those that ended.

    Scores are sums of log-probabilities divided by (number of tokens) ** length_penalty. Sequences, scores
    and the end of the search are those of Hugging Face's `generate`.

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
        checks.positive_integer("num_beams", self.num_beams)
        object.__setattr__(self, "length_penalty", checks.finite_number("length_penalty", self.length_penalty))
        checks.one_of("early_stopping", self.early_stopping, (False, True, "never"))


class BeamDecoding:
    """The loop of a beam search.

    Args:
        reader: with models of width `num_beams`.
        beam: a `Beam`.
        processors: functions of logits and `History`.
        returned: how many sequences for each prompt.
    """

    def __init__(self, reader, beam, processors, returned):
        self.reader, self.beam, self.processors, self.returned = reader, beam, processors, returned

    def start(self, request):
        """Reads the prompts and chooses the first tokens: the state, and what stays as it is, dicts of tensors."""
        width = self.beam.num_beams
        outputs, cache, constant = self.reader.read_prompt(request)
        history = _for_each_beam(request.history, width)
        blank = ops.full_like(history[:, :, : request.new], -1)
        nothing = ops.zeros_like(blank, "float32")
        first = ops.cast(ops.arange(width) > 0, "float32") * WORST  # so far all beams are one
        state = {
            "count": ops.zeros((), "int32"),
            "history": history,
            "visible": _for_each_beam(request.visible, width),
            "scores": ops.zeros_like(nothing[:, :, 0]) + first,
            "log_probs": nothing,
            "ended_tokens": blank,
            "ended_log_probs": nothing,
            "ended_scores": ops.full_like(nothing[:, :, 0], WORST),
            "ended": ops.zeros_like(history[:, :, 0], "bool"),
            "running": ops.ones_like(history[:, 0, 0], "bool"),
            "cache": cache,
        }
        return self._extend(state, _for_each_beam(outputs["logits"], width), request), constant

    def advance(self, state, constant, request, until):
        """Extends the beams until they have `until` tokens, or no row can gain any more."""
        width = self.beam.num_beams

        def wanted(state):
            return ops.logical_and(state["count"] < until, ops.any(state["running"]))

        def body(state):
            place = state["count"] - 1
            column = ops.reshape(request.prompt_length + place, (1,))
            tokens = ops.maximum(ops.take(state["history"], column, axis=2)[:, :, 0], 0)
            index = request.prompt_length + width * place
            logits, cache, _ = self.reader.read(tokens, state["visible"], index, state["cache"], constant, request)
            return (self._extend({**state, "cache": cache}, logits, request),)

        (state,) = ops.while_loop(wanted, body, (state,))
        return state

    def results(self, state, request):
        """The best that ended: tokens, int (B · returned, N), -1 after the end, log-probabilities, and scores."""

        def best(x):
            return ops.reshape(x[:, : self.returned], (-1, *ops.shape(x)[2:]))

        found = state["ended"][..., None]  # where fewer sequences exist than beams
        tokens = ops.where(found, state["ended_tokens"], -1)
        log_probs = ops.where(found, state["ended_log_probs"], 0.0)
        return best(tokens), best(log_probs), best(state["ended_scores"])

    def _extend(self, state, logits, request):
        """The state with one token more in each beam; logits are (B, W, V)."""
        width, count, vocab_size = self.beam.num_beams, state["count"], logits.shape[-1]
        history = ops.reshape(state["history"], (-1, ops.shape(state["history"])[2]))
        logits = process(self.processors, ops.reshape(logits, (-1, vocab_size)), history, count, request)
        log_probs = ops.reshape(ops.log_softmax(logits), (-1, width * vocab_size))

        # As many candidates as can end at once, and then `num_beams` more.
        totals = log_probs + ops.repeat(state["scores"], vocab_size, axis=1)
        totals, choice = top_k(totals, min(width * (1 + request.stops.shape[0]), width * vocab_size))
        parents, tokens = choice // vocab_size, choice % vocab_size
        own_log_probs = ops.take_along_axis(log_probs, choice, axis=1)
        candidates = {
            "history": write_column(_rows(state["history"], parents), request.prompt_length + count, tokens),
            "log_probs": write_column(_rows(state["log_probs"], parents), count, own_log_probs),
        }
        ends = stopped(candidates["history"], count, request)
        ends = ops.logical_or(ends, (count + 1 >= request.limits)[:, None])
        ended = self._ended(state, request, candidates, totals, ends)

        scores, kept = ops.top_k(ops.where(ends, WORST, totals), width)
        going = {name: _rows(value, kept) for name, value in candidates.items()}
        real = self.reader.is_real(ops.take_along_axis(tokens, kept, axis=1))
        visible = see_oneself(
            _rows(state["visible"], ops.take_along_axis(parents, kept, axis=1)),
            request.prompt_length + width * count,
            real,
        )
        running = ops.logical_and(state["running"], scores[:, 0] > WORST / 2)
        running = ops.logical_and(running, self._may_improve(ended, scores[:, :1], count + 1, request))
        return {
            **state, **going, **ended, "count": count + 1, "scores": scores, "visible": visible, "running": running
        }  # fmt: skip

    def _ended(self, state, request, candidates, totals, ends):
        """The best `num_beams` of what has ended. Only a candidate that is itself among the best may join."""
        width = self.beam.num_beams
        totals = totals[:, :width]
        joins = ops.logical_and(ends[:, :width], totals > WORST / 2)
        joins = ops.logical_and(joins, state["running"][:, None])
        scores = totals / ops.cast(state["count"] + 1, "float32") ** self._penalty(request)
        scores = ops.concatenate([state["ended_scores"], ops.where(joins, scores, WORST)], axis=1)
        scores, best = ops.top_k(scores, width)
        both = {
            "ended_tokens": (state["ended_tokens"], candidates["history"][:, :width, request.prompt_length :]),
            "ended_log_probs": (state["ended_log_probs"], candidates["log_probs"][:, :width]),
            "ended": (state["ended"], joins),
        }
        return {
            "ended_scores": scores,
            **{name: _rows(ops.concatenate(pair, axis=1), best) for name, pair in both.items()},
        }

    def _may_improve(self, ended, best_score, length, request):
        """Whether the best of the running beams may yet get among those that ended, (B,)."""
        full = ops.all(ended["ended"], axis=1)
        if self.beam.early_stopping is True or self.beam.num_beams == 1:  # one beam is greedy
            return ops.logical_not(full)
        penalty = self._penalty(request)
        length = ops.cast(length, "float32")
        if self.beam.early_stopping == "never":
            length = ops.where(penalty > 0, ops.cast(request.limits, "float32"), length)[:, None]
        possible = best_score / length**penalty
        return ops.logical_or(ops.logical_not(full), ops.any(possible > ended["ended_scores"], axis=1))

    def _penalty(self, request):
        return ops.convert_to_tensor(request.numbers[0]["length_penalty"], "float32")


def see_oneself(visible, index, real):
    """What the W tokens of a step may see, (B, W, columns): each itself, from column `index` on, if it is real."""
    own = ops.logical_and(ops.eye(real.shape[1], dtype="bool")[None], real[:, None])
    return ops.slice_update(visible, (0, 0, index), own)


def _for_each_beam(x, width):
    """(B, ...) -> (B, W, ...)."""
    return ops.repeat(x[:, None], width, axis=1)


def _rows(x, choice):
    """(B, W, ...) and (B, F) -> (B, F, ...): for each row its chosen beams."""
    shape = (*ops.shape(choice), *[1] * (len(x.shape) - 2))
    return ops.take_along_axis(x, ops.reshape(choice, shape), axis=1)
