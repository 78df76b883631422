"""Whether a layer treats the positions of a sequence one by one: such a layer is called on new tokens as it is.

Legend: B batch, T length.
"""

import keras
import numpy as np
from keras import ops

from keras_txf.checks import short_repr
from keras_txf.layers import FeedForward
from keras_txf.layers.class_change import plain_class
from keras_txf.layers.decoder_start import Start
from keras_txf.layers.dropout import Dropout
from keras_txf.layers.heads import LogitAdjustment
from keras_txf.layers.projections import LogitProjection, Projection

BATCH, LENGTH = 2, 66  # of what an unknown layer is tried on; it may look back as far, as a dilated convolution does
TRIED = (0, 1, 2, 33, 65)  # the positions that are computed alone
KNOWN = (
    Dropout, FeedForward, LogitAdjustment, LogitProjection, Projection, Start, keras.layers.Add,
    keras.layers.Dense, keras.layers.Dropout, keras.layers.Embedding, keras.layers.Identity,
)  # fmt: skip


def check_position_wise(layer, args, kwargs, is_new):
    """Refuses a layer that mixes positions, or depends on how many there are.

    The layer is tried: what it returns for a position alone must be what it returns for it among all of them.

    Args:
        layer: a layer or an operation of a graph.
        args, kwargs: of its call, with symbolic tensors.
        is_new: function that says of a symbolic tensor whether it has an axis 1 of new tokens.
    """
    if plain_class(layer) in KNOWN:
        return
    rng = np.random.default_rng(0)
    drawn = {}

    def draw(symbol):
        if not isinstance(symbol, keras.KerasTensor):
            return symbol
        if id(symbol) not in drawn:
            shape = [3 if size is None else size for size in symbol.shape]
            shape[0] = BATCH if symbol.shape[0] is None else shape[0]
            if is_new(symbol) and len(shape) > 1:
                shape[1] = LENGTH
            values = rng.normal(size=shape) if "float" in symbol.dtype else rng.integers(0, 2, shape)
            drawn[id(symbol)] = ops.convert_to_tensor(values, dtype=symbol.dtype)
        return drawn[id(symbol)]

    def run(columns):
        def take(symbol):
            tensor = draw(symbol)
            cut = isinstance(symbol, keras.KerasTensor) and is_new(symbol) and len(symbol.shape) > 1
            return tensor[:, columns] if cut else tensor

        own_args, own_kwargs = keras.tree.map_structure(take, (args, kwargs))
        return [
            ops.convert_to_numpy(ops.cast(x, "float32")) for x in keras.tree.flatten(layer(*own_args, **own_kwargs))
        ]

    try:
        whole = run(slice(None))
        alone = [run(slice(t, t + 1)) for t in TRIED]
        same = all(_equal(x, [part[place] for part in alone]) for place, x in enumerate(whole))
        reason = "mixes the positions of a sequence, and is no attention that decodes"
    except Exception as error:  # of a layer of the user's anything may come
        same, reason = False, f"cannot be called on one token at a time: {short_repr(str(error))}"
    if not same:
        raise ValueError(
            f"`model` must be made of attention that decodes and of layers that treat each position alone; its layer "
            f"{short_repr(layer.name)} ({type(layer).__name__}) {reason}."
        )


def _equal(whole, parts):
    if (
        whole.ndim < 2
        or whole.shape[1] != LENGTH
        or any(part.shape != (*whole.shape[:1], 1, *whole.shape[2:]) for part in parts)
    ):
        return False
    return np.allclose(whole[:, TRIED], np.concatenate(parts, axis=1), rtol=1e-2, atol=1e-3, equal_nan=True)
