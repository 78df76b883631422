"""How a `.keras` file keeps what fine-tuning does to a built layer: its adapters, and which variables are frozen.

Keras itself keeps neither: a layer's variables come back as `build` makes them. Here they are part of the layer's build
configuration, so that they stand before Keras makes the variables of the optimizer and reads the values.
"""

KEY = "fine_tuning"


def keep_tuning(cls):
    """Has the layers of a class say in their build configuration what was done to them, and do it again from there."""
    describe, build = cls.get_build_config, cls.build_from_config
    if getattr(describe, "keeps_tuning", False):  # inherited
        return cls

    def get_build_config(self):
        tuning = {**_adapters(self), **_frozen(self)}
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


def _adapters(layer):
    found = {path: inner.describe_adapters() for path, inner in layers_with_adapters(layer).items() if inner.adapters}
    active = {path: inner.active for path, inner in layers_with_adapters(layer).items() if inner.active is not None}
    return {"adapters": found, "active": active} if found else {}


def _frozen(layer):
    paths = [variable.path for variable in trainable_by_nature(layer) if not variable.trainable]
    return {"frozen": paths} if paths else {}


def _restore(layer, tuning):
    layers = layers_with_adapters(layer)
    for path, adapters in tuning.get("adapters", {}).items():
        for name, (kind, options) in adapters.items():
            if name not in layers[path].adapters:  # of a layer that came with a configuration of its own
                layers[path].add_adapter(name, kind, **options)
    for path, name in tuning.get("active", {}).items():
        layers[path].active = name
    variables = {variable.path: variable for variable in trainable_by_nature(layer)}
    for path in tuning.get("frozen", []):
        variables[path].trainable = False
