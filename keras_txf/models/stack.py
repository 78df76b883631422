"""The wiring of blocks for all builders: blocks, final norm and outputs."""

import dataclasses
import inspect
import warnings

import keras

from keras_txf import checks
from keras_txf.backend.functional_graph import name_operations
from keras_txf.layers import EncoderBlock, RelativeBias
from keras_txf.layers.base import call_parameters
from keras_txf.layers.norms import KeepMask, make_norm
from keras_txf.layers.parts import OPTIONS, copy_layer, set_policy
from keras_txf.layers.projections import Dropout, Projection
from keras_txf.layers.residual import as_residual
from keras_txf.models.checked_model import CheckedModel
from keras_txf.models.embeddings import drop_none
from keras_txf.models.options import each_value

PAPER_DEPTH = 6  # blocks of "Attention Is All You Need"


@dataclasses.dataclass
class Sizes:
    """The number of layers, their width, and the number of query heads or a list with one number for each block."""

    num_layers: int
    dim: int
    num_heads: object = None


@dataclasses.dataclass
class StackOutputs:
    """The blocks of a stack, its symbolic output, and the symbolic outputs of each block."""

    blocks: list
    output: object
    hidden_states: list
    attention_scores: list
    cross_attention_scores: list

    def outputs(self, name, tensor, hidden_states, attention_scores):
        """A model's output, see `with_extra`, with hidden states and attention scores on request."""
        return with_extra(name, tensor, self.requested(hidden_states, attention_scores))

    def requested(self, hidden_states, attention_scores, prefix=""):
        """The requested outputs by name: `hidden_states_0` is the embedding, the last of them the stack's output."""
        named = {}
        checks.boolean("return_hidden_states", hidden_states)
        checks.boolean("return_attention_scores", attention_scores)
        if hidden_states:
            named.update(_numbered(f"{prefix}hidden_states", self.hidden_states))
        if attention_scores:
            named.update(_numbered(f"{prefix}attention_scores", self.attention_scores))
            named.update(_numbered(f"{prefix}cross_attention_scores", self.cross_attention_scores))
        return named


def with_extra(name, tensor, extra):
    """A model's output: the tensor alone, or a dict of the tensor by its name and of the extra outputs."""
    return {name: tensor, **extra} if extra else tensor


def _numbered(name, tensors):
    return {f"{name}_{index}": tensor for index, tensor in enumerate(tensors)}


def run(block_class, x, sizes, options, name, scores=False, context=None, positions=None, **call):
    """Runs embedded tokens or patches through dropout, the blocks `name`_0, `name`_1, ..., and a final norm.

    With `share_blocks` there are fewer blocks than layers, and consecutive layers are one block.

    Args:
        block_class: EncoderBlock or DecoderBlock.
        x: (B, T, embedding's dim).
        sizes: the `Sizes`.
        options: the `Options`. A list or tuple holds one value for each block.
        scores: whether the blocks return their attention scores.
        context: (B, S, D) for cross-attention, or None.
        positions: int (B, T) of packed sequences, or None.
        call: tensors for the call of every block, such as `segment_ids`, or None.

    Returns:
        StackOutputs.
    """
    number = num_layers = checks.size("num_layers", sizes.num_layers)
    if options.share_blocks is not None:
        number = options.share_blocks
        if number > num_layers:
            raise ValueError(
                f"`share_blocks` must be at most the {num_layers} blocks of the {name}; received {number}."
            )
    if options.placement_is_default and num_layers > PAPER_DEPTH:
        warnings.warn(
            f"norm_placement='post', the paper's default: {num_layers} blocks of the {name} learn slowly or not at all "
            "unless the learning rate warms up, see `txf.training.warmup_cosine`. norm_placement='pre' needs no "
            "warm-up; norm_placement='post', if you pass it, does not warn.",
            stacklevel=_caller(),
        )
    blocks = make_blocks(block_class, number, sizes.num_heads, options, name)
    first = blocks[0]
    call = drop_none(**call)
    if checks.boolean("return_attention_scores", scores):
        call["return_attention_scores"] = True

    if options.embedding_norm:
        x = norm_like(first, f"{name}_embedding_norm", options.dtype)(x)
    drops_outputs = getattr(options.embedding_layer, "dropout", None) is not None
    x = Dropout(0.0 if drops_outputs else first.dropout, dtype=options.dtype, name=f"{name}_dropout")(x)
    if x.shape[-1] != sizes.dim or getattr(options.embedding_layer, "projected", False):
        x = Projection(sizes.dim, dtype=options.dtype, name=f"{name}_embedding_projection")(x)
    result = StackOutputs(blocks, None, [x], [], [])
    contexts = [] if context is None else [context]
    for block in (blocks[i * number // num_layers] for i in range(num_layers)):
        takes_positions = positions is not None and _takes_positions(block)
        x = block(x, *contexts, **({"positions": positions} if takes_positions else {}), **call)
        if scores:
            x, self_scores, *cross = x
            result.attention_scores.append(self_scores)
            result.cross_attention_scores += cross
        result.hidden_states.append(x)
    if options.final_norm:
        x = result.hidden_states[-1] = norm_like(first, f"{name}_norm", options.dtype)(x)
    result.output = x
    return result


def _caller():
    """The `stacklevel` of the caller of a builder: the first frame outside of this package, counted from `run`."""
    frame, level = inspect.currentframe().f_back, 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("keras_txf."):
        frame, level = frame.f_back, level + 1
    return level


def _takes_positions(block):
    """Whether the attention of a block uses the argument `positions`."""
    layer = block.attention
    if hasattr(layer, "position_layer"):
        return layer.position_layer is not None
    return "positions" in call_parameters(type(layer))


def norm_like(block, name, dtype):
    """A norm with the options of a block's norms."""
    norm = make_norm(block.norm, block.norm_epsilon, dtype, name, block.use_bias)
    return norm if norm.supports_masking else KeepMask(norm, dtype=norm.dtype_policy, name=name)


def make_blocks(block_class, number, num_heads, options, name):
    """Makes the blocks of a stack, each from its own values of the options."""
    shared = {"num_heads": num_heads, **options.block}
    if _is_relative(shared.get("position")):
        causal = set(each_value(shared.get("causal", block_class is not EncoderBlock)))
        shared["position"] = _shared_bias(num_heads, causal, options.dtype, name)
    relative = [layer for layer in each_value(shared.get("attention")) if _is_relative(getattr(layer, "position", 0))]
    relative_bias = None
    if relative:
        causal = {layer.causal for layer in relative}
        relative_bias = _shared_bias(relative[0].num_heads, causal, options.dtype, name)
    if not isinstance(shared.get("residual", "sequential"), (str, list, tuple)):
        residual = as_residual(shared["residual"])
        shared["residual"] = [residual.of_block(i, number) for i in range(number)]
    for option, value in shared.items():
        if isinstance(value, (list, tuple)) and len(value) != number:
            raise ValueError(
                f"`{option}` must be one value or one for each of the "
                f"{'share_blocks' if options.share_blocks else 'num_layers'}={number} blocks; received {len(value)} "
                "values."
            )
    for layer in each_value(shared.get("position")):
        set_policy(layer, options.dtype)  # it is shared and not copied
    blocks = []
    for i in range(number):
        values = {key: value[i] if isinstance(value, (list, tuple)) else value for key, value in shared.items()}
        blocks.append(_make_block(block_class, values, shared, options.dtype, f"{name}_{i}", relative_bias))
    return blocks


def _make_block(block_class, values, shared, dtype, name, relative_bias):
    """Makes a block with copies of the layers among its options.

    Args:
        block_class: EncoderBlock or DecoderBlock.
        values: the options of this block.
        shared: the options of all blocks.
        dtype, name: of the block.
        relative_bias: the position layer that replaces "relative" in a copied attention.
    """
    parts = {part: values[part] for part in OPTIONS if isinstance(values.get(part), keras.layers.Layer)}
    for part in parts:
        if any(value is None for value in each_value(shared[part])):  # the options are for blocks without this layer
            values = {option: value for option, value in values.items() if option not in OPTIONS[part]}
    copies = {}
    for part, layer in parts.items():
        if part == "norm":  # the block copies it
            continue
        is_relative = part == "attention" and _is_relative(getattr(layer, "position", None))
        copies[part] = copy_layer(layer, part, name, dtype, **({"position": relative_bias} if is_relative else {}))
    return block_class(**{**values, **copies}, dtype=dtype, name=name)


def _is_relative(position):
    """Whether a position is "relative": T5's table of biases, which all blocks share."""
    return isinstance(position, str) and position == "relative"


def _shared_bias(num_heads, causal, dtype, name):
    """The table of biases of all blocks; `causal` is the set of the blocks' values of that option."""
    if len(causal) > 1:
        raise ValueError(
            "`causal` must be the same in all blocks with position='relative', whose table they share; "
            f"received causal={sorted(causal)}."
        )
    return RelativeBias(num_heads, bidirectional=causal == {False}, dtype=dtype, name=f"{name}_position")


def make_model(inputs, outputs, name, builder, model_class=CheckedModel):
    """Makes a functional model. A `keras.RematScope` applies to its layers, not to the model.

    Rematerialization of the whole model at once would save no memory. The default of `name` is the name of the
    `builder`, with a number from the second model on: a model cannot hold two models of one name.
    """
    if not checks.optional(checks.string, "name", name):
        number = keras.backend.get_uid(builder)
        name = builder if number == 1 else f"{builder}_{number - 1}"
    with keras.RematScope(mode=None):
        model = model_class(inputs, outputs, name=name)
    name_operations(model)
    return model
