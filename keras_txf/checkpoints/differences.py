"""Says, in the words of a model's layers, in which options and weights it differs from the model of a family."""

import dataclasses

from keras_txf.checkpoints.comparison import blocks_of, differ, distance, embeddings_of, options_in, renamed_bias
from keras_txf.checkpoints.parts import BLOCK_PARTS, TABLE_OPTIONS
from keras_txf.checks import short_repr

SHOWN = 5  # differences in a message
OF_PARTS = {
    name: (option, part)
    for part in BLOCK_PARTS
    for name, option in TABLE_OPTIONS[part].items()
    if name not in (option, "norm_bias")
}
OF_LOGITS = {"logit_scale": "scale", "final_logit_soft_cap": "soft_cap"}
# Option -> an option that it follows: both are not shown if they differ by the same values.
FOLLOWS = {
    "feed_forward_bias": "use_bias",
    "attention_bias": "use_bias",
    "key_bias": "attention_bias",
    "output_bias": "attention_bias",
    "attention_key_bias": "key_bias",
    "attention_output_bias": "output_bias",
    "num_decoder_layers": "num_layers",
}
SIDES = {"encoder": "_of_encoder", "decoder": "_of_decoder"}


@dataclasses.dataclass
class Differences:
    """The differences of a model from the model of a family. `len` counts them, and `str` shows some in one line.

    Args:
        options: a phrase for each option of a layer that differs, and for each layer that is missing.
        weights: a phrase for each weight.
    """

    options: list
    weights: list

    def __len__(self):
        return len(self.options) + len(self.weights)

    def __str__(self):
        shown, more = (self.options or self.weights)[:SHOWN], []
        if len(self.options or self.weights) > SHOWN:
            more.append(f"{len(self.options or self.weights) - SHOWN} more")
        if self.options and self.weights:
            more.append(f"{len(self.weights)} {'weight' if len(self.weights) == 1 else 'weights'}")
        return " and ".join(["asks for " + ", ".join(shown), *more])


def differences(described, model):
    """Returns the `Differences` of a model from the model that a family describes."""
    asked, received = options_in(described), options_in(model)
    moved = renamed_bias(described, model)
    missing, extra = (
        [one for one in layers(a) if one not in layers(b)] for a, b in ((asked, received), (received, asked))
    )
    found = [*of_embeddings_and_model(asked, received, described, model)]
    if missing:
        named = "a layer named" if len(missing) == 1 else "layers named"
        found.append(f"{named} {joined(missing)} (received {joined(extra) if extra else 'none'})")
    found += [*of_layers(asked, received, missing, moved), *of_blocks(asked, received, model)]
    asked, received = ({weight.path: tuple(weight.shape) for weight in one.weights} for one in (described, model))
    received = {moved.get(path, path): shape for path, shape in received.items()}
    named = {*missing, *(extra if missing else ())}
    weights = [
        of_weight(path, asked.get(path), received.get(path))
        for path in sorted(asked.keys() | received.keys())
        if asked.get(path) != received.get(path) and path.partition("/")[0] not in named
    ]
    return Differences(list(dict.fromkeys(found)), weights)


def joined(names):
    return " and ".join(short_repr(name) for name in names)


def layers(options):
    """Returns the names of the layers whose classes are compared."""
    return [name.removesuffix("/class") for name in options if name.endswith("/class")]


def of_layers(asked, received, missing, moved):
    """Yields a phrase for each option of a layer that is neither a block nor an embedding."""
    for name, value in asked.items():
        layer, _, option = name.partition("/")
        follows = name == "logits/use_bias" and moved
        if option and layer not in missing and not follows and differ(name, value, received.get(name)):
            yield phrase(option, layer, value, received.get(name))


def of_blocks(asked, received, model):
    """Yields a phrase for each option of the blocks, with the name of the first block of which it differs."""
    for side, suffix in SIDES.items():
        names = [block.name for block in blocks_of(model)[side]]
        found = {}
        for name, value in asked.items():
            given = received.get(name)
            if not name.endswith(suffix) or not isinstance(value, list) or not isinstance(given, list):
                continue
            pairs = list(zip(names, value, given))  # another number of blocks has its own phrase
            pairs = [pair for pair in pairs if differ(name, *pair[1:])]
            if pairs:
                found[name.removesuffix(suffix)] = pairs
        for name, pairs in found.items():
            if pairs == found.get(FOLLOWS.get(name)):
                continue
            option, part = OF_PARTS.get(name, (name, None))
            block, value, given = pairs[0]
            others = len({pair[0] for pair in pairs}) - 1
            place = block + (f" and {others} other {'block' if others == 1 else 'blocks'}" if others else "")
            yield phrase(option, place if part is None else f"`{part}` of {place}", value, given)


def of_embeddings_and_model(asked, received, described, model):
    """Yields a phrase for each option of the embeddings, and of the model as a whole."""
    own = {layer.name: layer for layer in embeddings_of(model)}
    options = {name for layer in [*own.values(), *embeddings_of(described)] for name in layer.get_config()}
    prefixes = {name.removesuffix("embedding") for name in own} | {"source_", "target_", ""}
    found = {}
    for name, value in asked.items():
        given = received.get(name)
        of_part = "/" in name or isinstance(value, list) or name.endswith(tuple(SIDES.values()))
        if not of_part and differ(name, value, given):
            found[name] = value, given
    for name, (value, given) in found.items():
        prefix = max((one for one in prefixes if name.startswith(one)), key=len)
        option = {"scale_embedding": "scale"}.get(name.removeprefix(prefix), name.removeprefix(prefix))
        place = next((one for one in (f"{prefix}embedding", "embedding", *own) if one in own), None)
        if name in OF_LOGITS:
            yield phrase(OF_LOGITS[name], "the LogitAdjustment", value, given)
        elif option in options and place is not None:
            yield phrase(option, place, value, given)
        elif (value, given) != found.get(FOLLOWS.get(name)):
            yield phrase(name, None, value, given)


def phrase(option, place, value, given):
    """Returns words for one difference; of two options with the same class, for the first inner option that differs."""
    classes = [one.get("class", one.get("class_name", one)) if isinstance(one, dict) else one for one in (value, given)]
    if isinstance(value, dict) and classes[0] == classes[1]:
        inner = next(one for one in value | given if distance(value.get(one), given.get(one)))
        return phrase(inner, f"`{option}` of {place}", value.get(inner), given.get(inner))
    of = "" if place is None else f" of {place}"
    return f"{option}={short_repr(classes[0])}{of} (received {short_repr(classes[1])})"


def of_weight(path, asked, received):
    if asked is None:
        return f"no weight {short_repr(path)} (received one of shape {received})"
    return f"a weight {short_repr(path)} of shape {asked} (received {received or 'none'})"
