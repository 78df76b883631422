"""Contrastive search: likely tokens whose hidden states differ from the hidden states of earlier tokens.

Legend: B batch, W candidates, P prompt length, N new tokens at most, L = P + N, D model dim.
"""

import dataclasses

from keras import ops

from keras_txf import checks
from keras_txf.generation.beams import with_own_columns
from keras_txf.generation.logits import log_probabilities, top_k
from keras_txf.generation.loop import ends_with_stop, latest_tokens, process_logits, run_steps, write_column
from keras_txf.generation.parameters import set_fields
from keras_txf.generation.results import empty_tables, top_results, top_tokens
from keras_txf.ops.masks import put_slice
from keras_txf.ops.tensors import LOWEST


@dataclasses.dataclass(frozen=True)
class Contrastive:
    """Contrastive search: among the likeliest tokens, chooses one that is likely and unlike all earlier tokens.

    The score of a candidate is (1 - penalty) · probability - penalty · similarity. The similarity is the largest cosine
    of its hidden state with the hidden state of an earlier token. The search is deterministic. A step reads all
    candidates in one pass.

    Args:
        num_candidates: how many of the likeliest tokens are considered.
        penalty: weight in [0, 1] of the similarity; 0 is greedy.

    Raises:
        ValueError: fewer than one candidate, a penalty outside [0, 1].

    Reference:
        [A Contrastive Framework for Neural Text Generation](https://arxiv.org/abs/2202.06417).

    Example:

    >>> model = txf.models.decoder_generator(vocab_size=100, num_layers=2, dim=32, num_heads=4)
    >>> model.generate([[5, 6, 7]], max_new_tokens=4, sampler=txf.generation.Contrastive()).shape
    (1, 7)
    """

    num_candidates: int = 4
    penalty: float = 0.6
    dynamic_parameters = True
    max_return_sequences = 1

    def __post_init__(self):
        set_fields(
            self,
            num_candidates=checks.positive_integer("num_candidates", self.num_candidates),
            penalty=checks.fraction("penalty", self.penalty),
        )

    def check_vocabulary(self, vocab_size):
        """Raises ValueError if there are more candidates than tokens."""
        if self.num_candidates > vocab_size:
            raise ValueError(
                f"`num_candidates` must not exceed the vocabulary's size, {vocab_size}; received {self.num_candidates}."
            )

    def decoding_loop(self, models, processors, num_return_sequences, top_logprobs=0):
        """The loop that `generate` runs, see `generation.loop.decoding_loop`."""
        models = models(self.num_candidates, return_hidden_states=True)
        return ContrastiveDecoding(models, self, processors, top_logprobs)


class ContrastiveDecoding:
    """The loop of a contrastive search.

    Args:
        models: a `GraphDecoder` of width `num_candidates` that returns hidden states.
        search: a `Contrastive`.
        processors: functions of logits and `History`.
        top_logprobs: how many of the likeliest tokens the results have for each step.
    """

    def __init__(self, models, search, processors, top_logprobs=0):
        self.models, self.search, self.processors, self.top_logprobs = models, search, processors, top_logprobs

    def start(self, request):
        """Reads the prompts: the state, and the tensors that all steps share, dicts."""
        outputs, cache, constant = self.models.run_prefill(request)
        directions = _unit_vectors(outputs["hidden_states"])
        later = ops.repeat(ops.zeros_like(directions[:, :1]), request.max_new_tokens, axis=1)
        state = {
            "count": ops.zeros((), "int32"),
            "history": request.history,
            "attention_mask": request.attention_mask,
            "log_probs": ops.zeros_like(request.history[:, : request.max_new_tokens], "float32"),
            "running": ops.ones_like(request.history[:, 0], "bool"),
            "logits": ops.cast(outputs["logits"], "float32"),
            "directions": ops.concatenate([directions, later], axis=1),
            "cache": cache,
        }
        return {**state, **empty_tables(state["log_probs"], self.top_logprobs)}, constant

    def advance(self, state, constant, request, until):
        """Chooses tokens until each row has `until` tokens, or has stopped."""
        return run_steps(lambda state: self._append(state, constant, request), state, until)

    def results(self, state, request):
        """The new tokens, int (B, N), -1 after the end; their log-probabilities (B, N); the sums of these (B,).

        With `top_logprobs`, also ids and log-probabilities of the likeliest tokens (B, N, k).
        """
        tokens = state["history"][:, request.prompt_length :]
        return tokens, state["log_probs"], ops.sum(state["log_probs"], axis=1), *top_results(state)

    def _append(self, state, constant, request):
        """The state with one more token in each row."""
        width, count, running = self.search.num_candidates, state["count"], state["running"]
        logits = process_logits(self.processors, state["logits"], state["history"], count, request)
        log_probs = log_probabilities(logits)
        top = top_tokens(log_probs, self.top_logprobs)
        log_probs, tokens = top_k(log_probs, width)

        cache_position = request.prompt_length + width * count
        attention_mask = ops.repeat(state["attention_mask"][:, None], width, axis=1)
        # A row that has stopped takes no more positions: the model may not have them.
        attention_mask = with_own_columns(attention_mask, cache_position, running)
        next_logits, cache, outputs = self.models.run_step(
            tokens, attention_mask, cache_position, state["cache"], constant, request
        )
        directions = _unit_vectors(outputs["hidden_states"])
        best = self._choose(state, request, log_probs, directions)

        def pick(x):
            """The best candidate of each row, (B, W, ...) -> (B, ...)."""
            index = ops.reshape(best, (-1, *[1] * (len(x.shape) - 1)))
            return ops.take_along_axis(x, index, axis=1)[:, 0]

        column = request.prompt_length + count
        history = write_column(state["history"], column, ops.where(running, pick(tokens), -1))
        ends = ends_with_stop(latest_tokens(history, count, request), request)
        ends = ops.logical_or(ends, count + 1 >= request.limits)
        return {
            "count": count + 1,
            "history": history,
            "attention_mask": pick(attention_mask),
            "log_probs": write_column(state["log_probs"], count, ops.where(running, pick(log_probs), 0.0)),
            "running": ops.logical_and(running, ops.logical_not(ends)),
            "logits": ops.cast(pick(next_logits), "float32"),
            "directions": put_slice(state["directions"], pick(directions)[:, None], column, 1),
            "cache": cache,
            **{name: write_column(state[name], count, values) for name, values in top.items()},
        }

    def _choose(self, state, request, log_probs, directions):
        """The indices of the best candidates, (B,)."""
        cosines = ops.matmul(directions, ops.swapaxes(state["directions"], 1, 2))  # (B, W, L)
        similarity = ops.max(ops.where(state["history"][:, None] >= 0, cosines, -1.0), axis=2)
        penalty = ops.convert_to_tensor(request.parameters[0]["penalty"], "float32")
        scores = (1 - penalty) * ops.exp(log_probs) - penalty * similarity
        return ops.argmax(ops.where(ops.isinf(log_probs), LOWEST, scores), axis=1)


def _unit_vectors(hidden_states):
    """The directions of hidden states, float32; zeros stay zeros."""
    return ops.normalize(ops.cast(hidden_states, "float32"), axis=-1)
