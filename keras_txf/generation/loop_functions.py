"""The compiled functions of a decoding loop, which run all steps in one call, or some steps at a time."""

import typing

import numpy as np
from keras import ops

from keras_txf.backend.compilers import compiled

STEPS = 8  # between two searches for stop strings


class LoopFunctions(typing.NamedTuple):
    """The compiled functions of a loop; `finish` runs all steps in one call, `advance` runs some steps.

    `read` and `close`, which make the memory of a state, are None for a search.
    """

    read: typing.Callable | None
    start: typing.Callable
    pad_cache: typing.Callable
    advance: typing.Callable
    close: typing.Callable | None
    finish: typing.Callable
    results: typing.Callable


def compile_loop(loop):
    """The `LoopFunctions` of a loop.

    Each function is compiled at its first call. XLA takes about a megabyte for each kernel, so operations outside the
    loop are not compiled with the loop.
    """
    models, keeps_state = loop.models, getattr(loop, "keeps_state", False)

    def finish(state, constant, request):
        state = loop.advance(models.pad_cache(state, request), constant, request, request.max_new_tokens)
        if keeps_state:
            return {**state, **loop.close(state, constant, request), "constant": constant}
        return {name: value for name, value in state.items() if name != "cache"}

    return LoopFunctions(
        compiled(loop.read, models.variables, steps=0) if keeps_state else None,
        compiled(loop.start, models.variables, steps=0),
        compiled(models.pad_cache, [], steps=0),
        compiled(loop.advance, models.variables, steps=1),
        compiled(loop.close, models.variables, steps=0) if keeps_state else None,
        compiled(finish, models.variables),
        compiled(loop.results, [], steps=0),
    )


def columns(functions, request, stop_strings, stream, make_state):
    """Yields the tokens as generated. Then `stream` gets a state, if `make_state` is not False."""
    seen = 0
    for state, constant, count, _ in _run_in_parts(functions, request, stop_strings, 1):  # noqa: B007
        history = ops.convert_to_numpy(state["history"])[:, request.prompt_length :]
        yield from (history[:, column] for column in range(seen, min(count, history.shape[1])))
        seen = count
    if make_state:
        stream.state = make_state(history, {**functions.close(state, constant, request), "constant": constant})


def finish_by_text(functions, request, stop_strings):
    """The last state, without its cache, and how many tokens of each row are kept, int (R,)."""
    state, kept = {}, request.max_new_tokens
    for state, _, _, ends in _run_in_parts(functions, request, stop_strings, STEPS):  # noqa: B007
        kept = np.where(ends > 0, ends, kept)
    return {name: value for name, value in state.items() if name != "cache"}, kept


def _run_in_parts(functions, request, stop_strings, steps):
    """Runs `steps` steps at a time.

    Yields the state, the constants, the number of steps so far, and the number of tokens of each row that a stop string
    has ended in this part, 0 for other rows.
    """
    state, constant = functions.start(request)
    state, seen, running = functions.pad_cache(state, request), 0, True
    while running and seen < request.max_new_tokens:
        until = np.array(min(seen + steps, request.max_new_tokens), "int32")
        state = functions.advance(state, constant, request, ops.convert_to_tensor(until))
        count, running = int(state["count"]), ops.convert_to_numpy(state["running"])
        ends = np.zeros(len(running), int)
        if stop_strings is not None:
            tokens = ops.convert_to_numpy(state["history"])[:, request.prompt_length :]
            ends = stop_strings.ends(tokens[:, :count], seen)
            state = {**state, "running": ops.convert_to_tensor(running & (ends == 0))}
        seen, running = count, (running & (ends == 0)).any()
        yield state, constant, count, ends
