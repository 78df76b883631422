"""Contrastive search: likely tokens whose hidden states do not repeat what was said.

Legend: B batch, W candidates, P prompt length, N new tokens at most, L = P + N places, D model dim.
"""

import dataclasses

from keras import ops

from keras_txf import checks
from keras_txf.generation.adjustable import set_fields
from keras_txf.generation.beams import see_oneself
from keras_txf.generation.bounds import log_probabilities
from keras_txf.generation.compilers import while_loop
from keras_txf.generation.decoding import latest, process, stopped, write_column
from keras_txf.generation.ranking import top_k


@dataclasses.dataclass(frozen=True)
class Contrastive:
    """Contrastive search: of the likeliest tokens the one that is likely and unlike all before it.

    The score of a candidate is (1 - penalty) · probability - penalty · the largest cosine of its hidden
    state with that of an earlier token. Deterministic. A step reads all candidates, in one pass.

    Args:
        num_candidates: how many of the likeliest tokens are considered.
        penalty: weight in [0, 1] of the likeness; 0 is greedy.

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
    adjustable = True

    @property
    def width(self):
        return self.num_candidates

    def __post_init__(self):
        set_fields(
            self,
            num_candidates=checks.positive_integer("num_candidates", self.num_candidates),
            penalty=checks.fraction("penalty", self.penalty),
        )


class ContrastiveDecoding:
    """The loop of a contrastive search.

    Args:
        reader: with models of width `num_candidates` that return hidden states.
        search: a `Contrastive`.
        processors: functions of logits and `History`.
        sequences: 1, as the search has one result.
    """

    def __init__(self, reader, search, processors, sequences):
        self.reader, self.search, self.processors = reader, search, processors

    def start(self, request):
        """Reads the prompts: the state, and what stays as it is, dicts of tensors."""
        outputs, cache, constant = self.reader.read_prompt(request)
        directions = _direction(outputs["hidden_states"])
        later = ops.repeat(ops.zeros_like(directions[:, :1]), request.new, axis=1)
        state = {
            "count": ops.zeros((), "int32"),
            "history": request.history,
            "visible": request.visible,
            "log_probs": ops.zeros_like(request.history[:, : request.new], "float32"),
            "running": ops.ones_like(request.history[:, 0], "bool"),
            "logits": ops.cast(outputs["logits"], "float32"),
            "directions": ops.concatenate([directions, later], axis=1),
            "cache": cache,
        }
        return state, constant

    def advance(self, state, constant, request, until):
        """Chooses tokens until each row has `until`, or has stopped."""

        def wanted(state):
            return ops.logical_and(state["count"] < until, ops.any(state["running"]))

        def body(state):
            return self._append(state, constant, request)

        return while_loop(wanted, body, state)

    def results(self, state, request):
        """The new tokens, int (B, N), -1 after the end, their log-probabilities, and each row's sum."""
        tokens = state["history"][:, request.prompt_length :]
        return tokens, state["log_probs"], ops.sum(state["log_probs"], axis=1)

    def _append(self, state, constant, request):
        """The state with one token more."""
        width, count, running = self.search.num_candidates, state["count"], state["running"]
        logits = process(self.processors, state["logits"], state["history"], count, request)
        log_probs, tokens = top_k(log_probabilities(logits), width)

        index = request.prompt_length + width * count
        visible = ops.repeat(state["visible"][:, None], width, axis=1)
        # A row that has ended takes no further places: the model may not have them.
        visible = see_oneself(visible, index, ops.logical_and(self.reader.is_real(tokens), running[:, None]))
        next_logits, cache, others = self.reader.read(tokens, visible, index, state["cache"], constant, request)
        directions = _direction(others["hidden_states"])
        chosen = self._choose(state, request, log_probs, directions)

        def pick(x):
            place = ops.reshape(chosen, (-1, *[1] * (len(x.shape) - 1)))
            return ops.take_along_axis(x, place, axis=1)[:, 0]

        column = request.prompt_length + count
        history = write_column(state["history"], column, ops.where(running, pick(tokens), -1))
        ended = ops.logical_or(stopped(latest(history, count, request), request), count + 1 >= request.limits)
        return {
            "count": count + 1,
            "history": history,
            "visible": pick(visible),
            "log_probs": write_column(state["log_probs"], count, ops.where(running, pick(log_probs), 0.0)),
            "running": ops.logical_and(running, ops.logical_not(ended)),
            "logits": ops.cast(pick(next_logits), "float32"),
            "directions": ops.slice_update(state["directions"], (0, column, 0), pick(directions)[:, None]),
            "cache": cache,
        }

    def _choose(self, state, request, log_probs, directions):
        """The best of the candidates, (B,)."""
        likeness = ops.matmul(directions, ops.swapaxes(state["directions"], 1, 2))  # (B, W, L)
        likeness = ops.max(ops.where(state["history"][:, None] >= 0, likeness, -1.0), axis=2)
        penalty = ops.convert_to_tensor(request.numbers[0]["penalty"], "float32")
        scores = (1 - penalty) * ops.exp(log_probs) - penalty * likeness
        return ops.argmax(ops.where(ops.isinf(log_probs), -float("inf"), scores), axis=1)


def _direction(hidden_states):
    """Unit vectors, float32; zeros stay zeros."""
    return ops.normalize(ops.cast(hidden_states, "float32"), axis=-1)
