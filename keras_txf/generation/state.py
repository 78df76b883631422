"""State: what a model remembers of sequences, from one call of `generate` to the next."""

import typing
import weakref

import numpy as np

from keras_txf.checks import short_repr


class State:
    """The memory of sequences that `generate(..., return_state=True)` has read and written.

    `generate(next_turn, state=state)` reads the new tokens alone. A state can be used many times: each call leaves the
    state as it is, and returns a new one on request. The memory is that of the weights of its time: after a training
    step, read the texts again. A state cannot be pickled: keep its `ids`, and read the texts again.

    Attributes:
        ids: for each row the list of all its tokens.
        real: for each row which of the tokens are no padding: padding that was generated is real, as in the same call.
    """

    def __init__(self, engine, ids, real, ends, memory):
        self._engine, self.ids, self.real, self._ends, self._memory = weakref.ref(engine), ids, real, ends, memory

    def __len__(self):
        return len(self.ids)

    def __repr__(self):
        return f"<State of {len(self)} sequences of up to {max(map(len, self.ids))} tokens>"

    def check(self, engine, rows):
        """Refuses a state of another model, and other than one prompt for each row."""
        if self._engine() is not engine:
            raise ValueError(
                "`state` must be that of the same model and `cache`, with the adapters and variables of today; "
                f"received {self}."
            )
        if rows != len(self):
            raise ValueError(f"`state` must have one row for each of the {rows} prompts; received {self}.")

    def tensors(self, prompts, new, length):
        """The `state` of a `Request`.

        Args:
            prompts: for each row the list of all its tokens, the new ones too.
            new: how many columns are read.
            length: P, the number of the request's columns of prompts.
        """
        counts = np.array([len(row) - len(own) for row, own in zip(prompts, self.ids)], "int32")
        is_new = np.arange(new, dtype="int32")[None] >= new - counts[:, None]
        return {**self._memory, "shift": length - 1 - counts - self._ends, "new": is_new}


def check_state(state):
    """Refuses what is no state."""
    if not isinstance(state, State):
        raise ValueError(
            f"`state` must be the state that `generate(..., return_state=True)` returns; received {short_repr(state)}."
        )
    return state


def check_state_options(sampler, state, return_state, stream, stop_strings, assistant=None):
    """Refuses what does not go with a state."""
    if (state is not None or return_state) and hasattr(sampler, "decoding_loop"):
        raise ValueError(
            '`state` and `return_state` need a sampler that chooses token by token, such as "greedy" and '
            f'"sampling"; received {short_repr(sampler)}.'
        )
    if state is not None and assistant is not None:
        raise ValueError("`state` does not go with `assistant`, which has read nothing; received both.")
    for name, value in (("stream", stream), ("stop_strings", stop_strings), ("assistant", assistant)):
        if return_state and value:
            raise ValueError(f"`return_state` does not go with `{name}`; received return_state=True.")


class WithState(typing.NamedTuple):
    """What `generate(..., return_state=True)` returns.

    Args:
        ids: the ids that `generate` returns without `return_state`.
        state: a `State`, for `generate(next_turn, state=state)`.
        scored: with `return_scores` the `Scored`, else None.
    """

    ids: typing.Any
    state: State
    scored: typing.Any = None
