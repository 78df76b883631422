"""Derives a config.json for a model from a builder: values with which a family's table builds the same model.

A table turns keys into options. The reverse is a search. It tries values that occur in the model's layers, and keeps
for each key the value with which the table's options come nearest to the model's options. The search may fail, but
its result is verified: the model that `load` would build must have the same options, weights and outputs.
"""

import contextlib
import re
import warnings

import keras

from keras_txf import checks
from keras_txf.backend.functional_graph import is_functional
from keras_txf.checkpoints.building import describe, has_own_logits, options_of
from keras_txf.checkpoints.comparison import differ, distance, options_in, other_outputs, shown
from keras_txf.checkpoints.config import ACTIVATIONS, Config
from keras_txf.checkpoints.config_schema import NULL, VALUE_CHECKS, size_or_sizes, sizes
from keras_txf.checkpoints.differences import differences
from keras_txf.checkpoints.families import FAMILIES
from keras_txf.checkpoints.family import IMAGE_TEXT, LANGUAGE_MODELS
from keras_txf.checkpoints.parts import TABLE_OPTIONS
from keras_txf.checks import short_repr
from keras_txf.layers import DecoderBlock, EncoderBlock, WaveformEmbedding
from keras_txf.layers.parts import OPTIONS

LONGEST = 64  # the widest window that the comparison of outputs exceeds
PARTS = ("attention", "feed_forward")  # options that may be layers
LISTS = (sizes, size_or_sizes)  # checks of keys with a size for each convolution
OF_ATTENTION = {*OPTIONS["attention"], *TABLE_OPTIONS["attention"]}


def derive_config(model: keras.Model, kind: str) -> dict:
    """Returns the values of a config.json with which a family builds a model like the given one.

    Args:
        model: from a builder, or wired by hand from the same layers.
        kind: `model_type` of the family.

    Raises:
        ValueError: an unknown family, a model without a graph, or a model that the family cannot express. The message
            names the options that differ from the nearest class.
    """
    checks.one_of("family", kind, sorted(FAMILIES))
    if not is_functional(model) or isinstance(model, keras.Sequential):
        raise ValueError(f"`model` must be a functional model with `family`; received {type(model).__name__}.")
    if IMAGE_TEXT in FAMILIES[kind].tasks:
        raise ValueError(
            f"`family` must be of models with one part; received {short_repr(kind)}, whose config.json describes an "
            "encoder of images and a decoder. Pass `config`."
        )
    _check_names(model)
    family, wanted, found = FAMILIES[kind], options_in(model), []
    values = {"model_type": kind, **family.start(wanted)}
    stuck = set()
    if "causal_lm" in family.tasks:  # no token of a builder's model ends texts
        values.update(bos_token_id=None, eos_token_id=None)
        if wanted.get("pad_id") is None:  # the default of the class may be a token beyond a small vocabulary
            values["pad_token_id"] = None
    for task, known in family.tasks.items():
        own = {"architectures": [known.architecture]}
        if task in LANGUAGE_MODELS:
            own["tie_word_embeddings"] = not has_own_logits(model)
        values, stuck = search(family, task, {**values, **own}, wanted, stuck)
        number, message = compare(model, wanted, family, task, values)
        if not number:
            return values
        found.append((number, known.architecture, message))
        values = {key: value for key, value in values.items() if key not in own}  # the other values are a good start
    _, architecture, message = min(found)
    raise ValueError(f"`family` must be able to express the model; {short_repr(kind)} ({architecture}) {message}.")


def _check_names(model):
    """Raises ValueError if blocks do not have the names by which the tables of all families find their weights."""
    blocks = [layer.name for layer in model.layers if isinstance(layer, (EncoderBlock, DecoderBlock))]
    other = [name for name in blocks if not re.search(r"(encoder|decoder)_\d+$", name)]
    if other:
        raise ValueError(
            "`model` must have the layer names of a builder, `embedding`, `encoder_0` or `decoder_0` ..., "
            "`encoder_norm` or `decoder_norm`, and `logits` for a head of its own, to be written by `family`; received "
            f"{short_repr(other)}."
        )


def search(family, task, values, wanted, stuck):
    """Returns the values with which the family's options come nearest to `wanted`, and the options that differ.

    `stuck` holds the options that no value could match for an earlier task. The search visits the keys in the order in
    which the table reads them: the sizes, on which the other keys depend, come first.
    """
    (best, asked, read), before = score(family, task, values, wanted), None
    pool = proposals(wanted)
    while best != before and any(is_open(name, asked[name], wanted[name]) for name in asked.keys() - stuck):
        before = best
        for key in list(read):
            for change in changes(key, pool, read, asked, wanted):
                with contextlib.suppress(ValueError):  # the table raises for this value
                    result = score(family, task, {**values, **change}, wanted)
                    if result[0] < best - 1e-9:
                        values, (best, asked, read) = {**values, **change}, result
    return values, {name for name in asked if differ(name, asked[name], wanted[name])}


def is_open(name, value, wanted):
    """Whether another value of a key may bring an option nearer. A layer as a part differs in its own options."""
    return differ(name, value, wanted) or (name in PARTS and distance(value, wanted) > 0)


def score(family, task, values, wanted):
    """Returns the distance of the family's options from `wanted`, the options, and the keys that the table read.

    The first options of a table weigh up to twice as much as the last ones, whose defaults may depend on them. An
    option of attention that the table leaves out, because no block has attention, counts as a wrong one.
    """
    config = Config(values)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options, _ = options_of(family, task, config, {})
    for side in ("encoder", "decoder"):
        own = options.pop(f"{side}_options", None) or {}
        options.update({f"{name}_of_{side}": value for name, value in own.items()})
    asked = {name: shown(value) for name, value in options.items() if name in wanted}
    far = (distance(value, wanted[name]) * (2 - i / len(asked)) for i, (name, value) in enumerate(asked.items()))
    return sum(far) + 2 * len(OF_ATTENTION & wanted.keys() - asked.keys()), asked, config.read


def compare(model, wanted, family, task, values):
    """Returns the number of differences from the family's model, and words for them.

    They are differences of options and weights, or else of the outputs.
    """
    try:
        described = describe(model, family, task, values)
    except ValueError as error:
        return len(wanted), f"builds no such model: {str(error).rstrip('.')}"
    found = differences(described, model)
    if found:
        return len(found), str(found)
    windows = [window for window in wanted.get("window") or () if window and window <= LONGEST]
    length = min(max([8, *windows]) + 2, wanted.get("max_length") or LONGEST)
    length += sum(10 * layer.window for layer in model.layers if isinstance(layer, WaveformEmbedding))
    messages = other_outputs(described, model, length, wanted.get("token_types"))
    return len(messages), "".join(messages)


def proposals(wanted):
    """Returns candidates for the values of keys: the options of the model, and names and lists made from them."""
    every = list(parts_of(wanted))
    found = [True, False, "rope"]  # the last for `position_embedding_type`
    for name, ours in ACTIVATIONS.items():
        found += [name, f"gated-{name}"] if ours in every else []
    for one in every:
        if isinstance(one, dict) and "type" in one:  # rotary positions of long texts
            found.append({"rope_type": one["type"], **{name: part for name, part in one.items() if name != "type"}})
        if isinstance(one, tuple):
            found.append(list(one))
        if isinstance(one, list):
            found += [[int(bool(x)) for x in one], [("full", "sliding")[bool(x)] + "_attention" for x in one]]
    return list({repr(one): one for one in [*found, *every, None]}.values())


def parts_of(value):
    """Yields a value and everything nested in it."""
    yield value
    if isinstance(value, (list, tuple, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from parts_of(one)


def changes(key, pool, read, asked, wanted):
    """Yields changes of the value of a key: dicts of keys -> values.

    A list for the blocks is also tried with each Boolean set, because some families read it only then.
    """
    value, numbers = read.get(key), []
    if is_number(value):
        for name in asked:
            pair = asked[name], wanted[name]
            has, needs = (one[0] if isinstance(one, (list, tuple)) and one else one for one in pair)
            if is_number(has) and is_number(needs) and has != needs and has and needs:
                steps = value + needs - has, value * needs / has, value * has / needs, value * (has / needs) ** 2
                numbers += [form for step in steps for form in (round(step), float(f"{step:.12g}"))]
    for one in [*numbers, *pool]:
        if isinstance(value, float) and is_number(one):
            one = float(one)
        if key in VALUE_CHECKS and fits(key, one, value):
            is_sizes = VALUE_CHECKS[key] in LISTS and isinstance(one, list)
            yield {key: one, **(same_length(key, len(one), read) if is_sizes else {})}
            if isinstance(one, list):
                yield from ({key: one, flag: True} for flag in read if VALUE_CHECKS.get(flag) is checks.boolean)


def same_length(key, length, read):
    """Returns the other lists of sizes, one for each convolution, cut or extended to a length."""
    lists = {name: value for name, value in read.items() if VALUE_CHECKS.get(name) in LISTS and isinstance(value, list)}
    return {name: (value + value[-1:] * length)[:length] for name, value in lists.items() if name != key}


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def fits(key, value, before):
    """Whether a value has the type of a key's default, as transformers also checks."""
    if value is None:
        return before is None or key in NULL
    try:
        VALUE_CHECKS[key](key, value)
    except ValueError:
        return False
    return not (is_number(before) and is_number(value)) or type(value) is type(before)
