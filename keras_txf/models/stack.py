"""The wiring of blocks: options, blocks, final norm, outputs. Every builder is made of these functions."""

import dataclasses

import keras

from keras_txf import checks
from keras_txf.backend.functional_graph import name_operations
from keras_txf.layers import EncoderBlock, RelativeBias
from keras_txf.layers.base import call_parameters
from keras_txf.layers.dropout import Dropout
from keras_txf.layers.embeddings import ENCODINGS
from keras_txf.layers.norms import KeepMask, make_norm
from keras_txf.layers.parts import OPTIONS, copy_layer, set_policy
from keras_txf.layers.projections import Projection
from keras_txf.layers.residual import as_residual
from keras_txf.layers.serialization import option_names
from keras_txf.layers.shown_options import ARGUMENTS, checked, default_options
from keras_txf.models import embeddings
from keras_txf.models.checked_model import CheckedModel
from keras_txf.models.embeddings import EMBEDDING_OPTIONS, given


@dataclasses.dataclass
class Options:
    """The options of a builder, sorted by who takes them."""

    embedding: dict
    embedding_norm: bool
    block: dict
    final_norm: bool
    dtype: object
    share_blocks: int | None = None
    embedding_layer: object = None


@dataclasses.dataclass
class Sizes:
    """How many blocks there are, and how wide they are; `num_heads` may be a list with a number for each block."""

    num_layers: int
    dim: int
    num_heads: object = None


def sort_options(builder, block_class, options, table, embedding_options=EMBEDDING_OPTIONS):
    """Splits a builder's options; refuses names that its table does not have.

    Args:
        builder: name of the builder, for errors.
        block_class: EncoderBlock or DecoderBlock.
        options: the caller's keyword arguments, and the defaults of the rest.
        table: the builder's options, see `option_tables`.
        embedding_options: those of the embedding, by the name they have here -> their name there.
    """
    defaults = default_options(table)
    checks.known_names(f"an option of {builder}", options, defaults, ARGUMENTS.get(builder, ()))
    options = without_replaced(options, defaults)
    block_names = set(option_names(block_class)) & defaults.keys()
    # A list has a value for each block, which checks it.
    options |= checked(table, {name: value for name, value in options.items() if name not in block_names})
    block = {name: options[name] for name in block_names & options.keys()}
    layer = options.get("embedding")
    chosen = {name: value for name, value in options.items() if value != defaults.get(name, value)}
    embeddings.check_embedding(layer, chosen, embedding_options)
    embedding = {ours: options[name] for name, ours in embedding_options.items() if name in options}
    embedding["position_encoding"] = resolve_encoding(options)
    final_norm = options.get("final_norm")
    if final_norm is None:  # pre-norm leaves the residual stream without a norm at its end
        placement = each_value(block.get("norm_placement", "post"))[-1]
        final_norm = not isinstance(placement, str) or placement != "post"
    embedding_norm = options.get("embedding_norm", False)
    share_blocks = options.get("share_blocks")
    return Options(embedding, embedding_norm, block, final_norm, options.get("dtype"), share_blocks, layer)


def without_replaced(options, defaults):
    """Options without the defaults of what a layer replaces: the caller did not choose them."""
    replaced = [
        name
        for part, names in OPTIONS.items()
        if all(isinstance(layer, keras.layers.Layer) for layer in each_value(options.get(part)))
        for name in names
    ]
    return {name: value for name, value in options.items() if name not in replaced or value != defaults.get(name)}


def resolve_encoding(options, absolute="sinusoidal"):
    """The caller's `position_encoding`; by default the paper's, unless attention has positions of its own."""
    own = [
        *each_value(options.get("position")),
        *(getattr(x, "position_layer", None) for x in each_value(options.get("attention"))),
    ]
    embedding = options.get("embedding")
    if isinstance(embedding, keras.layers.Layer):
        return getattr(embedding, "position_encoding", None)
    auto = absolute if all(x is None for x in own) else None
    position_encoding = checks.one_of(
        "position_encoding", options.get("position_encoding", "auto"), (*ENCODINGS, "auto", None)
    )
    return auto if position_encoding == "auto" else position_encoding


def heads_for(num_heads, *attentions):
    """`num_heads` of one side of a model, or None if a layer replaces each attention in all blocks."""
    layers = [layer for attention in attentions for layer in each_value(attention)]
    return None if all(isinstance(layer, keras.layers.Layer) for layer in layers) else num_heads


def each_value(value):
    """The values of an option, which a list or tuple holds for each block."""
    return value if isinstance(value, (list, tuple)) and value else [value]


@dataclasses.dataclass
class Result:
    """The blocks of a stack, and its symbolic tensors: its output, and what stands between."""

    blocks: list
    output: object
    hidden_states: list
    attention_scores: list
    cross_attention_scores: list

    def outputs(self, name, tensor, hidden_states, attention_scores):
        """The model's output alone, or with the extra ones on request a dict in which it has this name."""
        return with_extra(name, tensor, self.requested(hidden_states, attention_scores))

    def requested(self, hidden_states, attention_scores, prefix=""):
        """The extra outputs by name: `hidden_states_0` is the embedding, the last one the output."""
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
    """A model's output alone, or with the extra ones a dict in which it has this name."""
    return {name: tensor, **extra} if extra else tensor


def _numbered(name, tensors):
    return {f"{name}_{index}": tensor for index, tensor in enumerate(tensors)}


def run(block_class, x, sizes, options, name, scores=False, context=None, positions=None, **call):
    """Embedded tokens or patches -> dropout, the blocks `name`_0, `name`_1, ..., final norm.

    With `share_blocks` there are fewer blocks than layers, and each stands at several places, one after the other.

    Args:
        block_class: EncoderBlock or DecoderBlock.
        x: (B, T, embedding's dim).
        sizes: the `Sizes`.
        options: from `sort_options`. A list or tuple holds one value for each block.
        scores: whether the blocks return their attention scores.
        context: (B, S, D) for cross-attention, or None.
        positions: int (B, T) of packed sequences, or None.
        call: tensors that every block takes, such as `segment_ids`; those that are None stay out.

    Returns:
        Result.
    """
    number = num_layers = checks.size("num_layers", sizes.num_layers)
    if options.share_blocks is not None:
        number = options.share_blocks
        if number > num_layers:
            raise ValueError(
                f"`share_blocks` must be at most the {num_layers} blocks of the {name}; received {number}."
            )
    blocks = make_blocks(block_class, number, sizes.num_heads, options, name)
    first = blocks[0]
    call = given(**call)
    if checks.boolean("return_attention_scores", scores):
        call["return_attention_scores"] = True

    if options.embedding_norm:
        x = like_norm(first, f"{name}_embedding_norm", options.dtype)(x)
    own_rate = getattr(options.embedding_layer, "dropout", None)  # of a layer that drops its outputs itself
    x = Dropout(first.dropout if own_rate is None else 0.0, dtype=options.dtype, name=f"{name}_dropout")(x)
    if x.shape[-1] != sizes.dim:
        x = Projection(sizes.dim, dtype=options.dtype, name=f"{name}_embedding_projection")(x)
    result = Result(blocks, None, [x], [], [])
    for block in (blocks[i * number // num_layers] for i in range(num_layers)):
        own = {} if positions is None or not _takes_positions(block) else {"positions": positions}
        x = block(x, **own, **call) if context is None else block(x, context, **own, **call)
        if scores:
            x, self_scores, *cross = x
            result.attention_scores.append(self_scores)
            result.cross_attention_scores += cross
        result.hidden_states.append(x)
    if options.final_norm:
        x = result.hidden_states[-1] = like_norm(first, f"{name}_norm", options.dtype)(x)
    result.output = x
    return result


def _takes_positions(block):
    layer = block.attention
    return (
        getattr(layer, "position_layer", None) is not None
        or "positions" in call_parameters(type(layer))
        and not hasattr(layer, "position_layer")
    )


def like_norm(block, name, dtype):
    """A norm as the block's own."""
    norm = make_norm(block.norm, block.norm_epsilon, dtype, name, block.use_bias)
    return norm if norm.supports_masking else KeepMask(norm, dtype=norm.dtype_policy, name=name)


def make_blocks(block_class, number, num_heads, options, name):
    shared = {"num_heads": num_heads, **options.block}
    if _is_relative(shared.get("position")):
        causal = set(each_value(shared.get("causal", block_class is not EncoderBlock)))
        shared["position"] = _shared_bias(num_heads, causal, options.dtype, name)
    relative = [layer for layer in each_value(shared.get("attention")) if _is_relative(getattr(layer, "position", 0))]
    of_attention = {}
    if relative:
        causal = {layer.causal for layer in relative}
        of_attention["position"] = _shared_bias(relative[0].num_heads, causal, options.dtype, name)
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
        own = {key: value[i] if isinstance(value, (list, tuple)) else value for key, value in shared.items()}
        blocks.append(_make_block(block_class, own, shared, options.dtype, f"{name}_{i}", of_attention))
    return blocks


def _make_block(block_class, own, shared, dtype, name, of_attention):
    """A block with its own parts: layers among the options are patterns, of which each block gets a copy.

    A block copies a norm itself, for each sublayer. `of_attention` are options of an attention whose position is
    "relative".
    """
    parts = {part: own[part] for part in OPTIONS if isinstance(own.get(part), keras.layers.Layer)}
    for part in parts:
        if any(value is None for value in each_value(shared[part])):  # of other blocks, which the options are for
            own = {option: value for option, value in own.items() if option not in OPTIONS.get(part, ())}
    copies = {}
    for part, layer in parts.items():
        changed = of_attention if part == "attention" and _is_relative(getattr(layer, "position", None)) else {}
        if part != "norm":
            copies[part] = copy_layer(layer, part, name, dtype, **changed)
    return block_class(**{**own, **copies}, dtype=dtype, name=name)


def _is_relative(position):
    """Whether a position is T5's: one table of biases for all blocks."""
    return isinstance(position, str) and position == "relative"


def _shared_bias(num_heads, causal, dtype, name):
    """The table of biases of all blocks; `causal` is the set of their values."""
    if len(causal) > 1:
        raise ValueError(
            "position='relative' is one table for all blocks, and does not go with a `causal` that differs: "
            f"received causal={sorted(causal)}."
        )
    return RelativeBias(num_heads, bidirectional=causal == {False}, dtype=dtype, name=f"{name}_position")


def make_model(inputs, outputs, name, builder, model_class=CheckedModel):
    """A functional model; a `keras.RematScope` applies to its layers, not to the model.

    To compute the whole model again at once would keep as much as not to compute it again at all. A model without a
    name has that of its `builder`, from the second one on with a number: one model holds each name once.
    """
    if not checks.optional(checks.string, "name", name):
        number = keras.backend.get_uid(builder)
        name = builder if number == 1 else f"{builder}_{number - 1}"
    with keras.RematScope(mode=None):
        model = model_class(inputs, outputs, name=name)
    name_operations(model)
    return model
