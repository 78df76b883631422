"""Compares two models: the options of their layers, and their outputs with the same weights."""

import collections
import re

import keras
import numpy as np
from keras import ops

from keras_txf.backend.functional_graph import nodes, operations_inside, optional_inputs
from keras_txf.checks import short_repr
from keras_txf.layers import (
    FeedForward,
    MultiHeadSelfAttention,
    PatchEmbedding,
    PositionalEmbedding,
    Residual,
    WaveformEmbedding,
)
from keras_txf.layers.parts import OPTIONS
from keras_txf.layers.projections import LogitProjection, Projection
from keras_txf.layers.token_input import embedded_input, inputs_by_name

# Not compared: options without an effect on the outputs, options visible in the shapes of weights, and parts, whose own
# options are compared.
UNCOMPARED = re.compile(
    r"(.*/)?(units|.*max_length|.*dropout|.*initializer|.*regularizer|.*constraint|axis|stochastic_depth|layer_scale|"
    r"attention|cross_attention|feed_forward|norm_bias|load_balancing|.*drop_remainder|.*interpolate_positions)(_of_\w+)?"
)
OF_PARTS = {*OPTIONS["attention"], *OPTIONS["feed_forward"], "attention", "feed_forward", "use_bias"}
PLAIN = (keras.layers.Dense, keras.layers.LayerNormalization, keras.layers.RMSNormalization)
NORMS = {"LayerNormalization": "layer", "RMSNormalization": "rms", "ZeroCenteredRMSNormalization": "rms_zero_centered"}


def options_in(model):
    """Returns the options of a model's layers: dict of names -> a value, or a list with a value for each block.

    The names of options of one side's blocks end in "_of_encoder" or "_of_decoder". The names of options of other
    layers begin with the name of the layer, such as "pooling/kind" and "pooling/class".
    """
    found: dict = {"num_layers": 0, "num_decoder_layers": 0, "logit_scale": None, "final_logit_soft_cap": None}
    sides, embeddings = blocks_of(model), embeddings_of(model)
    for layer in operations_inside(model):
        if layer in embeddings or any(layer in blocks for blocks in sides.values()):
            continue
        if hasattr(layer, "soft_cap"):
            found.update(logit_scale=layer.scale, final_logit_soft_cap=layer.soft_cap)
        elif isinstance(layer, WaveformEmbedding):
            found["embedding"], found["dim"], found["input_dim"] = shown(layer), layer.dim, model.inputs[0].shape[-1]
        elif isinstance(layer, keras.layers.Layer) and not isinstance(layer, keras.layers.Dropout):
            found.update({f"{layer.name}/class": class_of(layer), **plain(layer, f"{layer.name}/")})
            found.update({"start_id": layer.start_id} if hasattr(layer, "start_id") else {})
    for layer in sorted(embeddings, key=lambda one: getattr(one, "vocab_size", 0) is not None):  # positions alone first
        own = layer.name.removesuffix("embedding")  # "source_", "target_", or "" for both
        for prefix in ["", own] if own else ["", "source_", "target_"]:
            given = {"channels": model.inputs[0].shape[-1], **plain(layer, prefix)}
            scale = given.pop(f"{prefix}scale", None)  # None depends on the positions
            given[f"{prefix}scale_embedding"] = getattr(layer, "token_scale", scale)
            found.update({name: value for name, value in given.items() if value is not None or name not in found})
    found["embedding_dim"] = found.get("dim")
    by_suffix = {f"_of_{side}": list(map(of_block, blocks)) for side, blocks in sides.items()}
    for suffix, blocks in {"": by_suffix["_of_encoder"] + by_suffix["_of_decoder"], **by_suffix}.items():
        first = {name: value for block in reversed(blocks) for name, value in block.items()}
        for name, value in first.items():  # in the tables a recurrence has the options of attention, but no positions
            default = None if name == "position" else value
            found[f"{name}{suffix}"] = [block.get(name, default) for block in blocks]
    if [found["embedding_dim"]] == list(set(keras.tree.flatten(found.get("dim")))):
        found["embedding_dim"] = None
    different = [len(set(map(id, blocks))) for blocks in sides.values() if blocks]
    found["num_layers"], found["num_decoder_layers"] = len(sides["encoder"] or sides["decoder"]), len(sides["decoder"])
    found["share_blocks"] = None if sum(different) == sum(map(len, sides.values())) else different[0]
    return found


def blocks_of(model):
    """Returns the blocks of a model by their side, "encoder" or "decoder"; a block occurs once for each call."""
    calls = collections.Counter(node.operation.name for node in nodes(model))
    sides: dict = {"encoder": [], "decoder": []}
    for layer in operations_inside(model):
        side = layer.name.partition("_")[0]
        if side in sides and hasattr(layer, "feed_forward"):
            sides[side] += [layer] * max(1, calls[layer.name])
    return sides


def embeddings_of(model):
    """Returns the layers of a model that embed tokens, positions or patches."""
    return [layer for layer in operations_inside(model) if isinstance(layer, (PositionalEmbedding, PatchEmbedding))]


def class_of(layer):
    """Returns the name of a layer's class: Keras' own for the projections, which compute the same."""
    return "Dense" if type(layer) in (Projection, LogitProjection) else type(layer).__name__


def renamed_bias(described, model):
    """Returns the path of the logits' bias in a model -> its path in the described model.

    The dict is empty if the described model has no bias of the logits in its `LogitAdjustment`, or the model has one.
    """
    asked, received = ({weight.path for weight in one.weights} for one in (described, model))
    head, adjustment = "logits/bias", "logit_adjustment/bias"
    moves = adjustment in asked - received and head in received - asked
    return {head: adjustment} if moves else {}


def of_block(block):
    """Returns the options of a block and its parts; sizes, biases and scales are taken from its weights."""
    attention, network = block.attention, block.feed_forward
    own = {name: value for name, value in plain(block).items() if name not in OF_PARTS}
    of_attention, is_recurrence = plain(attention), "causal" not in plain(attention)
    if is_recurrence:  # its heads are not heads of attention
        of_attention = {name: value for name, value in of_attention.items() if name not in OPTIONS["attention"]}
    found = {**of_attention, **plain(network), **own}
    for name, part, default in (
        ("attention", attention, MultiHeadSelfAttention),
        ("feed_forward", network, FeedForward),
    ):
        found[name] = None if type(part) is default else shown(part)  # as in the tables
    found["feed_forward_dropout"] = getattr(network, "dropout", 0)
    found["activation"] = activation_name(found.get("activation"))
    if not is_recurrence:
        found["attention_dropout"] = getattr(attention, "dropout", 0)
        found["position"] = shown(getattr(attention, "position_layer", None))
    found["residual"] = shown(block.stream)
    found["residual_scale"] = block.stream.scale
    norm = block.feed_forward_norm if hasattr(block, "feed_forward_norm") else block.attention_norm
    found["norm"], found["norm_epsilon"] = NORMS.get(type(norm).__name__, shown(norm)), getattr(norm, "epsilon", None)
    found["norm_bias"] = getattr(norm, "center", False)
    if hasattr(attention, "query") and hasattr(attention, "num_key_value_heads"):
        heads = attention.num_key_value_heads or attention.num_heads
        head_dim, biased = attention.key.units // heads, attention.query.use_bias
        scale = head_dim**-0.5 if attention.scale is None else attention.scale
        found.update(num_key_value_heads=heads, head_dim=head_dim, scale=scale, attention_bias=biased)
        found.update(key_bias=attention.key.use_bias, output_bias=getattr(attention.output_dense, "use_bias", biased))
        found.update(attention_key_bias=found["key_bias"], attention_output_bias=found["output_bias"])
        found["dim"] = attention.query.kernel.shape[0]
    if isinstance(getattr(network, "intermediate", None), keras.layers.Layer):  # experts have a weight of that name
        found.update(intermediate_dim=network.intermediate.units, use_bias=network.intermediate.use_bias)
        found["feed_forward_bias"] = found["use_bias"]
    return found


def activation_name(activation):
    """Returns the name of a function of Keras, and "silu" for its other name; other activations unchanged."""
    if isinstance(activation, str):
        return {"swish": "silu"}.get(activation, activation)
    name = getattr(activation, "__name__", None)
    return name if name and getattr(keras.activations, name, None) is activation else activation


def plain(layer, prefix=""):
    """Returns the options of a layer without name and dtype; an empty dict for a layer without a configuration."""
    try:
        given = layer.get_config()
    except NotImplementedError:
        return {}
    return {f"{prefix}{name}": value for name, value in given.items() if name not in ("name", "trainable", "dtype")}


def shown(option):
    """Returns the class and the options of an option that is a layer or a `Residual`; other options unchanged."""
    if type(option) is Residual:
        return option.kind
    if isinstance(option, Residual):
        return {"class": type(option).__name__, **option.get_config()}
    if isinstance(option, (list, tuple)):
        each = {id(one): shown(one) for one in option}  # blocks may share a layer
        return [each[id(one)] for one in option]
    return {"class": type(option).__name__, **plain(option)} if isinstance(option, keras.layers.Layer) else option


def distance(value, wanted):
    """Returns 0 for equal values, up to 1 for others: a mean over blocks, sides or options."""
    if isinstance(wanted, dict) and isinstance(value, dict):
        names = wanted.keys() | value.keys()
        return sum(distance(value.get(name), wanted.get(name)) for name in names) / max(1, len(names))
    if isinstance(wanted, (list, tuple)):
        values = value if isinstance(value, (list, tuple)) else [value] * len(wanted)
        return sum(map(distance, values, wanted)) / max(1, len(wanted)) if len(values) == len(wanted) else 1
    if isinstance(value, float) and isinstance(wanted, float):
        return 0 if abs(value - wanted) <= 1e-6 * abs(wanted) else 0.5
    return 0 if value == wanted else 0.5 if type(value) is type(wanted) else 1


def differ(name, value, wanted):
    """Whether the values of an option differ so that the outputs may."""
    return not UNCOMPARED.fullmatch(name) and distance(value, wanted) > 0


# Large weights show soft caps and scales, small ones the epsilons of norms.
SCALES = (1.0, 0.02)


def other_outputs(described, model, length, token_types):
    """Returns a list with one message if two models compute different outputs, else an empty list.

    Runs both on the same nonzero random weights, and on random ids with padding at the end, at the start
    and in the middle.

    Args:
        described: the model of a family, whose weights need no values.
        model: the model to compare with it.
        length: number of tokens.
        token_types: number of types of tokens, or None.
    """
    names = [set(inputs_by_name(described)), set(inputs_by_name(model)) - set(optional_inputs(model))]
    if not names[1] <= names[0] <= set(inputs_by_name(model)):
        return [f"asks for the inputs {sorted(names[0])}; received a model with {sorted(names[1])}"]
    share_policies(described, model)
    random, moved = np.random.default_rng(0), renamed_bias(described, model)
    inputs = {name: random_input(model, name, random, length, token_types) for name in sorted(names[0])}
    for scale in SCALES:
        values = {weight.path: random_value(weight, random, scale) for weight in model.weights if is_float(weight)}
        values.update({other: values[path] for path, other in moved.items()})
        asked, received = (outputs_of(one, values, inputs) for one in (described, model))
        del values  # before the next ones are made
        if [one.shape for one in asked] != [one.shape for one in received]:
            shapes = [short_repr([one.shape for one in outputs]) for outputs in (asked, received)]
            return [f"asks for outputs of the shapes {shapes[0]}; received a model with {shapes[1]}"]
        for one, other in zip(asked, received):
            if not np.allclose(one, other, rtol=0, atol=1e-5 * np.abs(one).max()):
                kinds = {keras.backend.standardize_dtype(weight.dtype) for weight in model.weights if is_float(weight)}
                dtypes = f"; received weights of {sorted(kinds)}" if len(kinds) > 1 else ""
                return [f"calls its layers in another way: the outputs of both differ with the same weights{dtypes}"]
    return []


def share_policies(described, model):
    """Gives plain layers of Keras the dtype policies of the model's layers, such as a head's float32."""
    own = {layer.name: layer for layer in model.layers}
    for layer in described.layers:
        if isinstance(layer, PLAIN) and isinstance(own.get(layer.name), PLAIN):
            layer.dtype_policy = own[layer.name].dtype_policy


def is_float(weight):
    return "float" in keras.backend.standardize_dtype(weight.dtype)


def random_value(weight, random, scale):
    """Returns normal random numbers for a weight; in a large weight they repeat, because drawing is slow."""
    width = weight.shape[-2] if weight.path.endswith("kernel") else 1
    numbers = random.standard_normal(65537, "float32") * np.float32(scale / np.sqrt(width))
    return ops.convert_to_tensor(np.resize(numbers, weight.shape), weight.dtype)


def random_input(model, name, random, length, token_types):
    """Returns the ids of three texts, or three images or sequences of vectors."""
    symbol = inputs_by_name(model)[name]
    if "float" in symbol.dtype:
        return random.standard_normal((3, *(size or length for size in symbol.shape[1:])), "float32")
    if name == "token_type_ids":
        return random.integers(0, token_types, (3, length), "int32")
    tokens = embedded_input(model, name)
    ids = random.integers(0, tokens.vocab_size, (3, length), "int32")
    if tokens.pad_id is not None:
        ids[0, -2:] = ids[1, :2] = ids[2, length // 2] = tokens.pad_id
    return ids


def outputs_of(model, values, inputs):
    """Returns the outputs of a model, a list of float32 arrays, with other values of its weights, by their paths."""
    mapping = [(weight, values[weight.path]) for weight in model.weights if weight.path in values]
    given = keras.tree.map_structure(lambda symbol: inputs.get(symbol.name), model.input)
    with keras.StatelessScope(state_mapping=mapping):
        outputs = model(given, training=False)
    return [ops.convert_to_numpy(ops.cast(output, "float32")) for output in keras.tree.flatten(outputs)]
