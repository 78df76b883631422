"""The wiring: embedding, blocks, final norm. Every builder is made of the functions here."""

import dataclasses

import keras

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers import EncoderBlock, PositionalEmbedding, RelativeBias
from keras_txf.layers.blocks import has_bias
from keras_txf.layers.dropout import Dropout
from keras_txf.layers.embeddings import ENCODINGS
from keras_txf.layers.norms import make_norm
from keras_txf.layers.options import option_names
from keras_txf.layers.projections import Projection
from keras_txf.layers.starts import Start, StartPositions
from keras_txf.models.checked_model import CheckedModel

# Embedding options of the builders, by the name they have there -> their name on PositionalEmbedding.
EMBEDDING_OPTIONS = {
    "encoding": "encoding",
    "max_length": "max_length",
    "combine": "combine",
    "position_dim": "position_dim",
    "token_dim": "token_dim",
    "token_types": "token_types",
    "pad_id": "pad_id",
    "scale_embedding": "scale",
    "embeddings_initializer": "embeddings_initializer",
}
DEFAULTS = {"encoding": "auto", "scale_embedding": True, "embedding_norm": False, "embedding_dim": None}


@dataclasses.dataclass
class Options:
    """The options of a builder, sorted by who takes them."""

    embedding: dict
    embedding_norm: bool
    embedding_dim: int | None
    block: dict
    final_norm: bool
    dtype: object


def sort_options(builder, block_class, options, fixed=(), embedding_options=EMBEDDING_OPTIONS, defaults=DEFAULTS):
    """Splits a builder's options; refuses names that neither the embedding nor the block has.

    Args:
        builder: name of the builder, for errors.
        block_class: EncoderBlock or DecoderBlock.
        options: the caller's keyword arguments.
        fixed: options of the block that this builder decides itself.
        embedding_options: those of the embedding, by the name they have here -> their name there.
        defaults: values of options, where this builder has others than the embedding and the block.
    """
    block_names = set(option_names(block_class)) - {"num_heads", *fixed}
    known = block_names | embedding_options.keys() | defaults.keys() | {"final_norm", "dtype"}
    checks.known_names(f"an option of {builder}", options, known)
    options = {**defaults, **options}
    if "scale_embedding" in options:
        checks.boolean("scale_embedding", options["scale_embedding"])
    block = {name: options[name] for name in block_names & options.keys()}
    embedding = {ours: options[name] for name, ours in embedding_options.items() if name in options}
    embedding["encoding"] = resolve_encoding(options)
    final_norm = checks.optional(checks.boolean, "final_norm", options.get("final_norm"))
    if final_norm is None:  # pre-norm leaves the residual stream without a norm at its end
        placement = _each(block.get("norm_placement", "post"))[-1]
        final_norm = not isinstance(placement, str) or placement != "post"
    embedding_norm = checks.boolean("embedding_norm", options.get("embedding_norm", False))
    embedding_dim = checks.optional(checks.size, "embedding_dim", options.get("embedding_dim"))
    return Options(embedding, embedding_norm, embedding_dim, block, final_norm, options.get("dtype"))


def resolve_encoding(options, absolute="sinusoidal"):
    """The caller's `encoding`; by default the paper's, unless `position` has attention see to it."""
    auto = absolute if all(x is None for x in _each(options.get("position"))) else None
    encoding = checks.one_of("encoding", options.get("encoding", "auto"), (*ENCODINGS, "auto", None))
    return auto if encoding == "auto" else encoding


def _each(value):
    """The values of an option, which a list or tuple holds for each block."""
    return value if isinstance(value, (list, tuple)) and value else [value]


def make_embedding(vocab_size, dim, options, name):
    dim = options.embedding_dim or dim
    return PositionalEmbedding(vocab_size, dim, **options.embedding, dtype=options.dtype, name=name)


def find_embedding(model, name, default=None):
    """A `PositionalEmbedding` of the model: the one of that name, or else the default, or else the only one."""
    layers = {layer.name: layer for layer in model.layers if isinstance(layer, PositionalEmbedding)}
    return layers.get(name) or default or layers["embedding"]


def resolve_sharing(share_embeddings, source_vocab_size, target_vocab_size):
    """The caller's `share_embeddings`; by default whether the vocabularies are of one size, as sharing needs them to be."""
    if share_embeddings is None:
        return source_vocab_size == target_vocab_size
    if share_embeddings and source_vocab_size != target_vocab_size:
        raise ValueError(
            "`share_embeddings` needs vocabularies of one size; received "
            f"source_vocab_size={source_vocab_size} and target_vocab_size={target_vocab_size}."
        )
    return share_embeddings


def separate_positions(dim, options):
    """The positions of the source and of the target, each a layer of its own; the embedding is left without."""
    if options.embedding_dim is not None:
        raise ValueError("share_embeddings='tokens' does not go with `embedding_dim`.")
    if options.embedding["encoding"] is None or options.embedding.get("combine", "add") != "add":
        raise ValueError(
            "share_embeddings='tokens' needs positions that are added: an `encoding`, and combine='add'; received "
            f"encoding={short_repr(options.embedding['encoding'])}, combine={short_repr(options.embedding.get('combine', 'add'))}."
        )
    own = {name: options.embedding[name] for name in ("encoding", "max_length", "pad_id") if name in options.embedding}
    options.embedding.update(encoding=None, max_length=None)
    names = ("source_position_embedding", "target_position_embedding")
    return tuple(PositionalEmbedding(None, dim, **own, dtype=options.dtype, name=name) for name in names)


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


def embed(
    embedding, ids, options, name, positions=None, token_type_ids=None, position_embedding=None, start_id=None
):
    """Token ids -> (B, T, D).

    Args:
        embedding: a PositionalEmbedding.
        ids: int (B, T).
        positions: int (B, T) of packed sequences, or None.
        token_type_ids: int (B, T), or None.
        position_embedding: a PositionalEmbedding without tokens, where `embedding` has no positions of its own, or None.
        start_id: the token that every row begins with, or None.
    """
    pad_id = embedding.pad_id
    if start_id is not None and start_id == pad_id and (position_embedding or embedding).encoding is not None:
        positions = StartPositions(pad_id, dtype=options.dtype, name=f"{name}_positions")(ids)
    counts = embedding.encoding is not None or embedding.max_length is not None
    x = embedding(ids, **given(positions=positions if counts else None, token_type_ids=token_type_ids))
    if position_embedding is not None:
        x = keras.layers.Add(dtype=options.dtype)([x, position_embedding(ids, **given(positions=positions))])
    if start_id is not None:
        x = Start(start_id, pad_id, dtype=options.dtype, name=f"{name}_start")([x, ids])
    return x


def run(block_class, x, num_layers, dim, num_heads, options, name, scores=False, context=None, positions=None, **call):
    """Embedded tokens or patches -> dropout, the blocks `name`_0, `name`_1, ..., final norm.

    Args:
        block_class: EncoderBlock or DecoderBlock.
        x: (B, T, embedding's dim).
        options: from `sort_options`. A list or tuple holds one value for each block.
        scores: whether the blocks return their attention scores.
        context: (B, S, D) for cross-attention, or None.
        positions: int (B, T) of packed sequences, or None.
        call: tensors that every block takes, such as `segment_ids`; those that are None stay out.

    Returns:
        Result.
    """
    blocks = make_blocks(block_class, num_layers, num_heads, options, name)
    first = blocks[0]
    call = given(**call)
    if checks.boolean("return_attention_scores", scores):
        call["return_attention_scores"] = True

    if options.embedding_norm:
        x = like_norm(first, f"{name}_embedding_norm", options.dtype)(x)
    x = Dropout(first.dropout, dtype=options.dtype, name=f"{name}_dropout")(x)
    if options.embedding_dim is not None:
        x = Projection(dim, dtype=options.dtype, name=f"{name}_embedding_projection")(x)
    result = Result(blocks, None, [x], [], [])
    for block in blocks:
        own = {} if positions is None or block.position is None else {"positions": positions}
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


def given(**call):
    """The arguments that are not None."""
    return {name: value for name, value in call.items() if value is not None}


def like_norm(block, name, dtype):
    """A norm as the block's own."""
    return make_norm(block.norm, block.norm_epsilon, dtype, name, has_bias(block, "norm_bias"))


def make_blocks(block_class, num_layers, num_heads, options, name):
    checks.size("num_layers", num_layers)
    shared = dict(options.block)
    if isinstance(shared.get("position"), str) and shared["position"] == "relative":  # T5: one table of biases for all blocks
        causal = set(_each(shared.get("causal", block_class is not EncoderBlock)))
        if len(causal) > 1:
            raise ValueError(
                "position='relative' is one table for all blocks, and does not go with a `causal` that differs: "
                f"received causal={shared['causal']}."
            )
        shared["position"] = RelativeBias(
            num_heads,
            bidirectional=causal == {False},
            dtype=options.dtype,
            name=f"{name}_position",
        )
    if not isinstance(shared.get("stochastic_depth", 0.0), (list, tuple)):
        # The deeper a block, the likelier it is left out: the paper's linear rule.
        last = checks.rate("stochastic_depth", shared.get("stochastic_depth", 0.0))
        shared["stochastic_depth"] = [last * (i + 1) / num_layers for i in range(num_layers)]
    for option, value in shared.items():
        if isinstance(value, (list, tuple)) and len(value) != num_layers:
            raise ValueError(
                f"`{option}` must be one value or one for each of the num_layers={num_layers} blocks; "
                f"received {len(value)} values."
            )
    return [
        block_class(
            num_heads,
            **{key: value[i] if isinstance(value, (list, tuple)) else value for key, value in shared.items()},
            dtype=options.dtype,
            name=f"{name}_{i}",
        )
        for i in range(num_layers)
    ]


def make_model(inputs, outputs, name, model_class=CheckedModel):
    """A functional model. Within a `keras.RematScope` its layers are computed again in the backward pass, the model is not.

    To compute the whole model again at once would keep as much as not to compute it again at all.
    """
    with keras.RematScope(mode=None):
        return model_class(inputs, outputs, name=name)


def token_inputs(packed, ids_name="token_ids", prefix=""):
    """The inputs for a sequence by name, then its ids, segment ids and positions (None unless packed)."""
    names = [ids_name, f"{prefix}segment_ids", f"{prefix}positions"] if packed else [ids_name]
    inputs = {name: integer_input(name) for name in names}
    ids, segment_ids, positions = [*inputs.values(), None, None][:3]
    return inputs, ids, segment_ids, positions


def integer_input(name):
    return keras.Input((None,), dtype="int32", name=name)
