"""Remembers the factors of logits, so that losses and metrics can compute the logits in chunks.

A head attaches the hidden states and the table to the logits that it returns. If a compiled step then uses nothing else
of the logits, the compiler leaves them out.

Legend: N tokens, D model dim, V vocabulary.
"""

import dataclasses
from typing import Any

from keras import ops

from keras_txf.backend.compilers import records_gradients
from keras_txf.backend.tensors import find_note, set_note
from keras_txf.ops.tensors import widen

# The vocabulary from which the head of a model notes the factors. With 8,192 a step took 1.05 s
# with whole logits and 1.11 in chunks, 814 and 677 MB (benchmarks/large_vocabulary.py, TensorFlow, 2 cores).
LARGE = 2**14


@dataclasses.dataclass(frozen=True)
class LogitFactors:
    """adjust_logits(hidden · table, scale, bias, soft_cap).

    With `tied` the table is (V, D), as in an embedding; otherwise (D, V). `dtype` is the dtype of the product.
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
        """The letters of the table's axes, for `einsum`."""
        return "vd" if self.tied else "dv"

    @property
    def vocab_size(self):
        return self.table.shape[0 if self.tied else 1]


def note_factors(logits, hidden, table, tied, dtype):
    """Attaches hidden states and table to their product, logits."""
    factors = LogitFactors(hidden, _with_gradient_of_logits(table), tied, dtype)
    if factors.vocab_size >= LARGE:
        set_note(logits, factors, hidden, table)


def note_adjustment(logits, adjusted, scale, bias, soft_cap):
    """Attaches the factors of adjusted logits, if the factors of the logits are known and not adjusted yet."""
    factors = logit_factors(logits)
    if factors is not None and (factors.scale, factors.bias, factors.soft_cap) == (None, None, None):
        bias = _with_gradient_of_logits(bias)
        found = dataclasses.replace(factors, scale=scale, bias=bias, soft_cap=soft_cap)
        set_note(adjusted, found, factors.hidden, factors.table, bias)


def logit_factors(logits):
    """Returns the factors of a tensor that a head returned, or None for other tensors."""
    note = find_note(logits)
    return note if isinstance(note, LogitFactors) else None


def _with_gradient_of_logits(weight):
    """Returns the weight, without a gradient for logits in PyTorch's `no_grad`: a loss may be outside of it."""
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
