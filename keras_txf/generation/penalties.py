"""Logits processors that make earlier tokens less likely.

Legend: R rows, L columns of tokens, P columns of prompt, V vocabulary.
"""

import dataclasses

from keras import ops

from keras_txf.generation.logits import bounded
from keras_txf.generation.parameters import is_finite, is_positive, number, set_fields


@dataclasses.dataclass(frozen=True)
class RepetitionPenalty:
    """Makes the tokens of the prompt and of the answer so far less likely.

    For models that repeat themselves. The prompt counts too, which harms answers that should quote it;
    `PresencePenalty` and `FrequencyPenalty` do not count the prompt.

    Args:
        penalty: divides positive logits and multiplies negative ones. 1 does nothing, 1.2 is usual, a number below 1
            encourages repetition.

    Raises:
        ValueError: a penalty that is not positive.

    Reference:
        [CTRL](https://arxiv.org/abs/1909.05858), with the prompt and for negative logits as in transformers.

    Example:

    >>> history = txf.generation.History(np.array([[0, 1]]), prompt_length=1, count=1, stops=np.array([[2]]))
    >>> penalize = txf.generation.RepetitionPenalty(2.0)
    >>> penalize(np.array([[3.0, -1.0, 3.0]], "float32"), history).numpy().tolist()
    [[1.5, -2.0, 3.0]]
    """

    penalty: float
    dynamic_parameters = True

    def __post_init__(self):
        set_fields(self, penalty=number("penalty", self.penalty, is_positive, "a positive number"))

    def __call__(self, logits, history):
        penalized = ops.where(logits > 0, logits / self.penalty, logits * self.penalty)
        return ops.where(occurrences(history.tokens, logits) > 0, bounded(penalized, logits), logits)


@dataclasses.dataclass(frozen=True)
class PresencePenalty:
    """Lowers the logits of the tokens that the answer already contains, each once.

    For answers that should turn to new subjects. The prompt does not count.

    Args:
        penalty: subtracted from the logits; negative numbers encourage repetition. The OpenAI API takes -2 to 2.

    Raises:
        ValueError: a penalty that is not a finite number.

    Reference:
        The [OpenAI API](https://platform.openai.com/docs/api-reference), and vLLM after it.

    Example:

    >>> history = txf.generation.History(np.array([[0, 1, 1]]), prompt_length=1, count=2, stops=np.array([[2]]))
    >>> txf.generation.PresencePenalty(0.5)(np.zeros((1, 3), "float32"), history).numpy().tolist()
    [[0.0, -0.5, 0.0]]
    """

    penalty: float
    dynamic_parameters = True

    def __post_init__(self):
        set_fields(self, penalty=number("penalty", self.penalty, is_finite, "a finite number"))

    def __call__(self, logits, history):
        return ops.where(
            occurrences(generated_tokens(history), logits) > 0, bounded(logits - self.penalty, logits), logits
        )


@dataclasses.dataclass(frozen=True)
class FrequencyPenalty:
    """Lowers the logits of the tokens that the answer already contains, by the number of their occurrences.

    For answers that fall into loops: each repetition makes a token less likely. The prompt does not count.

    Args:
        penalty: subtracted for each occurrence; negative numbers encourage repetition. The OpenAI API takes -2 to 2.

    Raises:
        ValueError: a penalty that is not a finite number.

    Reference:
        The [OpenAI API](https://platform.openai.com/docs/api-reference), and vLLM after it.

    Example:

    >>> history = txf.generation.History(np.array([[0, 1, 1]]), prompt_length=1, count=2, stops=np.array([[2]]))
    >>> txf.generation.FrequencyPenalty(0.5)(np.zeros((1, 3), "float32"), history).numpy().tolist()
    [[0.0, -1.0, 0.0]]
    """

    penalty: float
    dynamic_parameters = True

    def __post_init__(self):
        set_fields(self, penalty=number("penalty", self.penalty, is_finite, "a finite number"))

    def __call__(self, logits, history):
        return bounded(logits - self.penalty * occurrences(generated_tokens(history), logits), logits)


def generated_tokens(history):
    """The tokens of the answer, (R, L); -1 in the columns of the prompt."""
    columns = ops.arange(ops.shape(history.tokens)[1], dtype="int32")
    return ops.where(columns >= history.prompt_length, history.tokens, -1)


def occurrences(tokens, logits):
    """How often each id occurs among the tokens, int (R, any), where -1 is no token: float32 (R, V)."""
    is_token = tokens >= 0
    ids = ops.where(is_token, tokens, 0)
    rows = ops.broadcast_to(ops.arange(ops.shape(ids)[0], dtype=ids.dtype)[:, None], ops.shape(ids))
    indices = ops.reshape(ops.stack([rows, ids], axis=-1), (-1, 2))
    counts = ops.reshape(ops.cast(is_token, "float32"), (-1,))
    return ops.scatter_update(ops.zeros_like(logits), indices, counts, reduction="add")
