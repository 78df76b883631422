"""The Dense layers inside attention and feed-forward, and how their kernels may lie elsewhere."""

import contextlib
import contextvars

import keras

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers.adapters import KINDS, QUANTIZED
from keras_txf.layers.options import own_initializer, register

_elsewhere = contextvars.ContextVar("products by the id of a layer", default={})
_using = contextvars.ContextVar("names of adapters by the id of a layer", default={})


def apply(layer, inputs, **kwargs):
    """What the layer gives for `inputs`: computed by itself, or inside of `elsewhere` by what stands in for it."""
    product = _elsewhere.get().get(id(layer))
    return layer(inputs, **kwargs) if product is None else product(inputs)


@contextlib.contextmanager
def elsewhere(products):
    """A scope in which functions of the inputs stand in for layers, given by their ids."""
    token = _elsewhere.set(products)
    try:
        yield
    finally:
        _elsewhere.reset(token)


@register
class Projection(keras.layers.Dense):
    """A Dense layer that may carry adapters by name, of which one may be active. Without one it is Keras' Dense.

    `txf.training.add_adapter` and its like see to all the layers of a model at once.
    """

    def __init__(self, units, **kwargs):
        super().__init__(checks.size("units", units), **kwargs)  # Keras knows no integers of NumPy
        self.seeds = {}  # of the adapters with dropout, by name: in a dict Keras finds them
        self._adapters = _Adapters()  # it knows the variables of these as the layer's own

    @property
    def adapters(self):
        """The adapters by name."""
        return self._adapters.by_name

    @property
    def active(self):
        """The name of the adapter that counts, or None."""
        return _using.get().get(id(self), self._adapters.active)

    @active.setter
    def active(self, name):
        self._adapters.active = name

    @contextlib.contextmanager
    def using(self, name):
        """A scope, of this thread alone, in which another adapter is the active one, or none."""
        token = _using.set({**_using.get(), id(self): name})
        try:
            yield
        finally:
            _using.reset(token)

    @property
    def kernel(self):
        """With the active adapter; of a layer in int8 with an adapter of low rank the kernel alone, as it is kept."""
        kernel, adapter = super().kernel, self.adapters.get(self.active)
        if adapter is None or (adapter.adds and self.quantization_mode is not None):
            return kernel
        return adapter.kernel(kernel)

    @property
    def bias(self):
        adapter = self.adapters.get(self.active)
        return self._bias if adapter is None else adapter.bias(self._bias)

    @bias.setter
    def bias(self, value):
        self._bias = value

    def call(self, inputs, training=None):
        return self._adapted(super().call, inputs, training)

    def quantized_call(self, inputs, training=None):
        return self._adapted(super().quantized_call, inputs, training)

    def _adapted(self, call, inputs, training):
        adapter = self.adapters.get(self.active)
        if adapter is None:
            return call(inputs, training=training)
        if not adapter.adds:
            return super().call(inputs, training=training)
        with self.using(None):
            outputs = call(inputs, training=training)
        return outputs + keras.ops.cast(adapter.update(inputs, training), outputs.dtype)

    def add_adapter(self, name, kind, **options):
        """Adds one of `adapters.KINDS`, not active. The layer must be built, without activation, float or int8."""
        self._tracker.unlock()
        try:
            adapter = self.adapters[name] = KINDS[kind](self, name, **options)
            if adapter.seed is not None:
                self.seeds[name] = adapter.seed
        finally:
            self._tracker.lock()

    def remove_adapter(self, name):
        adapter = self.adapters.pop(name)
        self.active = None if self.active == name else self.active
        self.seeds.pop(name, None)
        for variable in adapter.variables.values():
            self._untrack_variable(variable)

    def describe_adapters(self):
        """Kind and options of each adapter by name, as `add_adapter` takes them."""
        kinds = {cls: kind for kind, cls in KINDS.items()}
        return {name: [kinds[type(adapter)], adapter.options] for name, adapter in self.adapters.items()}

    def quantize(self, mode=None, type_check=True, config=None):
        if mode in ("gptq", "awq"):
            raise ValueError(
                f"`mode` must be 'int8', 'int4' or 'float8' for {self.path}; received {short_repr(mode)}. Keras 3.15 calibrates "
                "it without the data, and gives wrong kernels where a group of weights has one sign."
            )
        if self.adapters and mode not in QUANTIZED:
            raise ValueError(f"`mode` must be 'int8' for a layer with adapters; received {short_repr(mode)} for {self.path}.")
        with self.using(None):
            super().quantize(mode, type_check=False, config=config)  # whose check refuses every subclass

    def save_own_variables(self, store):
        with self.using(None):
            super().save_own_variables(store)
        for key, variable in self._adapter_variables().items():
            store[key] = variable

    def load_own_variables(self, store):
        variables = self._adapter_variables()
        saved = sorted(key for key in store.keys() if not key.isdigit())
        if saved != sorted(variables):
            raise ValueError(
                f"{self.path} must have the adapters of the file, and no other: it has {sorted(self.adapters)}, with "
                f"the variables {sorted(variables)}; received a file with {short_repr(saved)}."
            )
        with self.using(None):
            super().load_own_variables(store)
        for key, variable in variables.items():
            variable.assign(store[key])

    def _adapter_variables(self):
        """By their keys in a file; those of the base are numbers."""
        adapters = self.adapters.items()
        return {f"{name}_{part}": v for name, adapter in adapters for part, v in adapter.variables.items()}


class _Adapters:
    def __init__(self):
        self.by_name, self.active = {}, None


def active_adapters(model):
    """The name of the active adapter of each projection of a model, in order."""
    return tuple(layer.active for layer in model._flatten_layers() if isinstance(layer, Projection))


def make_projection(layer, name, units, input_shape, use_bias=None):
    """A built projection with the `kernel_initializer`, dtype policy and, unless it is given, `use_bias` of its owner."""
    projection = Projection(
        units,
        use_bias=layer.use_bias if use_bias is None else use_bias,
        kernel_initializer=own_initializer(layer.kernel_initializer, layer, name),
        dtype=layer.dtype_policy,
        name=name,
    )
    projection.build(input_shape)
    return projection
