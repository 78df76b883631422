"""How a `.keras` file keeps what fine-tuning does to a built layer: its adapters, which variables are frozen, and int8.

Keras itself keeps none of it for layers inside of another: their variables come back as `build` makes them. Here it is part
of the outer layer's build configuration, so that it stands before Keras makes the variables of the optimizer and reads the
values. Inner layers and variables go by their paths from the outer layer on, for the outer layer's own may be another when
it comes back: within `Sequential` and wrappers it is.
"""

import keras

KEY = "fine_tuning"


def keep_tuning(cls):
    """Has the layers of a class say in their build configuration what was done to them, and do it again from there."""
    describe, build = cls.get_build_config, cls.build_from_config
    if getattr(describe, "keeps_tuning", False):  # inherited
        return cls

    def get_build_config(self):
        tuning = {**_quantized(self), **_adapters(self), **_frozen(self)}
        config = describe(self)
        return {**(config or {}), KEY: tuning} if tuning else config

    def build_from_config(self, config):
        build(self, config)
        _restore(self, (config or {}).get(KEY, {}))

    get_build_config.keeps_tuning = True
    cls.get_build_config, cls.build_from_config = get_build_config, build_from_config
    return cls


def layers_with_adapters(layer):
    """The layers inside of `layer`, itself included, that can have adapters, by their paths."""
    return {inner.path: inner for inner in layer._flatten_layers() if hasattr(inner, "describe_adapters")}


def trainable_by_nature(layer):
    """The variables that training may change, frozen or not: not the statistics of a norm, nor an int8 kernel."""
    variables = [v for inner in layer._flatten_layers() for v in inner._trainable_variables]
    return list({id(v): v for v in variables}.values())


def _quantized(layer):
    found = {
        path: [inner.quantization_mode, keras.saving.serialize_keras_object(inner.quantization_config)]
        for path, inner in _inside(layer, layer._flatten_layers(include_self=False)).items()
        if getattr(inner, "quantization_mode", None) is not None
    }
    return {"quantized": found} if found else {}


def _adapters(layer):
    layers = _inside(layer, layers_with_adapters(layer).values())
    found = {path: inner.describe_adapters() for path, inner in layers.items() if inner.adapters}
    active = {path: inner.active for path, inner in layers.items() if inner.active is not None}
    return {"adapters": found, "active": active} if found else {}


def _frozen(layer):
    paths = [path for path, variable in _inside(layer, trainable_by_nature(layer)).items() if not variable.trainable]
    return {"frozen": paths} if paths else {}


def _inside(layer, parts):
    """Layers or variables by their paths from `layer` on; what it shares with another keeps its own."""
    found = {part.path: part for part in parts}
    return {
        path[len(layer.path) + 1 :]: part for path, part in found.items() if f"{path}/".startswith(f"{layer.path}/")
    }


def _restore(layer, tuning):
    inner = _inside(layer, layer._flatten_layers())
    for path, (mode, config) in tuning.get("quantized", {}).items():
        if inner[path].quantization_mode is None:
            inner[path].quantize(mode, config=keras.saving.deserialize_keras_object(config))
    for path, adapters in tuning.get("adapters", {}).items():
        for name, (kind, options) in adapters.items():
            if name not in inner[path].adapters:  # of a layer that came with a configuration of its own
                inner[path].add_adapter(name, kind, **options)
    for path, name in tuning.get("active", {}).items():
        inner[path].active = name
    variables = _inside(layer, trainable_by_nature(layer))
    for path in tuning.get("frozen", []):
        variables[path].trainable = False
