"""What the contract is checked on: a layer or model with its example inputs, in two sets of sizes.

With what every check needs to look at one.
"""

import dataclasses
import functools
import typing

import keras
import numpy as np
from keras import ops

# All different from each other and from every width in the cases.
SIZES = {"batch": 2, "target": 5, "source": 7}
OTHER_SIZES = {"batch": 3, "target": 8, "source": 6}


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor argument: its shape after the batch, where a string names a length, and what fills it."""

    shape: tuple
    fill: typing.Callable
    dtype: str = "float32"

    def array(self, sizes):
        shape = (sizes["batch"], *(sizes.get(size, size) for size in self.shape))
        return self.fill(np.random.default_rng(sum(shape)), shape).astype(self.dtype)

    def padded(self, array):
        """Two more places in every length, of zeros: padding in ids and masks, and to `Masking`."""
        return np.pad(array, [(0, 0), *((0, 2 * isinstance(size, str)) for size in self.shape)])

    def symbol(self, name, sizes=None):
        sizes = sizes or dict.fromkeys(SIZES)
        shape = tuple(sizes.get(size, size) for size in self.shape)
        return keras.Input(shape, batch_size=sizes["batch"], dtype=self.dtype, name=name)


def floats(*shape):
    """Normal numbers; the first row ends with a zero vector, which `Masking` takes for padding."""

    def fill(random, shape):
        array = random.normal(size=shape)
        array[0, -1] = 0
        return array

    return Tensor(shape, fill)


def token_ids(length, vocab_size):
    """Ids by chance; the first row ends with padding."""

    def fill(random, shape):
        array = random.integers(1, vocab_size, shape)
        array[0, -1] = 0
        return array

    return Tensor((length,), fill, "int32")


def token_types(length, count):
    """Kinds of tokens by chance."""
    return Tensor((length,), lambda random, shape: random.integers(0, count, shape), "int32")


def visible(*shape):
    """A mask by chance, in which the first place can always be seen."""

    def fill(random, shape):
        array = random.random(shape) < 0.7
        array[..., 0] = True
        return array

    return Tensor(shape, fill, "bool")


def segments(length):
    """Two packed sequences, 1 and 2."""
    return Tensor((length,), lambda random, shape: np.full(shape, 1 + _second(shape)), "int32")


def places(length):
    """Positions within each of two packed sequences."""

    def fill(random, shape):
        return np.arange(shape[1]) - _second(shape) * (shape[1] // 2) + np.zeros(shape)

    return Tensor((length,), fill, "int32")


def _second(shape):
    return np.arange(shape[1]) >= shape[1] // 2


@dataclasses.dataclass(frozen=True)
class Case:
    """One layer or model with one set of options."""

    name: str  # shown in the test's id
    make: typing.Callable  # of `dtype`, returns a new layer or functional model
    tensors: dict  # `Tensor` by the layer's call arguments or the model's inputs
    mask: str = "passes"  # what becomes of the padding mask: it "passes", is "consumed", or there is "none"
    # Shapes of the attention scores, by their place in a layer's outputs or their name in a model's.
    scores: dict = dataclasses.field(default_factory=dict)
    output_dtype: str = "compute_dtype"  # of all outputs: an attribute of the policy, or one under every policy
    shares: bool = False  # whether a position layer belongs to several blocks
    quantizes: bool = True  # whether Keras finds anything to quantize
    core: bool = False  # whether the slower checks of this case run every time
    fullest: bool = False  # whether it has the most options of its kind, where every case would show the same

    def arrays(self, sizes=None):
        return {name: tensor.array(sizes or SIZES) for name, tensor in self.tensors.items()}

    @property
    def first(self):
        """Name of the first tensor, whose mask is the one that passes."""
        return next(iter(self.tensors))

    def feed(self, tensors):
        """Tensors as `keras.Model` takes them: one alone, several as a dict."""
        return tensors if len(tensors) > 1 else tensors[self.first]

    def apply(self, subject, tensors, **call):
        """Calls a layer or model. Zero vectors in the float inputs of a layer are padding."""
        if isinstance(subject, keras.Model):
            return subject(self.feed(tensors), **call)
        first, *others = [
            keras.layers.Masking()(tensors[name]) if self.is_maskable(tensor) else tensors[name]
            for name, tensor in self.tensors.items()
        ]
        return subject(first, **dict(zip(list(self.tensors)[1:], others)), **call)

    def is_maskable(self, tensor):
        return self.mask != "none" and tensor.dtype == "float32"

    @functools.cached_property
    def shared(self):
        """The layer or model, built, of the checks that leave it as it is."""
        subject = self.make(dtype=None)
        self.model(subject)
        return subject

    @functools.cached_property
    def shared_model(self):
        return self.model(self.shared)

    @functools.cached_property
    def expected(self):
        """What `shared_model` computes."""
        return self.run(self.shared_model)

    def model(self, subject, sizes=None, **call):
        """A functional model of the layer, with lengths of any size or just `sizes`. A model is its own."""
        if isinstance(subject, keras.Model) and sizes is None:
            return subject
        symbols = {name: tensor.symbol(name, sizes) for name, tensor in self.tensors.items()}
        return keras.Model(self.feed(symbols), self.apply(subject, symbols, **call))

    def run(self, model, sizes=None):
        """The model's outputs on the case's arrays, as `numpy` gives them."""
        return numpy(model(self.feed(self.arrays(sizes))))


def numpy(outputs):
    """Every output as float32, in Keras' order."""
    return [ops.convert_to_numpy(ops.cast(output, "float32")) for output in keras.tree.flatten(outputs)]


def assert_same(actual, expected, tolerance=0.0):
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


def inner_layers(subject):
    """The subject itself and all layers inside it that compute, each once."""
    layers = [x for x in subject._flatten_layers() if not isinstance(x, (keras.Model, keras.layers.InputLayer))]
    return list({id(layer): layer for layer in layers}.values())


def wave(x):
    """Numbers of the shape of x, all different."""
    return np.cos(np.arange(np.prod(x.shape), dtype="float32")).reshape(x.shape)
