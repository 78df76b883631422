"""What a layer returns on symbols, without a trace of its `call`: TensorFlow takes 85 ms to trace one block.

A rule is a method `output_spec(given)`, whose argument has those of `call` as attributes. The rule refuses what `call`
refuses, and returns symbols. Keras builds some inner layers of the user's at their
first call, such as a position layer. Until then the layer around them is traced, which makes that call.
"""

import functools
import inspect
import types

import keras
from keras import tree

from keras_txf.backend.keras_private import flatten_layers, unless_overridden


def has_output_spec(cls):
    """Decorates a layer: Keras asks its `output_spec`. A subclass with a `call` of its own is traced."""
    own, signature = cls.call, inspect.signature(cls.call)

    @functools.wraps(own, assigned=())
    def compute_output_spec(self, *args, **kwargs):
        cached = kwargs.get("cache") is not None or kwargs.get("context_cache") is not None
        if cached or type(self).call is not own or any(map(_waits, flatten_layers(self, include_self=False))):
            return super(cls, self).compute_output_spec(*args, **kwargs)
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        return self.output_spec(types.SimpleNamespace(**given.arguments))

    cls.compute_output_spec = compute_output_spec
    return cls


def is_made_of_layers(cls):
    """Decorates a layer whose `call` calls other layers and adds: on symbols it runs as it is.

    Layers inside of it that are not ours are traced by Keras, each by itself.
    """

    def output_spec(self, given):
        arguments = {name: tree.map_structure(_without_history, x) for name, x in vars(given).items() if name != "self"}
        return tree.map_structure(_without_history, self.call(**arguments))

    cls.output_spec = output_spec
    return has_output_spec(cls)


def tells_its_shape(cls):
    """Gives a layer `compute_output_shape`, which Keras' wrappers call, such as `TimeDistributed`."""

    @unless_overridden
    def compute_output_shape(self, *shapes, **named_shapes):
        given = [keras.KerasTensor(shape) for shape in shapes]
        named = {name.removesuffix("_shape"): keras.KerasTensor(shape) for name, shape in named_shapes.items()}
        # A layer that is called here would be built, with weights under a path of its own.
        ask = self.compute_output_spec if self.built else type(self).from_config(self.get_config())
        return tree.map_structure(lambda symbol: symbol.shape, ask(*given, **named))

    if cls.compute_output_shape is keras.layers.Layer.compute_output_shape:
        cls.compute_output_shape = compute_output_shape
    return cls


def _waits(layer):
    """Whether the first call of a layer will build it."""
    return not layer.built and type(layer).build is not keras.layers.Layer.build


def _without_history(x):
    """A new symbol in place of another: the graph of the model around a layer does not see what is inside of it."""
    return keras.KerasTensor(x.shape, x.dtype) if isinstance(x, keras.KerasTensor) else x
