"""Beam search that reorders no cache: the beams of a prompt share one cache, and each beam has an attention mask.

A step writes the keys of W tokens next to each other. The mask of a beam selects the cache columns of the beam. A beam
that continues another beam copies its mask, and nothing else moves.

Legend: B batch, W beams, P prompt length, N new tokens at most, L = P + N, V vocabulary, F candidates for the next
token, M the length of the longest stop.
"""

import dataclasses

from keras import ops

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.generation.logits import gather_rows, log_probabilities, top_k
from keras_txf.generation.loop import ends_with_stop, latest_tokens, process_logits, run_steps, write_column
from keras_txf.generation.parameters import is_finite, number, set_fields
from keras_txf.generation.results import empty_tables, top_results, top_tokens
from keras_txf.ops.tensors import LOWEST, at_least, minus_infinity_unless

NOT_RUNNING = -1e9  # score of a running beam that does not exist
NOT_FINISHED = LOWEST  # score of a finished beam that does not exist
LARGEST_SCORE = 1e38  # of a finished beam


@dataclasses.dataclass(frozen=True)
class Beam:
    """Beam search: keeps the likeliest beginnings of an answer, and returns the best finished ones.

    Scores are sums of log-probabilities divided by (number of tokens) ** length_penalty. Sequences, scores and the end
    of the search equal those of Hugging Face's `generate`. As in Hugging Face, with several beams processors change the
    log-probabilities, not the logits, so the probabilities no longer sum to 1.

    Args:
        num_beams: how many beams are kept.
        length_penalty: above 0 prefers longer sequences, 0 does not change the sum.
        early_stopping: when the search ends, once a prompt has `num_beams` finished beams. True stops at once. False
            continues while the best running beam would be among the finished beams if it ended now; "never" continues
            while it could be at any length. One beam is greedy, and stops at once.

    Raises:
        ValueError: fewer than one beam, an unknown `early_stopping`.

    Example:

    >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> model.generate([[5, 6, 7]], max_new_tokens=4, sampler=txf.generation.Beam(3), num_return_sequences=2).shape
    (1, 2, 7)
    """

    num_beams: int = 4
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    dynamic_parameters = True
    can_stream = False  # the tokens are known only when the search has ended

    def __post_init__(self):
        set_fields(
            self,
            num_beams=checks.positive_integer("num_beams", self.num_beams),
            length_penalty=number("length_penalty", self.length_penalty, is_finite, "a finite number"),
        )
        checks.one_of("early_stopping", self.early_stopping, (False, True, "never"))

    @property
    def max_return_sequences(self):
        """The maximum of `num_return_sequences`."""
        return self.num_beams

    def check_vocabulary(self, vocab_size):
        """Raises ValueError if `num_beams * vocab_size` overflows int32."""
        if self.num_beams * vocab_size >= 2**31:
            raise ValueError(
                f"`num_beams` times the vocabulary's size, {vocab_size}, must be below 2**31; received "
                f"{short_repr(self.num_beams)}."
            )

    def decoding_loop(self, models, processors, num_return_sequences, top_logprobs=0):
        """The loop that `generate` runs, see `generation.loop.decoding_loop`."""
        return BeamDecoding(models(self.num_beams), self, processors, num_return_sequences, top_logprobs)


class BeamDecoding:
    """The loop of a beam search.

    Args:
        models: a `GraphDecoder` of width `num_beams`.
        beam: a `Beam`.
        processors: functions of logits, or of the log-probabilities of several beams, and `History`.
        num_return_sequences: how many sequences for each prompt.
        top_logprobs: how many of the likeliest tokens the results have for each step.
    """

    def __init__(self, models, beam, processors, num_return_sequences, top_logprobs=0):
        self.models, self.beam, self.processors = models, beam, processors
        self.num_return_sequences, self.top_logprobs = num_return_sequences, top_logprobs

    def start(self, request):
        """Reads the prompts and chooses the first tokens: the state, and the tensors that all steps share, dicts."""
        width = self.beam.num_beams
        outputs, cache, constant = self.models.run_prefill(request)
        history = _for_each_beam(request.history, 2 * width)
        zeros = ops.zeros_like(history[:, :width, 0], "float32")
        state = {
            "count": ops.zeros((), "int32"),
            "tokens": history[:, :width, 0],
            "attention_mask": _for_each_beam(request.attention_mask, width),
            "scores": ops.where(ops.arange(width, dtype="int32") > 0, NOT_RUNNING, zeros),  # all beams are equal so far
            "history": history,  # of the running beams, then of the finished beams
            "log_probs": ops.zeros_like(history[:, :, : request.max_new_tokens], "float32"),
            "finished_scores": zeros + NOT_FINISHED,
            "running": ops.ones_like(history[:, 0, 0], "bool"),
            "cache": cache,
        }
        state |= empty_tables(state["log_probs"], self.top_logprobs)
        return self._extend(state, _for_each_beam(outputs["logits"], width), request), constant

    def advance(self, state, constant, request, until):
        """Extends the beams until they have `until` tokens, or no prompt can gain a better sequence."""

        def step(state):
            cache_position = request.prompt_length + self.beam.num_beams * (state["count"] - 1)
            logits, cache, _ = self.models.run_step(
                state["tokens"], state["attention_mask"], cache_position, state["cache"], constant, request
            )
            return self._extend({**state, "cache": cache}, logits, request)

        return run_steps(step, state, until)

    def results(self, state, request):
        """The best finished beams: tokens, int (R, N), -1 after the end; log-probabilities (R, N); scores (R,).

        With `top_logprobs`, also ids and log-probabilities of the tokens that are likeliest after each beam, (R, N, k).
        """
        width = self.beam.num_beams

        def best(x, first=0):
            return ops.reshape(x[:, first : first + self.num_return_sequences], (-1, *ops.shape(x)[2:]))

        scores = best(state["finished_scores"])
        exists = scores > NOT_FINISHED  # False if there are fewer sequences than beams
        scores = ops.where(exists, scores, minus_infinity_unless(exists))
        exists = exists[:, None]
        tokens = ops.where(exists, best(state["history"], width)[:, request.prompt_length :], -1)
        log_probs = ops.where(exists, best(state["log_probs"], width), 0.0)
        return tokens, log_probs, scores, *(best(table, width) for table in top_results(state))

    def _extend(self, state, logits, request):
        """The state with one more token in each beam; logits are (B, W, V)."""
        width, count, vocab_size = self.beam.num_beams, state["count"], logits.shape[-1]
        history = state["history"][:, :width]
        log_probs = self._log_probs(logits, history, count, request)
        top = top_tokens(ops.reshape(log_probs, (-1, vocab_size)), self.top_logprobs)

        # The number of candidates that can finish in one step, and `num_beams` more.
        totals = ops.reshape(log_probs + state["scores"][..., None], (-1, width * vocab_size))
        totals, candidates = top_k(totals, min(width * (1 + request.stops.shape[0]), width * vocab_size))
        before = gather_rows(latest_tokens(history, count, request), candidates // vocab_size)[..., :-1]
        ends = ends_with_stop(ops.concatenate([before, (candidates % vocab_size)[..., None]], axis=-1), request)
        ends = ops.logical_or(ends, (count + 1 >= request.limits)[:, None])

        finished_scores, finished = self._best_finished(state, request, totals, ends)
        scores, continued = ops.top_k(ops.where(ends, NOT_RUNNING, totals), width)
        best_score = ops.max(scores, axis=1)
        is_running = ops.logical_and(state["running"], best_score > NOT_RUNNING / 2)
        may_improve = self._may_improve(finished_scores, best_score, count + 1, request)
        is_running = ops.logical_and(is_running, may_improve)

        # Indices below W are the beams that finished before, the others are candidates.
        chosen = ops.concatenate([continued + width, finished], axis=1)
        is_old, candidates = chosen < width, gather_rows(candidates, at_least(chosen - width, 0))
        beams = ops.where(is_old, chosen + width, candidates // vocab_size)
        tokens = ops.where(is_old, -1, candidates % vocab_size)
        log_probs = gather_rows(ops.reshape(log_probs, (-1, width * vocab_size)), candidates)
        log_probs = ops.where(is_old, 0.0, log_probs)
        for name, values in top.items():  # of the beam that a candidate continues
            values = gather_rows(ops.reshape(values, (-1, width, self.top_logprobs)), candidates // vocab_size)
            top[name] = write_column(gather_rows(state[name], beams), count, values)
        attention_mask = gather_rows(state["attention_mask"], beams[:, :width])
        # A row that has stopped takes no more positions: the model may not have them.
        cache_position = request.prompt_length + width * count
        return {
            **state,
            "count": count + 1,
            "tokens": tokens[:, :width],
            "attention_mask": with_own_columns(attention_mask, cache_position, is_running),
            "scores": scores,
            "history": write_column(gather_rows(state["history"], beams), request.prompt_length + count, tokens),
            "log_probs": write_column(gather_rows(state["log_probs"], beams), count, log_probs),
            "finished_scores": finished_scores,
            "running": is_running,
            **top,
        }

    def _log_probs(self, logits, history, count, request):
        """Log-probabilities after the processors, (B, W, V)."""
        rows, history = ops.reshape(logits, (-1, logits.shape[-1])), ops.reshape(history, (-1, ops.shape(history)[2]))
        if self.beam.num_beams > 1:
            rows = ops.log_softmax(ops.cast(rows, "float32"))
            rows = process_logits(self.processors, rows, history, count, request)
        else:  # one beam is greedy
            rows = log_probabilities(process_logits(self.processors, rows, history, count, request))
        return ops.reshape(rows, (-1, self.beam.num_beams, logits.shape[-1]))

    def _best_finished(self, state, request, totals, ends):
        """The scores (B, W) and indices (B, W) of the best W beams that finished before or now.

        A missing beam has the score `NOT_FINISHED`.

        An index below W is a beam that finished before, the others are candidates.
        """
        width = self.beam.num_beams
        finishes = ops.logical_and(ends, totals > NOT_RUNNING / 2)
        is_best = ops.arange(totals.shape[1], dtype="int32") < width  # only one of the best W may finish
        finishes = ops.logical_and(finishes, is_best)
        finishes = ops.logical_and(finishes, state["running"][:, None])
        scores = self._score(totals, state["count"] + 1, request)
        scores = ops.concatenate([state["finished_scores"], ops.where(finishes, scores, NOT_FINISHED)], axis=1)
        return ops.top_k(scores, width)

    def _may_improve(self, finished_scores, best_score, length, request):
        """Whether the best running beam may still be among the best W finished ones, (B,)."""
        worst = ops.min(finished_scores, axis=1)
        full = worst > NOT_FINISHED
        if self.beam.early_stopping is True or self.beam.num_beams == 1:  # one beam is greedy
            return ops.logical_not(full)
        if self.beam.early_stopping == "never":
            prefers_longer = ops.convert_to_tensor(request.parameters[0]["length_penalty"], "float32") > 0
            length = ops.where(prefers_longer, request.limits, length)
        possible = self._score(best_score, length, request)
        return ops.logical_or(ops.logical_not(full), possible > worst)

    def _score(self, total, length, request):
        """Scores of beams whose log-probabilities sum to `total`; finite for every penalty."""
        penalty = ops.convert_to_tensor(request.parameters[0]["length_penalty"], "float32")
        weight = ops.clip(ops.cast(length, "float32") ** penalty, 1e-30, 1e30)
        return ops.clip(total / weight, -LARGEST_SCORE, LARGEST_SCORE)


def with_own_columns(attention_mask, cache_position, is_running):
    """The mask of the W tokens of a step, (B, W, columns): each token of a running row also attends to its own column.

    The columns of the W tokens begin at `cache_position`.
    """
    columns = ops.arange(ops.shape(attention_mask)[2], dtype="int32")
    is_own = columns - cache_position == ops.arange(attention_mask.shape[1], dtype="int32")[:, None]
    return ops.logical_or(attention_mask, ops.logical_and(is_own, is_running[:, None, None]))


def _for_each_beam(x, width):
    """(B, ...) -> (B, W, ...)."""
    return ops.repeat(x[:, None], width, axis=1)
