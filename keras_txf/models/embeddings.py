"""The wiring of inputs: token ids, float vectors, positions, and their embeddings."""

import functools
import inspect
import typing

import keras

from keras_txf import checks
from keras_txf.checks import short_repr
from keras_txf.layers import PositionalEmbedding
from keras_txf.layers.features import FeatureEmbedding, MaskedVectors
from keras_txf.layers.parts import copy_layer
from keras_txf.layers.sequence_ends import Start, StartPositions
from keras_txf.layers.shown_options import default_options

# Embedding options: name in the builders -> name in PositionalEmbedding.
EMBEDDING_OPTIONS = {
    "position_encoding": "position_encoding",
    "max_length": "max_length",
    "token_types": "token_types",
    "pad_id": "pad_id",
    "scale_embedding": "scale",
}

# Embedding options of float vectors: name in the builders -> name in FeatureEmbedding. The others are for tokens alone.
FEATURE_OPTIONS = {name: name for name in ("position_encoding", "max_length")}


def make_embedding(vocab_size, dim, options, name):
    """Makes the embedding of tokens from the options, or copies the caller's `embedding`."""
    if options.embedding_layer is None:
        return PositionalEmbedding(vocab_size, dim, **options.embedding, dtype=options.dtype, name=name)
    layer = options.embedding_layer
    if not isinstance(layer, PositionalEmbedding):
        raise ValueError(f"`embedding` of tokens must be a PositionalEmbedding; received {type(layer).__name__}.")
    if layer.vocab_size != vocab_size:
        raise ValueError(f"`embedding` must have vocab_size={vocab_size}; received vocab_size={layer.vocab_size}.")
    return copy_layer(layer, name, dtype=options.dtype)


Builder = typing.TypeVar("Builder", bound=typing.Callable)


def takes_vectors(builder: Builder) -> Builder:
    """Gives the first argument of a builder, the number of tokens, the default None, for calls with `input_dim`."""
    first = next(iter(inspect.signature(builder).parameters))

    @functools.wraps(builder)
    def call(*args, **kwargs):
        return builder(*args, **kwargs) if args else builder(**{first: None, **kwargs})

    return call


def check_source(name, vocab_size, input_dim):
    """Raises ValueError unless exactly one of `vocab_size`, the argument `name`, and `input_dim` is None."""
    if (vocab_size is None) == (input_dim is None):
        raise ValueError(
            f"Either `{name}` or `input_dim` must be None, and not both; received "
            f"{name}={short_repr(vocab_size)} and input_dim={short_repr(input_dim)}."
        )


def check_vector_options(options, table):
    """Raises ValueError for an option of tokens in a model of float vectors, unless it has its default."""
    defaults = default_options(table)
    for name in EMBEDDING_OPTIONS.keys() - FEATURE_OPTIONS.keys():
        if name in options and options[name] != defaults.get(name):
            raise ValueError(
                f"`{name}` does not go with `input_dim`: it is for tokens; received {short_repr(options[name])}."
            )


def float_input(shape, dtype, name):
    """An input for float vectors: float64 for a model that computes in float64, else Keras' floatx."""
    dtype = checks.optional(checks.dtype, "dtype", dtype)
    wide = keras.dtype_policies.get(dtype).compute_dtype == "float64"
    return keras.Input(shape, dtype="float64" if wide else None, name=name)


def embed_features(input_dim, dim, options, packed, name, prefix=""):
    """Inputs for float vectors by name, the embedded vectors (B, T, dim), segment ids and positions.

    The last two are None unless `packed`.
    """
    features_name = f"{prefix}features"
    features = float_input((None, checks.size("input_dim", input_dim)), options.dtype, features_name)
    inputs, segment_ids, positions = packed_inputs(packed, prefix)
    masked = MaskedVectors(dtype=options.dtype, name=f"{features_name}_masked")(features)
    inputs = {features_name: features, **inputs}
    if options.embedding_layer is not None:
        if packed:
            raise ValueError(
                "`embedding` of float vectors does not go with `packed`: it would mix the sequences of a row."
            )
        x = copy_layer(options.embedding_layer, name, dtype=options.dtype)(masked)
        if len(x.shape) != 3 or x.shape[-1] is None:
            raise ValueError(f"`embedding` must return (batch, length, width); received {tuple(x.shape)}.")
        return inputs, x, None, None
    embedding = FeatureEmbedding(dim, **options.embedding, dtype=options.dtype, name=name)
    embedded = embedding(masked, **drop_none(positions=positions if embedding.position_encoding is not None else None))
    return inputs, embedded, segment_ids, positions


def resolve_sharing(share_embeddings, source_vocab_size, target_vocab_size):
    """The caller's `share_embeddings`; default: whether both vocabularies have the same size.

    Raises:
        ValueError: `share_embeddings` with vocabularies of different sizes.
    """
    if share_embeddings is None:
        return source_vocab_size == target_vocab_size
    if share_embeddings and source_vocab_size != target_vocab_size:
        raise ValueError(
            "`share_embeddings` needs vocabularies of one size; received "
            f"source_vocab_size={source_vocab_size} and target_vocab_size={target_vocab_size}."
        )
    return share_embeddings


def separate_positions(dim, options):
    """Makes two layers for the positions of source and target, and removes the positions from the embedding options."""
    if options.embedding_layer is not None:
        raise ValueError("share_embeddings='tokens' does not go with a layer as `embedding`.")
    if options.embedding["position_encoding"] is None:
        raise ValueError("`position_encoding` must not be None with share_embeddings='tokens'; received None.")
    names = ("position_encoding", "max_length", "pad_id")
    of_positions = {name: options.embedding[name] for name in names if name in options.embedding}
    options.embedding.update(position_encoding=None, max_length=None)
    return tuple(
        PositionalEmbedding(None, dim, **of_positions, dtype=options.dtype, name=f"{side}_position_embedding")
        for side in ("source", "target")
    )


def embed(embedding, ids, options, name, positions=None, token_type_ids=None, position_embedding=None, start_id=None):
    """Token ids -> (B, T, D).

    Args:
        embedding: a PositionalEmbedding.
        ids: int (B, T).
        positions: int (B, T) of packed sequences, or None.
        token_type_ids: int (B, T), or None.
        position_embedding: a PositionalEmbedding without tokens, for an `embedding` without positions; or None.
        start_id: the first token of every row, or None.
    """
    pad_id = embedding.pad_id
    if start_id is not None and start_id == pad_id and (position_embedding or embedding).position_encoding is not None:
        positions = StartPositions(pad_id, dtype=options.dtype, name=f"{name}_positions")(ids)
    counts = embedding.position_encoding is not None or embedding.max_length is not None
    x = embedding(ids, **drop_none(positions=positions if counts else None, token_type_ids=token_type_ids))
    if position_embedding is not None:
        added = position_embedding(ids, **drop_none(positions=positions))
        x = keras.layers.Add(dtype=options.dtype, name=f"{name}_embedded")([x, added])
    if start_id is not None:
        x = Start(start_id, pad_id, dtype=options.dtype, name=f"{name}_start")([x, ids])
    return x


def drop_none(**arguments):
    """The arguments that are not None."""
    return {name: value for name, value in arguments.items() if value is not None}


def token_inputs(packed, ids_name="token_ids", prefix=""):
    """Inputs for token ids by name, then the ids, segment ids and positions. The last two are None unless `packed`."""
    ids = integer_input(ids_name)
    inputs, segment_ids, positions = packed_inputs(packed, prefix)
    return {ids_name: ids, **inputs}, ids, segment_ids, positions


def packed_inputs(packed, prefix=""):
    """Inputs for segment ids and positions of packed rows by name, then both tensors or None."""
    if not packed:
        return {}, None, None
    inputs = {name: integer_input(name) for name in (f"{prefix}segment_ids", f"{prefix}positions")}
    return inputs, *inputs.values()


def integer_input(name):
    return keras.Input((None,), dtype="int32", name=name)
