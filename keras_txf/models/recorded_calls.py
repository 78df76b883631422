"""RecordedCall: a call of a layer on new tokens, which a decoding graph repeats.

Legend: B batch, W width.
"""

import dataclasses

import keras

from keras_txf.layers import PositionalEmbedding


@dataclasses.dataclass
class RecordedCall:
    """A call of a layer on new tokens, and its symbolic outputs.

    Args:
        layer, args, kwargs: the layer and the arguments of its call, without those that decoding adds.
        outputs: list of tensors.
        cache_name: the name of the cache, where the layer is an attention that is called with one; else None.
        context: the tensors of the context that such an attention reads, by the names of `CachedLayer`'s arguments.
        tokens: the embedded tokens, where a prefix of vectors is put before them; in a step they are the output.
        alias: what is called in place of the layer, where another layer of the graph has its name.
    """

    layer: object
    args: tuple
    kwargs: dict
    outputs: list
    cache_name: str | None = None
    context: dict = dataclasses.field(default_factory=dict)
    tokens: object = None
    alias: object = None

    @property
    def inputs(self):
        return tensors_of((self.args, self.kwargs))

    def repeat(self, values, **more):
        """Calls the layer again, with `values` in place of tensors, by their ids; adds its outputs to them."""
        args, kwargs = keras.tree.map_structure(lambda x: values.get(id(x), x), (self.args, self.kwargs))
        values.update(zip(map(id, self.outputs), as_list((self.alias or self.layer)(*args, **kwargs, **more))))


def cache_names(name):
    """The names of the two tensors of the cache of a layer with this name."""
    return [f"{name}_key", f"{name}_value"]


def embeds(call):
    return isinstance(call.layer, PositionalEmbedding) and not call.kwargs.get("reverse")


def given_positions(embedding, positions):
    """The argument for an embedding that counts tokens."""
    counts = embedding.position_encoding is not None or embedding.max_length is not None
    return {"positions": positions} if counts else {}


def tensors_of(nested):
    return [x for x in keras.tree.flatten(nested) if isinstance(x, keras.KerasTensor)]


def as_list(outputs):
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def unused_name(name, used):
    """The name, or with a number where the layer is called again."""
    number = sum(other is not None and (other == name or other.startswith(f"{name}_call_")) for other in used)
    return f"{name}_call_{number}" if number else name
