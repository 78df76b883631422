"""Of which factors logits are the product: for losses and metrics that never hold all logits at once.

A head notes the factors of the logits that it returns. In a compiled step nothing else uses these logits then, and the
compiler leaves them out.

Legend: N tokens, D model dim, V vocabulary.
"""

import dataclasses
from typing import Any

from keras import ops

from keras_txf.backend.compilers import records_gradients
from keras_txf.backend.tensors import find_note, set_note
from keras_txf.ops.tensors import widen

# From this vocabulary on the head of a model notes the factors. With 8,192 a step took 1.05 s
# with whole logits and 1.11 in chunks, 814 and 677 MB (benchmarks/large_vocabulary.py, TensorFlow, 2 cores).
LARGE = 2**14


@dataclasses.dataclass(frozen=True)
class LogitFactors:
    """adjust_logits(hidden · table, scale, bias, soft_cap).

    `tied` says that the table is (V, D), as that of an embedding, and not (D, V). The product is of the dtype `dtype`.
    """

    hidden: Any
    table: Any
    tied: bool
    dtype: str
    scale: float | None = None
    bias: Any = None
    soft_cap: float | None = None

    @property
    def letters(self):
        """The axes of the table, for `einsum`."""
        return "vd" if self.tied else "dv"

    @property
    def vocab_size(self):
        return self.table.shape[0 if self.tied else 1]


def note_factors(logits, hidden, table, tied, dtype):
    """Notes of which hidden states and table logits are the product."""
    factors = LogitFactors(hidden, _with_gradient_of_logits(table), tied, dtype)
    if factors.vocab_size >= LARGE:
        set_note(logits, factors, hidden, table)


def note_adjustment(logits, adjusted, scale, bias, soft_cap):
    """Notes the factors of adjusted logits, if those of the logits are known and not adjusted yet."""
    factors = logit_factors(logits)
    if factors is not None and (factors.scale, factors.bias, factors.soft_cap) == (None, None, None):
        bias = _with_gradient_of_logits(bias)
        found = dataclasses.replace(factors, scale=scale, bias=bias, soft_cap=soft_cap)
        set_note(adjusted, found, factors.hidden, factors.table, bias)


def logit_factors(logits):
    """Returns the factors of the very tensor that a head returned, or None."""
    note = find_note(logits)
    return note if isinstance(note, LogitFactors) else None


def _with_gradient_of_logits(weight):
    """The weight, without a gradient where the logits have none: a loss may be computed outside PyTorch's `no_grad`."""
    return weight if weight is None or records_gradients() else ops.stop_gradient(weight)


def adjust_logits(logits, scale, bias, soft_cap):
    """c · tanh((scale · logits + bias) / c), at least in float32; each of the three may be None."""
    logits = widen(logits)
    if scale is not None:
        logits = logits * scale
    if bias is not None:
        logits = logits + ops.cast(bias, logits.dtype)
    if soft_cap is not None:
        logits = soft_cap * ops.tanh(logits / soft_cap)
    return logits
