"""Assisted generation: a small model drafts tokens, and the model itself reads the whole draft in one step.

All rows take as many tokens of a draft as the row that accepts the fewest. The other rows draft their remaining tokens
again, so whether a token is kept depends on no random number of this token or of later tokens.

Legend: R rows, L columns, V vocabulary, K tokens of a draft.
"""

import dataclasses
import typing

from keras import ops

from keras_txf.backend.random import uniform
from keras_txf.checks import short_repr
from keras_txf.generation.logits import draw, gather_rows
from keras_txf.generation.loop import SampledDecoding, process_logits, run_steps, write_column
from keras_txf.generation.parameters import StepSeed, split_parameters, with_parameters
from keras_txf.generation.samplers import Greedy, Sampling
from keras_txf.ops.masks import put_slice
from keras_txf.ops.tensors import LOWEST

DRAFT, ACCEPT, REPLACE = range(3)  # purposes of random numbers, each with its own seed


@dataclasses.dataclass(frozen=True)
class Assisted:
    """A sampler with the decoder of an assistant.

    Args:
        sampler: `Greedy` or `Sampling`.
        assistant: a `GraphDecoder`.
        draft_tokens: K.
    """

    sampler: typing.Any
    assistant: typing.Any
    draft_tokens: int

    def decoding_loop(self, models, processors, num_return_sequences, top_logprobs=0):
        """The loop that `generate` runs, see `generation.loop.decoding_loop`."""
        pair = Pair(models(), self.assistant, self.draft_tokens)
        return AssistedDecoding(pair, self.sampler, processors, num_return_sequences, top_logprobs)

    def split_parameters(self):
        """The key of a compiled loop, and the floats of the sampler, see `dynamic_parameters`."""
        key, floats = split_parameters(self.sampler)
        return (key, self.assistant, self.draft_tokens), floats


def check_assisted(sampler):
    """Raises ValueError for a sampler whose distribution is unknown."""
    if not isinstance(sampler, (Greedy, Sampling)):
        raise ValueError(
            '`assistant` needs the sampler "greedy" or "sampling", whose distribution is known; received '
            f"{short_repr(sampler)}."
        )


class Pair:
    """A model and its assistant, with the methods of a `GraphDecoder`: reads prompts, and K + 1 tokens in order."""

    width = 1

    def __init__(self, model, assistant, draft_tokens):
        self.decoders = {"model": model, "assistant": assistant}
        self.variables, self.draft_tokens = [*model.variables, *assistant.variables], draft_tokens

    def run_prefill(self, request, repeats):
        """Reads the prompts: the outputs of the model, and the caches and the constants of both."""
        read = {name: decoder.run_prefill(request, repeats) for name, decoder in self.decoders.items()}
        cache, constant = ({name: results[part] for name, results in read.items()} for part in (1, 2))
        return read["model"][0], cache, constant

    def pad_cache(self, state, request):
        """The state after the prompts, with caches that have room for all new tokens and one more draft."""
        shift = ops.zeros_like(state["history"][:, 0])
        columns = ops.shape(request.attention_mask)[1] + self.draft_tokens
        last = request.prompt_length + self.draft_tokens
        cache = {
            name: decoder.move(state["cache"][name], shift, last, columns, self.draft_tokens + 1)
            for name, decoder in self.decoders.items()
        }
        return {**state, "cache": cache}

    def settle(self, name, ids, real, new, column, before, after, constant):
        """The cache for the kept tokens, `new`, bool (R, K + 1).

        Later tokens take the columns of dropped tokens. A recurrence that has read dropped tokens reads again from
        the cache `before`.
        """
        decoder = self.decoders[name]
        if not decoder.has_states(before):
            return after
        return decoder.read(ids, real, new, column, before, constant, last=True)[1]


class AssistedDecoding(SampledDecoding):
    """The loop of a sampler with an assistant, see `SampledDecoding`; its `models` are a `Pair`."""

    def advance(self, state, constant, request, until):
        """Chooses tokens until each row has `until` of them or some more, or has stopped."""
        return run_steps(lambda state: self._step(state, constant, request), state, until)

    def _step(self, state, constant, request):
        """The state with 1 to K + 1 more tokens."""
        count, tokens = state["count"], self.models.draft_tokens + 1
        column, offsets = request.prompt_length + count - 1, ops.arange(tokens, dtype="int32")
        limits = ops.repeat(request.limits, self.num_return_sequences)
        new = ops.logical_and(state["running"][:, None], count - 1 + offsets < limits[:, None])
        real = ops.pad(state["attention_mask"], ((0, 0), (0, tokens - 1)))
        of_draft = ops.arange(ops.shape(real)[1], dtype="int32") - column
        drafted = ops.take(new, ops.clip(of_draft, 0, tokens - 1), axis=1)
        real = ops.logical_or(real, ops.logical_and(drafted, ops.logical_and(of_draft >= 0, of_draft < tokens)))

        ids, chances, cache = self._draft(state, real, new, column, constant["assistant"], request)
        after = {"assistant": cache}
        outputs, after["model"] = self.models.decoders["model"].read(
            ids[:, :tokens], real, new, column, state["cache"]["model"], constant["model"]
        )

        def take(offset, carried):
            result, continues = carried
            offset = ops.cast(offset, "int32")
            logits = ops.take(outputs["logits"], offset, axis=1)
            logits = process_logits(self.processors, logits, result["history"], count + offset, request)
            draft = ops.take(ids, offset + 1, axis=1), [ops.take(x, offset, axis=1) for x in chances]
            chosen, agrees = self._choose(logits, *draft, offset < tokens - 1, count + offset, request)
            written = self._write(result, logits, chosen, request)
            result = {name: ops.where(continues, written[name], x) for name, x in result.items()}
            agrees = ops.all(ops.logical_or(agrees, ops.logical_not(result["running"])))
            return result, ops.logical_and(continues, ops.logical_and(agrees, ops.any(result["running"])))

        result = {name: x for name, x in state.items() if name != "cache"}
        result, _ = ops.fori_loop(0, tokens, take, (result, ops.ones((), "bool")))
        kept = ops.logical_and(new, offsets < result["count"] - count)
        cache = {
            name: self.models.settle(name, ids[:, :tokens], real, kept, column, before, after[name], constant[name])
            for name, before in state["cache"].items()
        }
        return {**result, "cache": cache}

    def _draft(self, state, real, new, column, constant, request):
        """The last token and K + 1 drafts, int (R, K + 2); the drafts' chances, [(R, K + 1, V)] or []; the cache."""
        decoder, sampler = self.models.decoders["assistant"], self._sampler(request)
        count, tokens = state["count"], new.shape[1]
        rows = ops.zeros_like(state["tokens"])
        chances = []
        if not isinstance(sampler, Greedy):
            chances = [ops.zeros((*ops.shape(rows)[:1], tokens, decoder.logits.shape[-1]), "float32")]
        ids = ops.concatenate([state["tokens"], ops.repeat(rows, tokens, axis=1)], axis=1)

        def step(offset, carried):
            ids, history, cache, chances = carried
            last, is_new = (ops.take(x, offset[None], axis=1) for x in (ids, new))
            outputs, cache = decoder.read(last, real, is_new, column + offset, cache, constant)
            logits = process_logits(self.processors, outputs["logits"][:, 0], history, count + offset, request)
            if chances:
                logits = sampler.filtered(logits)
                chances = [put_slice(chances[0], ops.softmax(logits)[:, None], offset, 1)]
                draft = draw(logits, _seed(request, count + offset, DRAFT))
            else:
                draft = sampler(logits, None)
            draft = ops.cast(draft, "int32")
            history = write_column(history, request.prompt_length + count + offset, draft)
            return put_slice(ids, draft[:, None], offset + 1, 1), history, cache, chances

        carried = ids, state["history"], state["cache"]["assistant"], chances
        ids, _, cache, chances = ops.fori_loop(0, tokens, lambda offset, x: step(ops.cast(offset, "int32"), x), carried)
        return ids, chances, cache

    def _choose(self, logits, draft, chances, is_drafted, index, request):
        """The next tokens, int (R,), and whether they equal the draft, bool (R,).

        Args:
            logits: float32 (R, V).
            draft: int (R,).
            chances: the probabilities from which the draft was drawn, [(R, V)], or [].
            is_drafted: bool (), whether there is a draft; otherwise the model chooses without one.
            index, request: see `_seed`.
        """
        sampler = self._sampler(request)
        if not chances:
            chosen = ops.cast(sampler(logits, None), "int32")
            return chosen, chosen == draft
        filtered, chances = sampler.filtered(logits), ops.where(is_drafted, chances[0], 0.0)
        wanted = ops.softmax(filtered)
        share = uniform(ops.shape(draft)[0], _seed(request, index, ACCEPT))
        agrees = (share * gather_rows(chances, draft[:, None]) < gather_rows(wanted, draft[:, None]))[:, 0]
        agrees = ops.logical_and(agrees, is_drafted)
        rest = ops.where(wanted > chances, wanted - chances, 0.0)
        rest = ops.where(rest > 0, ops.log(ops.where(rest > 0, rest, 1.0)), LOWEST)
        rest = ops.where(
            ops.any(wanted > chances, axis=1, keepdims=True), rest, filtered
        )  # both equal but for rounding
        return ops.where(agrees, draft, ops.cast(draw(rest, _seed(request, index, REPLACE)), "int32")), agrees

    def _sampler(self, request):
        return with_parameters(self.sampler, request.parameters[0])


def _seed(request, index, purpose):
    return StepSeed(request.seed, 3 * index + purpose)
