"""Whether two models with weights of the same paths compute the same: on random weights, ids and vectors."""

import keras
import numpy as np
from keras import ops

from keras_txf.backend.functional_graph import optional_inputs
from keras_txf.layers.token_input import embedded_input, inputs_by_name

# Large weights show soft caps and scales, small ones the epsilons of norms.
SCALES = (1.0, 0.02)


def other_outputs(described, model, length, token_types):
    """Returns a list with one message if two models compute different outputs, else an empty list.

    Runs both on the same random weights, of which none is zero, and on random ids with padding at the end, at the start
    and in the middle.

    Args:
        described, model: the model of a family, whose weights need no values, and the model.
        length: number of tokens.
        token_types: number of types of tokens, or None.
    """
    names = [set(inputs_by_name(described)), set(inputs_by_name(model)) - set(optional_inputs(model))]
    if not names[1] <= names[0] <= set(inputs_by_name(model)):
        return [f"asks for the inputs {sorted(names[0])}; received a model with {sorted(names[1])}"]
    random = np.random.default_rng(0)
    inputs = {name: random_input(model, name, random, length, token_types) for name in sorted(names[0])}
    for scale in SCALES:
        values = {weight.path: random_value(weight, random, scale) for weight in model.weights if is_float(weight)}
        asked, received = (outputs_of(one, values, inputs) for one in (described, model))
        del values  # before the next ones are made
        if [one.shape for one in asked] != [one.shape for one in received]:
            return [f"asks for {len(asked)} outputs; received a model with {len(received)}, or of other shapes"]
        for one, other in zip(asked, received):
            if not np.allclose(one, other, rtol=0, atol=1e-5 * np.abs(one).max()):
                return ["calls its layers in another way: the outputs of both differ with the same weights"]
    return []


def is_float(weight):
    return "float" in keras.backend.standardize_dtype(weight.dtype)


def random_value(weight, random, scale):
    """Returns normal numbers for a weight; in a large one they repeat, because to draw them would take long."""
    width = weight.shape[-2] if weight.path.endswith("kernel") else 1
    numbers = random.standard_normal(65537, "float32") * np.float32(scale / np.sqrt(width))
    return ops.convert_to_tensor(np.resize(numbers, weight.shape), weight.dtype)


def random_input(model, name, random, length, token_types):
    """Returns ids of three texts, or as many images or sequences of vectors."""
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
    """Returns the outputs of a model with other values of its weights, by their paths: a list of arrays in float32."""
    mapping = [(weight, values[weight.path]) for weight in model.weights if weight.path in values]
    given = keras.tree.map_structure(lambda symbol: inputs.get(symbol.name), model.input)
    with keras.StatelessScope(state_mapping=mapping):
        outputs = model(given, training=False)
    return [ops.convert_to_numpy(ops.cast(output, "float32")) for output in keras.tree.flatten(outputs)]
