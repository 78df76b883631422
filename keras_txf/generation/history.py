"""History: the tokens so far, as a logits processor receives them.

Legend: R rows, L columns of tokens, P columns of prompt, V vocabulary, S stops, M length of the longest.
"""

import typing


class History(typing.NamedTuple):
    """The history that a logits processor receives: all tokens so far, where the prompts end, and the stops.

    For processors of your own, functions of `(logits, history)`, logits float32 (R, V). With several beams the logits
    are log-probabilities. A processor is compiled: make it of `keras.ops`, and read no values in Python.

    Args:
        tokens: int32 (R, L), each token in its column; -1 at padding and in the columns of tokens to come.
        prompt_length: P, the number of columns of the prompts. Generated tokens stand in the columns P, P + 1, ...
        count: int32 (), how many tokens have been generated. The next token belongs to column P + count.
        stops: int32 (S, M), a stop at the right end of each row, after entries of -2, which match any token. A row of
            -3 is no stop.

    Example:

    >>> def never_start_with_the_prompts_end(logits, history):
    ...     last = history.tokens[:, history.prompt_length - 1]
    ...     repeats = keras.ops.one_hot(last, logits.shape[-1], dtype="bool") & (history.count == 0)
    ...     return keras.ops.where(repeats, -np.inf, logits)
    >>> history = txf.generation.History(np.array([[3, 1, -1]]), prompt_length=2, count=0, stops=np.array([[2]]))
    >>> never_start_with_the_prompts_end(np.zeros((1, 4), "float32"), history).numpy().tolist()
    [[0.0, -inf, 0.0, 0.0]]
    """

    tokens: typing.Any
    prompt_length: typing.Any
    count: typing.Any
    stops: typing.Any
